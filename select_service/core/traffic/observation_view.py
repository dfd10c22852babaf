"""Observation window as the response body for autoscalers."""

from collections.abc import Generator
from typing import cast

from select_service.base.arrival_variation import arrival_variation
from select_service.base.errors import NotFound
from select_service.core.identity import PartitionKey
from select_service.core.load import histogram_bins
from select_service.core.load.compiled import observation_layout
from select_service.core.pairs import pair_traffic_layout
from select_service.core.pairs.pair_traffic import LinkCapacity
from select_service.core.rank_condition import ConditionOf
from select_service.core.traffic import traffic_counters
from select_service.core.traffic.rank_loads import (
    has_prefill_workers,
    rank_loads,
    slots_by_part,
)
from select_service.core.traffic.time_slots import WindowSpan
from select_service.core.traffic.traffic_counters import (
    Samples,
    Words,
    count_arrivals,
    prompt_histogram,
)
from select_service.core.traffic.traffic_observer import TrafficObserver
from select_service.core.traffic.window_sums import (
    HistogramCounts,
    ObservationWindow,
    length_histograms,
    local_histogram,
    output_histogram,
    refusals_by_reason,
    time_histogram,
)
from select_service.core.workers.engine_load import EngineLoads
from select_service.schemas.observation import (
    BinEdges,
    Observation,
    ObservedHistogram,
    ObservedPairs,
    ObservedRank,
    Triple,
)

_EDGES = BinEdges(
    tokens=histogram_bins.TOKEN_EDGES.tolist(), seconds=histogram_bins.TIME_EDGES_S.tolist()
)


def build_observation(
    observing: TrafficObserver,
    key: PartitionKey,
    window_s: float,
    engines: EngineLoads,
    condition_of: ConditionOf | None,
    now: float,
) -> Generator[None, None, Observation]:
    """Build GET /planner/observation, in steps; condition_of is None if health is off.

    Rejected requests of the model count from the first call on, with or without workers. Raises
    NotFound at the first step.
    """
    observing.watch_refusals(key)
    if not observing.is_known(key):
        raise NotFound(
            f"no data for model={key.model_name} tenant={key.tenant_id}: "
            "no schedulable worker serves the model, and no request came within the last hour"
        )
    span, window = yield from observing.read_window(key, window_s, now)
    ranks, are_split, pairs = [], False, None
    partition = observing.find_partition(key)
    if partition is not None:
        are_split = has_prefill_workers(partition)
        pairs = observing.find_pairs(key)
        for row in rank_loads(partition, engines, condition_of, now):
            if row is None:
                yield
            else:
                ranks.append(row)
    body = _build_body(key, span, window, are_split)
    waiting = observing.backlog_of(key)
    body.queued_now, body.queued_tokens = waiting.requests, waiting.isl_tokens
    body.ranks = cast(list[ObservedRank], ranks)
    if partition is not None and pairs is not None:
        body.pairs = _pairs_view(window.total, pairs.find_capacity(*slots_by_part(partition)))
    return body


def _build_body(
    key: PartitionKey, span: WindowSpan, window: ObservationWindow, are_split: bool
) -> Observation:
    """Build the body without waiting requests and ranks.

    are_split: whether some ranks prefill for others
    """
    total = window.total
    isl, uncached = length_histograms(prompt_histogram(total, are_split))
    by_slot = window.arrivals[:, int(are_split)]
    return Observation(
        model_name=key.model_name,
        tenant_id=key.tenant_id,
        window_s=round(span.length_s, 3),
        complete=span.is_covered,
        arrivals=max(0, count_arrivals(total, are_split)),
        arrival_variation=arrival_variation(by_slot, span.lengths_s),
        rejected=refusals_by_reason(total),
        queued_now=0,
        queued_tokens=0,
        isl=_histogram_view(isl),
        uncached_isl=_histogram_view(uncached),
        osl=_histogram_view(output_histogram(total)),
        kv_hit_rate=round(1.0 - uncached.sum / isl.sum, 6) if isl.sum else None,
        prefill_s=_rounded_triples(window.prefills),
        decode_s=_rounded_triples(window.decodes),
        ttft_s=_histogram_view(
            time_histogram(total, observation_layout.TTFT, observation_layout.TTFT_US)
        ),
        itl_s=_histogram_view(
            time_histogram(total, observation_layout.ITL, observation_layout.ITL_US)
        ),
        bins=_EDGES,
        ranks=[],
    )


def _pairs_view(total: Words, links: LinkCapacity) -> ObservedPairs:
    counts = total[traffic_counters.PAIRS : traffic_counters.REFUSED]
    is_known = not counts[pair_traffic_layout.UNKNOWN_LINK_TOKENS]
    return ObservedPairs(
        remote=int(counts[pair_traffic_layout.N_REMOTE]),
        local=int(counts[pair_traffic_layout.N_LOCAL]),
        local_uncached_isl=_histogram_view(local_histogram(total)),
        moved_tokens=int(counts[pair_traffic_layout.MOVED_TOKENS]),
        link_seconds=int(counts[pair_traffic_layout.LINK_US]) / 1e6 if is_known else None,
        leaving_hosts=links.leaving,
        entering_hosts=links.entering,
        link_backlog_s=None if links.backlog_s is None else round(links.backlog_s, 6),
    )


def _histogram_view(of: HistogramCounts) -> ObservedHistogram:
    return ObservedHistogram(counts=of.counts, sum=of.sum)


def _rounded_triples(samples: Samples) -> list[Triple]:
    """Return the samples, rounded to their precision."""
    return [[a, round(b, 6), round(c, 6)] for a, b, c in samples.tolist()]
