"""Sizing of prefill and decode for a latency target: queueing for prefill, batches for decode.

Prefill is a queue with n servers (GI/G/n). The wait of a request is 0 with probability 1 - C, C by
Erlang, and else exponential with the mean of Allen and Cunneen; its own time follows from the
prompt length.  Decode is no queue: the pace of a batch follows from its size. The number of live
requests and of their KV tokens varies around the mean (Little's law), so room is kept for the 95 %
quantile of both.

Source: A. O. Allen, Probability, Statistics, and Queueing Theory, 2nd ed. 1990, section 5.3.
"""

from collections.abc import Callable, Sequence
from math import ceil, floor, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from select_service.planner.core.performance.engine_capacity import largest_count
from select_service.planner.core.reasons import Reason
from select_service.planner.core.tick_input import LengthBins

REPLICAS_MAX = 10_000
"""Limit of any size."""
UTILISATION_MAX = 0.85
"""Utilisation to size for if no number of replicas keeps the target."""
KV_FILL_MAX = 0.95
"""Part of the KV cache that requests may fill."""
QUANTILE_95 = 1.645
"""Standard deviations of a normal variable up to its 95 % quantile."""

Floats = NDArray[np.float64]


class RoleSize(NamedTuple):
    """Size of a role.

    exact:      replicas before rounding, linear between the attainments of two counts
    attainment: part of the requests that keep the target with so many replicas
    wanted:     attainment sized for
    """

    replicas: int
    reason: Reason
    exact: float
    attainment: float | None = None
    wanted: float | None = None


class DecodeSize(NamedTuple):
    """Size of decode.

    batch: requests of a replica
    itl_s: seconds a token at that batch
    exact: replicas before rounding
    """

    replicas: int
    batch: int
    itl_s: float
    reason: Reason
    exact: float


class PrefillQueue(NamedTuple):
    """Queue of several kinds of requests: `service_s[i]` each, `shares[i]` of all (float64, sum 1).

    rate:              requests/s of all kinds
    arrival_variation: squared coefficient of variation of the times between arrivals
    """

    service_s: Floats
    shares: Floats
    rate: float
    arrival_variation: float

    @property
    def mean_s(self) -> float:
        """Mean service time, seconds."""
        return float(self.service_s @ self.shares)

    @property
    def busy_replicas(self) -> float:
        """Mean number of busy replicas."""
        return self.rate * self.mean_s

    def mean_variation(self) -> float:
        """Return (ca2 + cs2) / 2, the variation of arrivals and service."""
        mean = self.mean_s
        spread = float(((self.service_s - mean) ** 2) @ self.shares)
        # Allen-Cunneen: the wait of M/M/n times the mean of both squared coefficients of variation.
        return (self.arrival_variation + spread / (mean * mean)) / 2.0

    def reachable_part(self, slo_s: float) -> float:
        """Return the part of the requests that keep the target without any wait."""
        return float(self.shares @ (self.service_s <= slo_s))

    def attainment(self, replicas: int, waits: float, slo_s: float) -> float:
        """Return the part of the requests that keep the target.

        waits: Erlang's C of so many replicas.
        """
        free = replicas / self.mean_s - self.rate
        if free <= 0.0:
            return 0.0
        slack = slo_s - self.service_s
        in_time = 1.0 - waits * np.exp(-np.maximum(slack, 0.0) * free / self.mean_variation())
        return float(np.where(slack >= 0.0, in_time, 0.0) @ self.shares)


def make_prefill_queue(
    lengths: LengthBins, service_s: Sequence[float], rate: float, arrival_variation: float
) -> PrefillQueue:
    """Build the queue; service_s: time of a prompt of each length, seconds.

    Arrivals more regular than Poisson are taken as Poisson.
    """
    counts, service = np.array(lengths.counts, float), np.array(service_s, float)
    return PrefillQueue(service, counts / counts.sum(), rate, max(1.0, arrival_variation))


def erlang_c(servers: int, offered: float) -> float:
    """Return the probability that a request waits; 1 if the servers do not suffice.  O(servers)"""
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for busy in range(1, servers + 1):
        # Erlang B by its recursion: factorials would overflow beyond 170 servers.
        blocked = offered * blocked / (busy + offered * blocked)
    return _erlang_c_from_b(servers, offered, blocked)


def _erlang_c_from_b(servers: int, offered: float, blocked: float) -> float:
    """Return Erlang's C from Erlang's B."""
    return servers * blocked / (servers - offered * (1.0 - blocked))


def size_prefill(queue: PrefillQueue, slo_s: float, wanted: float) -> RoleSize:
    """Return the fewest replicas with which a part `wanted` keeps `slo_s`.  O(replicas * kinds)"""
    if queue.rate <= 0.0:
        return RoleSize(0, Reason.IDLE, 0.0, 1.0)
    if queue.reachable_part(slo_s) < wanted - 1e-12:
        # Some prompts are too long for the target on an idle engine. More replicas cannot help
        # those, so the size only keeps the utilisation reasonable.
        replicas = min(REPLICAS_MAX, max(1, ceil(queue.busy_replicas / UTILISATION_MAX - 1e-9)))
        waits = erlang_c(replicas, queue.busy_replicas)
        attained = queue.attainment(replicas, waits, slo_s)
        return RoleSize(replicas, Reason.SLO_OUT_OF_REACH, replicas, attained)
    blocked, offered, attained, before = 1.0, queue.busy_replicas, 0.0, 0.0
    for replicas in range(1, REPLICAS_MAX + 1):
        blocked = offered * blocked / (replicas + offered * blocked)
        if replicas <= offered:
            continue
        before = attained
        attained = queue.attainment(replicas, _erlang_c_from_b(replicas, offered, blocked), slo_s)
        if attained >= wanted - 1e-12:
            # Attainment between two counts is interpolated, so that the stabiliser sees small
            # changes.
            part = (wanted - before) / (attained - before) if attained > wanted else 1.0
            return RoleSize(replicas, Reason.SCALE, replicas - 1 + max(0.0, part), attained)
    return RoleSize(REPLICAS_MAX, Reason.SLO_OUT_OF_REACH, REPLICAS_MAX, attained)


class DecodeLoad(NamedTuple):
    """Load of decode. mean_kv, square_kv: first and second moment of the KV tokens of a request"""

    rate: float
    osl: float
    mean_kv: float
    square_kv: float


class DecodeCapability(NamedTuple):
    """Capability of a replica. itl_s: seconds a token of (requests, KV tokens)"""

    itl_s: Callable[[float, float], float]
    kv_tokens: float
    seqs: int


def first_two_moments(contexts: LengthBins) -> tuple[float, float]:
    """Return the first and second moment."""
    counts = np.asarray(contexts.counts, dtype=np.float64)
    means = np.asarray(contexts.means, dtype=np.float64)
    shares = counts / counts.sum()
    return float(means @ shares), float((means * means) @ shares)


def size_decode(load: DecodeLoad, engine: DecodeCapability, slo_s: float) -> DecodeSize:
    """Return the replicas for the largest batch that keeps `slo_s`, with room for the KV cache."""
    room = KV_FILL_MAX * engine.kv_tokens
    # 1e-9 absorbs rounding: an exact fit must not lose a request.
    fits = max(1, min(engine.seqs, floor(room / max(load.mean_kv, 1.0) + 1e-9)))
    # Larger batches are never faster, so the batches that keep the target are a prefix.
    batch = largest_count(1, fits, lambda n: engine.itl_s(n, n * load.mean_kv) <= slo_s)
    itl = engine.itl_s(batch, batch * load.mean_kv)
    live = load.rate * load.osl * itl
    # Both the number of live requests and their tokens fluctuate; the larger need counts.
    by_batch = (live + QUANTILE_95 * sqrt(live)) / batch
    by_cache = (live * load.mean_kv + QUANTILE_95 * sqrt(live * load.square_kv)) / room
    exact = min(float(REPLICAS_MAX), max(by_batch, by_cache))
    replicas = ceil(exact - 1e-9)
    reason = Reason.SCALE if itl <= slo_s else Reason.SLO_OUT_OF_REACH
    return DecodeSize(replicas, batch, itl, reason, exact)


class MissCorrection:
    """Measured error of the queue model, which has a single queue instead of a queue a replica.

    Smoothed ratio of observed to predicted misses. It falls faster than it rises: a disturbance of
    the host says little about queues, and must not hold replicas long after its end.
    """

    WEIGHT, FALLING_WEIGHT = 0.2, 0.5
    FLOOR = 0.01
    """Part added to both, so that few requests have little weight."""
    LEAST, MOST = 0.5, 3.0

    def __init__(self) -> None:
        self._ratio = 1.0

    @property
    def miss_ratio(self) -> float:
        """Ratio of observed to predicted misses."""
        return self._ratio

    def observe_window(self, missed: float, predicted: float) -> None:
        """Add a window; both as parts of the requests, 0 to 1, without requests beyond help."""
        ratio = (missed + self.FLOOR) / (predicted + self.FLOOR)
        # Bounded before it is smoothed: a single window of a broken engine would otherwise order
        # as many replicas as many windows of misses.
        bounded = min(self.MOST, max(self.LEAST, ratio))
        weight = self.WEIGHT if bounded > self._ratio else self.FALLING_WEIGHT
        self._ratio += weight * (bounded - self._ratio)
