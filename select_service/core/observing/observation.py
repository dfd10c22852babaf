"""A window as the body that an autoscaler reads."""

from collections.abc import Generator
from typing import cast

from select_service.bodies.observation import (
    BinEdges,
    Observation,
    ObservedHistogram,
    ObservedRank,
    Triple,
)
from select_service.core.engines.engine_load import EngineLoads
from select_service.core.identity import PartitionKey
from select_service.core.load import bins, observed_layout
from select_service.core.observing.counted import Samples, arrivals_of, prompts
from select_service.core.observing.observing import Observing
from select_service.core.observing.rank_loads import StateOf, has_prefill_workers, rank_loads
from select_service.core.observing.slots import Span
from select_service.core.observing.window import (
    Counts,
    Window,
    lengths,
    outputs,
    refused,
    times,
)
from select_service.dispersion import arrival_variation
from select_service.errors import NotFound

_EDGES = BinEdges(tokens=bins.TOKEN_EDGES.tolist(), seconds=bins.TIME_EDGES_S.tolist())


def observation(
    observing: Observing,
    key: PartitionKey,
    window_s: float,
    engines: EngineLoads,
    state_of: StateOf | None,
    now: float,
) -> Generator[None, None, Observation]:
    """GET /planner/observation, in steps.  state_of: None: health is off

    From the first call on refused requests count, whether or not somebody serves the model.
    Raises NotFound at the first step.
    """
    observing.watch(key)
    if not observing.knows(key):
        raise NotFound(
            f"nothing is known of model={key.model_name} tenant={key.tenant_id}: "
            "no schedulable worker serves it, and there were no requests for it within the hour"
        )
    span, window = yield from observing.window(key, window_s, now)
    ranks, are_split = [], False
    partition = observing.partition(key)
    if partition is not None:
        are_split = has_prefill_workers(partition)
        for row in rank_loads(partition, engines, state_of, now):
            if row is None:
                yield
            else:
                ranks.append(row)
    body = _body(key, span, window, are_split)
    waiting = observing.backlog(key)
    body.queued_now, body.queued_tokens = waiting.requests, waiting.isl_tokens
    body.ranks = cast(list[ObservedRank], ranks)
    return body


def _body(key: PartitionKey, span: Span, window: Window, are_split: bool) -> Observation:
    """Without what waits, and without ranks.  are_split: do some ranks prefill for others?"""
    total = window.total
    isl, uncached = lengths(prompts(total, are_split))
    by_slot = window.arrivals[:, int(are_split)]
    return Observation(
        model_name=key.model_name,
        tenant_id=key.tenant_id,
        window_s=round(span.length_s, 3),
        complete=span.is_covered,
        arrivals=max(0, arrivals_of(total, are_split)),
        arrival_variation=arrival_variation(by_slot, span.lengths_s),
        rejected=refused(total),
        queued_now=0,
        queued_tokens=0,
        isl=_histogram(isl),
        uncached_isl=_histogram(uncached),
        osl=_histogram(outputs(total)),
        kv_hit_rate=round(1.0 - uncached.sum / isl.sum, 6) if isl.sum else None,
        prefill_s=_triples(window.prefills),
        decode_s=_triples(window.decodes),
        ttft_s=_histogram(times(total, observed_layout.TTFT, observed_layout.TTFT_US)),
        itl_s=_histogram(times(total, observed_layout.ITL, observed_layout.ITL_US)),
        bins=_EDGES,
        ranks=[],
    )


def _histogram(of: Counts) -> ObservedHistogram:
    return ObservedHistogram(counts=of.counts, sum=of.sum)


def _triples(samples: Samples) -> list[Triple]:
    """Rounded as far as they are exact."""
    return [[a, round(b, 6), round(c, 6)] for a, b, c in samples.tolist()]
