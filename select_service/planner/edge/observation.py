"""What selectors answer at /planner/observation, and what that says to the planner. Without I/O.

The fields are described in docs/api.md. Requests of several selectors are different ones, so their
numbers are added; the load of a rank is known to all of them, so the highest counts.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from select_service.planner.core.inputs import (
    Bins,
    DecodeSample,
    ForwardPass,
    Limits,
    PrefillSample,
    Role,
    Traffic,
    role_of,
)

SAMPLES_MAX = 256
"""Of each kind that are handed on, evenly from those of all selectors."""
OUT_OF_ROTATION = frozenset({"unhealthy", "draining", "dead"})
"""States of health in which a rank gets no new requests; see docs/health.md."""


class Histogram(Struct):
    """counts: by bin;  sum: of all values"""

    counts: list[int]
    sum: float

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        return self.sum / self.total if self.total else None


class Rank(Struct):
    """One rank now."""

    worker_id: int
    dp_rank: int
    role: str = "aggregated"
    state: str | None = None
    weight: float | None = None
    active_prefill_tokens: int = 0
    active_blocks: int = 0
    live_requests: int = 0
    block_size: int | None = None
    total_kv_blocks: int | None = None
    max_num_batched_tokens: int | None = None

    @property
    def scaled_as(self) -> Role:
        return role_of(self.role)

    @property
    def takes_requests(self) -> bool:
        """False as well while its health has not been found good."""
        return self.state not in OUT_OF_ROTATION and self.weight != 0.0


class Edges(Struct):
    tokens: list[float]
    seconds: list[float]


_Triple = Annotated[list[float], Meta(min_length=3, max_length=3)]


class Observation(Struct):
    """What one selector says of one model and tenant."""

    window_s: float
    complete: bool
    arrivals: int
    rejected: dict[str, int]
    queued_now: int
    queued_tokens: int
    isl: Histogram
    uncached_isl: Histogram
    osl: Histogram
    ttft_s: Histogram
    itl_s: Histogram
    bins: Edges
    prefill_s: list[_Triple]
    decode_s: list[_Triple]
    ranks: list[Rank]
    arrival_variation: float | None = None


class Observed(Struct, frozen=True, kw_only=True):
    """Of one deployment.

    workers:  that take requests, by role
    is_whole: has somebody answered, and each for all of the window? Else workers may be missing
    """

    traffic: Traffic
    passes: Mapping[Role, tuple[ForwardPass, ...]]
    workers: Mapping[Role, int]
    limits: Mapping[Role, Limits]
    is_whole: bool = True


def observed(
    answers: Sequence[Observation], *, window_s: float, ttft_s: float, itl_s: float
) -> Observed:
    """answers: of all selectors that may have had requests; none: nothing is known.

    ttft_s, itl_s: what has to be kept
    Raises ValueError when their histograms cannot be added.
    """
    ranks = _highest(answers)
    taking = [each for each in ranks if each.takes_requests]
    return Observed(
        traffic=_traffic(answers, window_s, ttft_s, itl_s),
        passes={
            role: tuple(_pass(each) for each in taking if each.scaled_as is role) for role in Role
        },
        workers={
            role: len({each.worker_id for each in taking if each.scaled_as is role})
            for role in Role
        },
        limits={role: _limits([e for e in taking if e.scaled_as is role]) for role in Role},
        is_whole=bool(answers) and all(each.complete for each in answers),
    )


def _traffic(
    answers: Sequence[Observation], window_s: float, ttft_s: float, itl_s: float
) -> Traffic:
    if not answers:
        return Traffic(duration_s=window_s)
    edges = answers[0].bins
    isl, uncached, osl, ttft, itl = (
        _sum([getattr(each, name) for each in answers])
        for name in ("isl", "uncached_isl", "osl", "ttft_s", "itl_s")
    )
    found = Traffic(
        duration_s=max(each.window_s for each in answers),
        requests=float(sum(each.arrivals for each in answers)),
        isl=isl.mean,
        osl=osl.mean,
        kv_hit_rate=1.0 - uncached.sum / isl.sum if isl.sum else None,
        uncached_isl=bins_of(uncached, edges.tokens),
        context=_shifted(bins_of(isl, edges.tokens), (osl.mean or 0.0) / 2.0),
        arrival_variation=_variation(answers),
        prefill_samples=tuple(
            PrefillSample(*each) for each in _even([a.prefill_s for a in answers])
        ),
        decode_samples=tuple(DecodeSample(*each) for each in _even([a.decode_s for a in answers])),
        rejected=float(sum(sum(each.rejected.values()) for each in answers)),
        queued_requests=float(sum(each.queued_now for each in answers)),
        queued_tokens=float(sum(each.queued_tokens for each in answers)),
        ttft_met=part_below(ttft, edges.seconds, ttft_s),
        itl_met=part_below(itl, edges.seconds, itl_s),
        ttft_s=ttft.mean,
        itl_s=itl.mean,
    )
    is_whole = all(each.complete for each in answers)
    return found if is_whole else replace(found, duration_s=window_s).without_totals()


def bins_of(histogram: Histogram, edges: Sequence[float]) -> Bins | None:
    """Bins with their middles in the logarithm, shifted alike until their sum is the true one."""
    middles = [sqrt(low * high) for low, high in pairwise(edges)]
    found = [(m, n) for m, n in zip(middles, histogram.counts, strict=False) if n > 0]
    total = sum(middle * count for middle, count in found)
    if not found or total <= 0.0:
        return None
    factor = histogram.sum / total
    return Bins(
        means=tuple(middle * factor for middle, _ in found),
        counts=tuple(float(count) for _, count in found),
    )


def part_below(histogram: Histogram, edges: Sequence[float], limit: float) -> float | None:
    """Part of the values up to `limit`; inside of a bin they lie evenly. None: no values."""
    if not histogram.total:
        return None
    below = 0.0
    for (low, high), count in zip(pairwise(edges), histogram.counts, strict=False):
        below += count * min(1.0, max(0.0, (limit - low) / (high - low)))
    return below / histogram.total


def _shifted(found: Bins | None, by: float) -> Bins | None:
    if found is None:
        return None
    return Bins(means=tuple(mean + by for mean in found.means), counts=found.counts)


def _sum(histograms: Sequence[Histogram]) -> Histogram:
    counts = [sum(column) for column in zip(*(each.counts for each in histograms), strict=True)]
    return Histogram(counts, sum(each.sum for each in histograms))


def _variation(answers: Sequence[Observation]) -> float | None:
    """Of streams that are laid over each other: weighted by their arrivals.

    Source: the index of dispersion of a sum of independent streams is the weighted mean of theirs.
    """
    known = [
        (each.arrival_variation, each.arrivals)
        for each in answers
        if each.arrival_variation is not None and each.arrivals
    ]
    total = sum(arrivals for _, arrivals in known)
    return sum(value * arrivals for value, arrivals in known) / total if total else None


def _even(of_all: Sequence[Sequence[Sequence[float]]]) -> list[Sequence[float]]:
    samples = [each for samples in of_all for each in samples]
    if len(samples) <= SAMPLES_MAX:
        return samples
    return [samples[i * len(samples) // SAMPLES_MAX] for i in range(SAMPLES_MAX)]


def _highest(answers: Sequence[Observation]) -> list[Rank]:
    """Every rank once, with the highest load that a selector knows of; out of rotation counts."""
    found: dict[tuple[int, int], Rank] = {}
    for each in (rank for answer in answers for rank in answer.ranks):
        key = each.worker_id, each.dp_rank
        other = found.get(key)
        if other is None or _order(each) > _order(other):
            found[key] = each
    return [found[key] for key in sorted(found)]


def _order(rank: Rank) -> tuple[bool, int, int]:
    return not rank.takes_requests, rank.active_prefill_tokens, rank.active_blocks


def _pass(rank: Rank) -> ForwardPass:
    """What waits is all that a selector knows: it sees no iterations."""
    return ForwardPass(
        worker=str(rank.worker_id),
        rank=rank.dp_rank,
        decode_requests=rank.live_requests,
        decode_kv_tokens=rank.active_blocks * (rank.block_size or 0),
        queued_prefill_tokens=rank.active_prefill_tokens,
        booked=True,
    )


def _limits(ranks: Sequence[Rank]) -> Limits:
    """The smallest that any rank has said."""
    batches = [e.max_num_batched_tokens for e in ranks if e.max_num_batched_tokens is not None]
    blocks = [
        each.total_kv_blocks * each.block_size
        for each in ranks
        if each.total_kv_blocks is not None and each.block_size is not None
    ]
    return Limits(
        max_num_batched_tokens=min(batches, default=None),
        max_kv_tokens=min(blocks, default=None),
    )
