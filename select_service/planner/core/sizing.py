"""How many replicas keep a latency target: queueing for prefill, batches for decode.

Prefill is a queue with n servers (GI/G/n). What a request waits is 0 with probability 1 - C, C by
Erlang, and else exponential with the mean of Allen and Cunneen; what it takes itself is known from
the length of its prompt.  Decode is no queue: a batch runs at the pace that its size allows, and
the number of live requests and of their KV tokens varies around its mean (Little's law), so that
room is kept for the 95 % quantile of both.

Source: A. O. Allen, Probability, Statistics, and Queueing Theory, 2nd ed. 1990, section 5.3.
"""

from collections.abc import Callable
from math import ceil, floor, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from select_service.planner.core.inputs import Bins
from select_service.planner.core.reasons import Reason

REPLICAS_MAX = 10_000
"""No answer is larger."""
BUSY = 0.85
"""Utilisation that is sized for where no number keeps the target."""
KV_USED = 0.95
"""Part of the KV cache that requests may fill."""
QUANTILE_95 = 1.645
"""Standard deviations of a normal variable up to its 95 % quantile."""

Floats = NDArray[np.float64]


class PrefillSize(NamedTuple):
    """attainment: part of the requests that keep the target with so many replicas

    exact: before rounding, on a straight line between the attainments of two numbers
    """

    replicas: int
    attainment: float
    reason: Reason
    exact: float


class DecodeSize(NamedTuple):
    """batch: requests of one replica;  itl_s: seconds a token at that batch;  exact: not rounded"""

    replicas: int
    batch: int
    itl_s: float
    reason: Reason
    exact: float


class PrefillQueue(NamedTuple):
    """Requests of several kinds: `service_s[i]` each, `shares[i]` of them (float64, sum 1).

    rate:              requests/s in all
    arrival_variation: squared coefficient of variation of the times between arrivals
    """

    service_s: Floats
    shares: Floats
    rate: float
    arrival_variation: float

    @property
    def mean_s(self) -> float:
        return float(self.service_s @ self.shares)

    @property
    def offered(self) -> float:
        """Replicas that are busy on average."""
        return self.rate * self.mean_s

    def variation(self) -> float:
        """(ca2 + cs2) / 2"""
        mean = self.mean_s
        spread = float(((self.service_s - mean) ** 2) @ self.shares)
        return (self.arrival_variation + spread / (mean * mean)) / 2.0

    def reachable(self, slo_s: float) -> float:
        """Part of the requests that keep the target when nobody waits."""
        return float(self.shares @ (self.service_s <= slo_s))

    def attainment(self, replicas: int, waits: float, slo_s: float) -> float:
        """waits: of Erlang for so many replicas"""
        free = replicas / self.mean_s - self.rate
        if free <= 0.0:
            return 0.0
        slack = slo_s - self.service_s
        in_time = 1.0 - waits * np.exp(-np.maximum(slack, 0.0) * free / self.variation())
        return float(np.where(slack >= 0.0, in_time, 0.0) @ self.shares)


def prefill_queue(
    lengths: Bins, seconds: Callable[[float], float], rate: float, arrival_variation: float
) -> PrefillQueue:
    """seconds: of one prompt of so many uncached tokens.  Less than Poisson is taken as Poisson."""
    counts = np.asarray(lengths.counts, dtype=np.float64)
    service = np.asarray([seconds(mean) for mean in lengths.means], dtype=np.float64)
    return PrefillQueue(service, counts / counts.sum(), rate, max(1.0, arrival_variation))


def erlang_c(servers: int, offered: float) -> float:
    """The probability that a request waits; 1 where the servers do not suffice.  O(servers)"""
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for busy in range(1, servers + 1):
        blocked = offered * blocked / (busy + offered * blocked)
    return _waits(servers, offered, blocked)


def _waits(servers: int, offered: float, blocked: float) -> float:
    """Erlang's C from his B."""
    return servers * blocked / (servers - offered * (1.0 - blocked))


def prefill_replicas(queue: PrefillQueue, slo_s: float, wanted: float) -> PrefillSize:
    """The fewest replicas of which a part of `wanted` keeps `slo_s`.  O(replicas * kinds)"""
    if queue.rate <= 0.0:
        return PrefillSize(0, 1.0, Reason.IDLE, 0.0)
    if queue.reachable(slo_s) < wanted - 1e-12:
        replicas = min(REPLICAS_MAX, max(1, ceil(queue.offered / BUSY - 1e-9)))
        waits = erlang_c(replicas, queue.offered)
        attained = queue.attainment(replicas, waits, slo_s)
        return PrefillSize(replicas, attained, Reason.SLO_OUT_OF_REACH, replicas)
    blocked, offered, attained, before = 1.0, queue.offered, 0.0, 0.0
    for replicas in range(1, REPLICAS_MAX + 1):
        blocked = offered * blocked / (replicas + offered * blocked)
        if replicas <= offered:
            continue
        before = attained
        attained = queue.attainment(replicas, _waits(replicas, offered, blocked), slo_s)
        if attained >= wanted - 1e-12:
            part = (wanted - before) / (attained - before) if attained > wanted else 1.0
            return PrefillSize(replicas, attained, Reason.SCALE, replicas - 1 + max(0.0, part))
    return PrefillSize(REPLICAS_MAX, attained, Reason.SLO_OUT_OF_REACH, REPLICAS_MAX)


class DecodeLoad(NamedTuple):
    """mean_kv, square_kv: first and second moment of the KV tokens of a request"""

    rate: float
    osl: float
    mean_kv: float
    square_kv: float


class DecodeEngine(NamedTuple):
    """What one replica holds. itl_s: seconds a token of (requests, KV tokens)"""

    itl_s: Callable[[float, float], float]
    kv_tokens: float
    seqs: int


def moments(contexts: Bins) -> tuple[float, float]:
    """First and second moment."""
    counts = np.asarray(contexts.counts, dtype=np.float64)
    means = np.asarray(contexts.means, dtype=np.float64)
    shares = counts / counts.sum()
    return float(means @ shares), float((means * means) @ shares)


def decode_replicas(load: DecodeLoad, engine: DecodeEngine, slo_s: float) -> DecodeSize:
    """Replicas for the largest batch that keeps `slo_s`, with room for the KV cache."""
    room = KV_USED * engine.kv_tokens
    fits = max(1, min(engine.seqs, floor(room / max(load.mean_kv, 1.0) + 1e-9)))
    batch = _largest_batch(load.mean_kv, engine, slo_s, fits)
    itl = engine.itl_s(batch, batch * load.mean_kv)
    live = load.rate * load.osl * itl
    by_batch = (live + QUANTILE_95 * sqrt(live)) / batch
    by_cache = (live * load.mean_kv + QUANTILE_95 * sqrt(live * load.square_kv)) / room
    exact = min(float(REPLICAS_MAX), max(by_batch, by_cache))
    replicas = ceil(exact - 1e-9)
    reason = Reason.SCALE if itl <= slo_s else Reason.SLO_OUT_OF_REACH
    return DecodeSize(replicas, batch, itl, reason, exact)


def _largest_batch(context: float, engine: DecodeEngine, slo_s: float, fits: int) -> int:
    """By bisection: a larger batch is never faster.  1 where none keeps the target."""
    low, high = 1, fits
    while low < high:
        middle = (low + high + 1) // 2
        if engine.itl_s(middle, middle * context) <= slo_s:
            low = middle
        else:
            high = middle - 1
    return low


class MissCorrection:
    """What the queue does not know (one queue for each replica, not one for all), measured.

    The ratio of misses that were observed to those that were predicted, smoothed.
    """

    WEIGHT = 0.2
    FLOOR = 0.01
    """Added to both, so that few requests say little."""
    LEAST, MOST = 0.5, 3.0

    def __init__(self) -> None:
        self._ratio = 1.0

    @property
    def factor(self) -> float:
        return self._ratio

    def observe(self, missed: float, predicted: float) -> None:
        """Both as parts of the requests, 0 to 1, without those that nobody can help."""
        ratio = (missed + self.FLOOR) / (predicted + self.FLOOR)
        smoothed = self._ratio + self.WEIGHT * (ratio - self._ratio)
        self._ratio = min(self.MOST, max(self.LEAST, smoothed))

    def check_invariants(self) -> None:
        """For tests."""
        assert self.LEAST <= self.factor <= self.MOST
