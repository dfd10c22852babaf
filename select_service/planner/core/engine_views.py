"""What the passes of a role say about each engine: a latency now, and with one engine less.

Ranks of one worker count together, by the worst of them.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from select_service.planner.core.contracts import Slo
from select_service.planner.core.inputs import ForwardPass, Limits
from select_service.planner.core.perf.model import EngineModel


class View(NamedTuple):
    """One engine.

    estimate_ms: latency of one more request
    after:       load with one engine less, as part of what is allowed; None: cannot be said
    weight:      requests that it has, as far as they are told
    """

    worker: str
    estimate_ms: float
    after: float | None
    weight: float


class Terms(NamedTuple):
    """What a load decision is taken under.

    replicas:    engines that are ready
    sensitivity: part of the target that one engine less may use
    hit_rate, accept_length: last known
    """

    replicas: int
    slo: Slo
    sensitivity: float
    limits: Limits
    hit_rate: float
    accept_length: float

    @property
    def consolidation(self) -> float:
        """Load of an engine when one of them goes, by what it has now."""
        return self.replicas / (self.replicas - 1) if self.replicas > 1 else 1.0


Group = tuple[ForwardPass, ...]


def groups(passes: Sequence[ForwardPass]) -> dict[str, Group]:
    """The newest pass of each rank, by worker, in the order of their names."""
    newest = {(one.worker, one.rank): one for one in passes}
    found: dict[str, list[ForwardPass]] = {}
    for _, one in sorted(newest.items()):
        found.setdefault(one.worker, []).append(one)
    return {worker: tuple(ranks) for worker, ranks in found.items()}


def complete(found: dict[str, Group]) -> bool:
    """Every worker has spoken with as many ranks."""
    return len({len(ranks) for ranks in found.values()}) <= 1


def prefill_views(found: dict[str, Group], model: EngineModel, terms: Terms) -> list[View]:
    """Times to first token of engines that only prefill."""

    def ttft(one: ForwardPass, queue: float) -> float | None:
        return model.ttft_s(one, terms.limits, terms.hit_rate, queue_scale=queue)

    def after(one: ForwardPass) -> float | None:
        return _part(ttft(one, 0.0), ttft(one, terms.consolidation), terms)

    return _views(found, lambda one: _ms(ttft(one, 1.0)), after, _prefill_requests)


def aggregated_ttft_views(found: dict[str, Group], model: EngineModel, terms: Terms) -> list[View]:
    """The same of engines that decode as well: those that stay get both loads."""

    def after(one: ForwardPass) -> float | None:
        scale = terms.consolidation
        own, all_of_it = (
            model.ttft_s(
                one,
                terms.limits,
                terms.hit_rate,
                queue_scale=queue,
                decode_scale=scale,
                queued_decode=True,
            )
            for queue in (0.0, scale)
        )
        return _part(own, all_of_it, terms)

    def now(one: ForwardPass) -> float | None:
        return _ms(model.ttft_s(one, terms.limits, terms.hit_rate))

    return _views(found, now, after, _prefill_requests)


def decode_views(
    found: dict[str, Group], model: EngineModel, terms: Terms, *, aggregated: bool = False
) -> list[View]:
    """Times between tokens. A cache that would overflow is beyond what models can say."""
    room = terms.limits.max_kv_tokens
    allowed_ms = terms.slo.itl_ms * terms.sensitivity

    def after(one: ForwardPass) -> float | None:
        tokens = one.decode_kv_tokens + one.queued_decode_kv_tokens
        if aggregated:
            tokens += one.queued_prefill_tokens
        if room and int(tokens * terms.consolidation) >= room:
            return inf
        then = model.itl_s(one, decode_scale=terms.consolidation, queued_prefill_as_kv=aggregated)
        return None if then is None else then * 1000.0 / terms.accept_length / allowed_ms

    def now(one: ForwardPass) -> float | None:
        seconds = model.itl_s(one)
        return None if seconds is None else seconds * 1000.0 / terms.accept_length

    return _views(found, now, after, _decode_requests)


def _part(own_s: float | None, all_s: float | None, terms: Terms) -> float | None:
    """What the queue adds, of what the target leaves beside a request's own time."""
    if own_s is None or all_s is None:
        return None
    budget_ms = (terms.slo.ttft_ms - own_s * 1000.0) * terms.sensitivity
    return inf if budget_ms <= 0.0 else (all_s - own_s) * 1000.0 / budget_ms


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000.0


def _views(
    found: dict[str, Group],
    now: Callable[[ForwardPass], float | None],
    after: Callable[[ForwardPass], float | None],
    weight: Callable[[ForwardPass], float],
) -> list[View]:
    """Of the ranks of a worker the worst; without workers of which nothing can be said."""
    views = []
    for worker, ranks in found.items():
        estimates = [value for one in ranks if (value := now(one)) is not None]
        if not estimates:
            continue
        then = [after(one) for one in ranks]
        known = [value for value in then if value is not None]
        worst = max(known) if len(known) == len(then) else None
        views.append(View(worker, max(estimates), worst, sum(weight(one) for one in ranks)))
    return views


def _prefill_requests(one: ForwardPass) -> float:
    return float(one.prefill_requests + one.queued_prefill_requests)


def _decode_requests(one: ForwardPass) -> float:
    return float(one.decode_requests + one.queued_decode_requests)
