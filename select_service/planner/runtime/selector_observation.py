"""Conversion of the selectors' answers at /planner/observation to the planner's input. No I/O.

docs/reference/api.md describes the fields. Selectors have different requests, so the numbers are
added; all selectors have the load of a rank, so the highest counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from select_service.planner.core.tick_input import (
    DecodeTiming,
    EngineLimits,
    ForwardPass,
    LengthBins,
    LostWorker,
    PairWindow,
    PrefillTiming,
    Role,
    RoleHealth,
    TrafficWindow,
    worker_role,
)

SAMPLES_MAX = 256
"""Maximum samples of each kind, taken evenly from all selectors."""
OUT_OF_ROTATION = frozenset({"unhealthy", "draining", "dead"})
"""Health states in which a rank gets no new requests; see docs/guides/health.md."""


class SelectorHistogram(Struct):
    """Histogram. counts: number of values by bin;  sum: sum of all values"""

    counts: list[int]
    sum: float

    @property
    def total(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean; None without values."""
        return self.sum / self.total if self.total else None


class SelectorRank(Struct):
    """Current state of a rank."""

    worker_id: int
    dp_rank: int
    role: str = "aggregated"
    state: str | None = None
    cause: str | None = None
    out_s: float | None = None
    spare: bool = False
    weight: float | None = None
    active_prefill_tokens: int = 0
    active_blocks: int = 0
    live_requests: int = 0
    block_size: int | None = None
    total_kv_blocks: int | None = None
    max_num_batched_tokens: int | None = None

    @property
    def scaled_as(self) -> Role:
        """Role of the rank's replica."""
        return worker_role(self.role)

    @property
    def takes_requests(self) -> bool:
        """Whether the rank takes requests; False also before its health is confirmed."""
        return self.state not in OUT_OF_ROTATION and self.weight != 0.0

    @property
    def is_lost(self) -> bool:
        """Whether health has taken the rank out; drains by operators and planners are no loss."""
        is_drained = self.state == "draining" and self.cause in (None, "operator")
        return self.state in OUT_OF_ROTATION and not is_drained

    @property
    def is_idle_spare(self) -> bool:
        """Whether the rank is a spare that could take requests."""
        return self.spare and self.state == "healthy"


class ObservedLevel(Struct):
    """Health of a model at a selector."""

    degradation_level: int = 0


class HistogramEdges(Struct):
    tokens: list[float]
    seconds: list[float]


_Triple = Annotated[list[float], Meta(min_length=3, max_length=3)]


class SelectorPairs(Struct):
    """Pairs of a selector, and the links between hosts."""

    remote: int
    local: int
    local_uncached_isl: SelectorHistogram
    moved_tokens: int
    link_seconds: float | None
    leaving_hosts: int
    entering_hosts: int
    link_backlog_s: float | None


class SelectorObservation(Struct):
    """Observation of a model and tenant by a selector."""

    window_s: float
    complete: bool
    arrivals: int
    rejected: dict[str, int]
    queued_now: int
    queued_tokens: int
    isl: SelectorHistogram
    uncached_isl: SelectorHistogram
    osl: SelectorHistogram
    ttft_s: SelectorHistogram
    itl_s: SelectorHistogram
    bins: HistogramEdges
    prefill_s: list[_Triple]
    decode_s: list[_Triple]
    ranks: list[SelectorRank]
    arrival_variation: float | None = None
    pairs: SelectorPairs | None = None
    health: ObservedLevel | None = None


class CombinedObservation(Struct, frozen=True, kw_only=True):
    """Observations of a deployment over all selectors.

    workers:  number of workers that take requests, by role
    is_whole: whether all answers cover the whole window; otherwise workers may be missing
    health:   health by role; None if no selector checks the health of ranks
    degradation_level: highest level of the selectors
    """

    traffic: TrafficWindow
    passes: Mapping[Role, tuple[ForwardPass, ...]]
    workers: Mapping[Role, int]
    limits: Mapping[Role, EngineLimits]
    is_whole: bool = True
    health: Mapping[Role, RoleHealth] | None = None
    degradation_level: int = 0


def combine_observations(
    answers: Sequence[SelectorObservation], *, window_s: float, ttft_s: float, itl_s: float
) -> CombinedObservation:
    """Combine the answers of all selectors that may have had requests; none means unknown.

    ttft_s, itl_s: latency targets
    Raises ValueError if the histograms cannot be added.
    """
    ranks = _highest_loads(answers)
    taking = [each for each in ranks if each.takes_requests]
    return CombinedObservation(
        traffic=_combine_traffic(answers, window_s, ttft_s, itl_s),
        passes={
            role: tuple(_to_forward_pass(each) for each in taking if each.scaled_as is role)
            for role in Role
        },
        workers={
            role: len({each.worker_id for each in taking if each.scaled_as is role})
            for role in Role
        },
        limits={
            role: _smallest_limits([e for e in taking if e.scaled_as is role]) for role in Role
        },
        is_whole=bool(answers) and all(each.complete for each in answers),
        health=_combine_health(answers, ranks),
        degradation_level=max(
            (each.health.degradation_level for each in answers if each.health is not None),
            default=0,
        ),
    )


def _combine_health(
    answers: Sequence[SelectorObservation], ranks: Sequence[SelectorRank]
) -> Mapping[Role, RoleHealth] | None:
    """Return the health of the workers by role; None if no rank has a health state."""
    if all(each.state is None for each in ranks):
        return None
    by_worker: dict[int, list[SelectorRank]] = {}
    for each in ranks:
        by_worker.setdefault(each.worker_id, []).append(each)
    out_s = _seconds_out(answers)
    serving, spares = Counter[Role](), Counter[Role]()
    lost: dict[Role, list[LostWorker]] = {role: [] for role in Role}
    for worker_id, of_worker in by_worker.items():
        role = of_worker[0].scaled_as
        out = [each for each in of_worker if each.is_lost]
        if any(each.takes_requests for each in of_worker):
            serving[role] += 1
        elif any(each.is_idle_spare for each in of_worker):
            spares[role] += 1
        elif out:
            worst = max(out, key=lambda each: (each.state == "dead", each.dp_rank))
            lost[role].append(
                LostWorker(
                    worker_id=worker_id,
                    out_s=out_s[worker_id],
                    state=worst.state or "",
                    cause=worst.cause or "",
                )
            )
    return {
        role: RoleHealth(serving=serving[role], lost=tuple(lost[role]), spares=spares[role])
        for role in Role
    }


def _seconds_out(answers: Sequence[SelectorObservation]) -> dict[int, float]:
    """Return since when no selector sends requests to a worker, seconds; 0 while one does."""
    found: dict[int, float] = {}
    for answer in answers:
        here: dict[int, float] = {}
        for rank in answer.ranks:
            # A worker is out since its last rank is.
            seconds = (rank.out_s or 0.0) if rank.is_lost else 0.0
            here[rank.worker_id] = min(seconds, here.get(rank.worker_id, seconds))
        for worker_id, seconds in here.items():
            found[worker_id] = min(seconds, found.get(worker_id, seconds))
    return found


def _combine_traffic(
    answers: Sequence[SelectorObservation], window_s: float, ttft_s: float, itl_s: float
) -> TrafficWindow:
    """Combine the traffic."""
    if not answers:
        return TrafficWindow(duration_s=window_s)
    edges = answers[0].bins
    isl, uncached, osl, ttft, itl = (
        _sum_histograms([getattr(each, name) for each in answers])
        for name in ("isl", "uncached_isl", "osl", "ttft_s", "itl_s")
    )
    found = TrafficWindow(
        duration_s=max(each.window_s for each in answers),
        requests=float(sum(each.arrivals for each in answers)),
        isl=isl.mean,
        osl=osl.mean,
        # By tokens, not by requests: long prompts cost more.
        kv_hit_rate=1.0 - uncached.sum / isl.sum if isl.sum else None,
        uncached_isl=to_length_bins(uncached, edges.tokens),
        # On average a live request is half way through its answer.
        context=_shift_bins(to_length_bins(isl, edges.tokens), (osl.mean or 0.0) / 2.0),
        arrival_variation=_combine_variation(answers),
        prefill_samples=tuple(
            PrefillTiming(*each) for each in _even_samples([a.prefill_s for a in answers])
        ),
        decode_samples=tuple(
            DecodeTiming(*each) for each in _even_samples([a.decode_s for a in answers])
        ),
        rejected=float(sum(sum(each.rejected.values()) for each in answers)),
        queued_requests=float(sum(each.queued_now for each in answers)),
        queued_tokens=float(sum(each.queued_tokens for each in answers)),
        ttft_met=part_below(ttft, edges.seconds, ttft_s),
        itl_met=part_below(itl, edges.seconds, itl_s),
        ttft_s=ttft.mean,
        itl_s=itl.mean,
        pairs=_combine_pairs(answers, uncached, edges.tokens),
    )
    is_whole = all(each.complete for each in answers)
    return found if is_whole else replace(found, duration_s=window_s).without_totals()


def _combine_pairs(
    answers: Sequence[SelectorObservation], uncached: SelectorHistogram, edges: Sequence[float]
) -> PairWindow | None:
    """Combine the pairs of all selectors; None without pairs.

    uncached: prompts of all requests
    """
    found = [each.pairs for each in answers if each.pairs is not None]
    if not any(each.remote or each.local for each in found):
        return None
    local = _sum_histograms([each.local_uncached_isl for each in found])
    # A request that was counted by its decision alone may be missing in `uncached`.
    rest = [max(0, n - m) for n, m in zip(uncached.counts, local.counts, strict=True)]
    remote = SelectorHistogram(rest, max(0.0, uncached.sum - local.sum))
    backlogs = [each.link_backlog_s for each in found]
    return PairWindow(
        remote=float(sum(each.remote for each in found)),
        local=float(sum(each.local for each in found)),
        local_uncached=to_length_bins(local, edges),
        remote_uncached=to_length_bins(remote, edges),
        moved_tokens=float(sum(each.moved_tokens for each in found)),
        link_use=_link_use(found, max(each.window_s for each in answers)),
        # Each selector knows the transfers of all.
        link_backlog_s=None if None in backlogs else max(b for b in backlogs if b is not None),
    )


def _link_use(pairs: Sequence[SelectorPairs], window_s: float) -> float | None:
    """Return the mean use of the links of the side with fewer hosts, as each transfer needs one of
    either side; None if it is unknown.
    """
    seconds = [each.link_seconds for each in pairs]
    hosts = max(min(each.leaving_hosts, each.entering_hosts) for each in pairs)
    if None in seconds or not hosts or window_s <= 0.0:
        return None
    return sum(each for each in seconds if each is not None) / (hosts * window_s)


def to_length_bins(histogram: SelectorHistogram, edges: Sequence[float]) -> LengthBins | None:
    """Return the bins with logarithmic middles, scaled until their sum is exact."""
    middles = [sqrt(low * high) for low, high in pairwise(edges)]
    found = [(m, n) for m, n in zip(middles, histogram.counts, strict=False) if n > 0]
    total = sum(middle * count for middle, count in found)
    if not found or total <= 0.0:
        return None
    factor = histogram.sum / total
    return LengthBins(
        means=tuple(middle * factor for middle, _ in found),
        counts=tuple(float(count) for _, count in found),
    )


def part_below(histogram: SelectorHistogram, edges: Sequence[float], limit: float) -> float | None:
    """Return the part of the values up to `limit`, evenly spread within a bin.

    None without values.
    """
    if not histogram.total:
        return None
    below = 0.0
    for (low, high), count in zip(pairwise(edges), histogram.counts, strict=False):
        below += count * min(1.0, max(0.0, (limit - low) / (high - low)))
    return below / histogram.total


def _shift_bins(found: LengthBins | None, by: float) -> LengthBins | None:
    """Return the bins with all means shifted."""
    if found is None:
        return None
    return LengthBins(means=tuple(mean + by for mean in found.means), counts=found.counts)


def _sum_histograms(histograms: Sequence[SelectorHistogram]) -> SelectorHistogram:
    """Add histograms."""
    counts = [sum(column) for column in zip(*(each.counts for each in histograms), strict=True)]
    return SelectorHistogram(counts, sum(each.sum for each in histograms))


def _combine_variation(answers: Sequence[SelectorObservation]) -> float | None:
    """Return the arrival variation of superposed streams: the mean weighted by arrivals.

    Source: the index of dispersion of a sum of independent streams is the weighted mean of theirs.
    """
    known = [
        (each.arrival_variation, each.arrivals)
        for each in answers
        if each.arrival_variation is not None and each.arrivals
    ]
    total = sum(arrivals for _, arrivals in known)
    return sum(value * arrivals for value, arrivals in known) / total if total else None


def _even_samples(of_all: Sequence[Sequence[Sequence[float]]]) -> list[Sequence[float]]:
    """Return samples of all selectors, evenly reduced to the maximum."""
    samples = [each for samples in of_all for each in samples]
    if len(samples) <= SAMPLES_MAX:
        return samples
    return [samples[i * len(samples) // SAMPLES_MAX] for i in range(SAMPLES_MAX)]


def _highest_loads(answers: Sequence[SelectorObservation]) -> list[SelectorRank]:
    """Return every rank once, with its highest load; out of rotation has precedence."""
    found: dict[tuple[int, int], SelectorRank] = {}
    for each in (rank for answer in answers for rank in answer.ranks):
        key = each.worker_id, each.dp_rank
        other = found.get(key)
        # Selectors exchange loads with a delay, so the highest one is the safe choice; a rank that
        # any selector has taken out counts as out.
        if other is None or _rank_order(each) > _rank_order(other):
            found[key] = each
    return [found[key] for key in sorted(found)]


def _rank_order(rank: SelectorRank) -> tuple[bool, int, int]:
    """Return the sort key of a rank's answers."""
    return not rank.takes_requests, rank.active_prefill_tokens, rank.active_blocks


def _to_forward_pass(rank: SelectorRank) -> ForwardPass:
    """Return the load of a rank as a pass: all queued, as a selector sees no iterations."""
    return ForwardPass(
        worker=str(rank.worker_id),
        rank=rank.dp_rank,
        decode_requests=rank.live_requests,
        # Selectors count blocks; without a block size the tokens are unknown.
        decode_kv_tokens=rank.active_blocks * (rank.block_size or 0),
        queued_prefill_tokens=rank.active_prefill_tokens,
        booked=True,
    )


def _smallest_limits(ranks: Sequence[SelectorRank]) -> EngineLimits:
    """Return the smallest limits of any rank."""
    batches = [e.max_num_batched_tokens for e in ranks if e.max_num_batched_tokens is not None]
    blocks = [
        each.total_kv_blocks * each.block_size
        for each in ranks
        if each.total_kv_blocks is not None and each.block_size is not None
    ]
    return EngineLimits(
        max_num_batched_tokens=min(batches, default=None),
        max_kv_tokens=min(blocks, default=None),
    )
