"""How many replicas that prefill and decode keep both latencies, as often as was promised.

An iteration of such an engine has the tokens of all that decode in it, and as much prefill as room
is left for. So prefill waits longer the more requests live, requests live longer the more there is
to prefill, and what n replicas come to is a fixed point: of a part `busy` of the time with prefill,
in which tokens come at the pace of full iterations, and of the rest without.

The first token: a queue as of engines that only prefill, with the times at that decode load. The
others: a request has met a part of busy time that varies around `busy`, as much as the work does
that arrives while it lives (compound Poisson), among others whose number varies as well, and keeps
its target up to a part that follows from both paces. Both are taken for independent.
"""

from collections.abc import Callable
from math import erf, sqrt
from typing import NamedTuple

import numpy as np

from select_service.planner.core.inputs import Bins
from select_service.planner.core.sizing import (
    BUSY,
    KV_USED,
    QUANTILE_95,
    REPLICAS_MAX,
    Floats,
    PrefillQueue,
    erlang_c,
)

ROUNDS_MAX = 60
NEAR = 1e-3
"""Part of the live requests that a fixed point may be off."""
EXACT_ROUNDS = 8
EDGE = 1.03
"""Replicas that are a little too few keep not a little less but next to nothing, so that what is
not rounded is a little more than would just do."""
NODES = ((-sqrt(3.0), 1.0 / 6.0), (0.0, 2.0 / 3.0), (sqrt(3.0), 1.0 / 6.0))
"""Standard deviations from the mean of a normal variable, and weights: Gauss and Hermite."""
WIDEST = 8.0
"""Times its load that one replica is tried with, to say which part of it is used."""


class SharedEngine(NamedTuple):
    """What one replica does.

    iteration_s: seconds of (prefill tokens, requests that decode, their KV tokens)
    chunk:       tokens of one iteration
    accepted:    tokens of an answer in one iteration
    """

    iteration_s: Callable[[float, float, float], float]
    chunk: float
    kv_tokens: float
    seqs: int
    accepted: float


class SharedLoad(NamedTuple):
    """rate: requests/s;  lengths: uncached tokens of prompts;  osl: tokens of an answer
    mean_kv, square_kv: first and second moment of the KV tokens of a request"""

    rate: float
    lengths: Bins
    osl: float
    mean_kv: float
    square_kv: float
    arrival_variation: float


class Targets(NamedTuple):
    """What both latencies of a request may be at most."""

    ttft_s: float
    itl_s: float


class SharedSize(NamedTuple):
    """attainment: part of the requests that keep both;  reachable: of any number of replicas
    exact: before rounding, as the same load on the same replicas would be if it just fitted"""

    replicas: int
    attainment: float
    reachable: float
    exact: float


class Point(NamedTuple):
    """Where one replica settles.

    service_s: of each kind of prompt;  busy: part of the time with prefill in the iterations
    full_s, bare_s: seconds a token while there is prefill, and without
    """

    service_s: Floats
    busy: float
    full_s: float
    bare_s: float
    itl_s: float
    live: float


class Shared:
    """One kind of load on one kind of engine. Pure."""

    def __init__(self, load: SharedLoad, engine: SharedEngine, targets: Targets) -> None:
        self._load = load
        self._engine = engine
        self._targets = targets
        self._lengths = np.asarray(load.lengths.means, dtype=np.float64)
        counts = np.asarray(load.lengths.counts, dtype=np.float64)
        self._shares = counts / counts.sum()
        alone = engine.iteration_s(0.0, 1.0, load.mean_kv) / engine.accepted
        self._is_paceable = alone <= targets.itl_s
        idle = self._at(0.0, 0.0)
        in_time = 0.0 if idle is None else float(self._shares @ (idle.service_s <= targets.ttft_s))
        self.reachable = in_time * self._is_paceable
        """Part of the requests that could keep both on any number of replicas."""
        self._in_time = in_time

    def size(self, wanted: float) -> SharedSize:
        """The fewest replicas that keep what is wanted of what can be kept.

        wanted: part of the requests that shall keep both
        """
        rate = self._load.rate
        low, high = 0, 1
        while not self._suffices(high, rate, wanted) and high < REPLICAS_MAX:
            low, high = high, min(REPLICAS_MAX, 2 * high)
        while high - low > 1:
            middle = (low + high) // 2
            if self._suffices(middle, rate, wanted):
                high = middle
            else:
                low = middle
        attained = self.attainment(high, rate)
        return SharedSize(high, attained, self.reachable, self._exact(high, wanted))

    def _suffices(self, replicas: int, rate: float, wanted: float) -> bool:
        """Where too much is out of reach: the same part of those that can be helped, and `BUSY`."""
        if self.reachable < wanted - 1e-12:
            point = self.settle(rate / replicas)
            if point is None or point.busy > BUSY:
                return False
            wanted *= self._in_time
        return self.attainment(replicas, rate) >= wanted - 1e-12

    def _exact(self, replicas: int, wanted: float) -> float:
        """By the largest rate that so many carry."""
        rate = self._load.rate
        low, high = 1.0, replicas / (replicas - 1.0) if replicas > 1 else WIDEST
        for _ in range(EXACT_ROUNDS):
            middle = (low + high) / 2.0
            if self._suffices(replicas, rate * middle, wanted):
                low = middle
            else:
                high = middle
        return min(float(replicas), EDGE * replicas / low)

    def attainment(self, replicas: int, rate: float) -> float:
        """Part of the requests that keep both, of what can be kept between tokens."""
        point = self.settle(rate / replicas)
        if point is None:
            return 0.0
        variation = max(1.0, self._load.arrival_variation)
        queue = PrefillQueue(point.service_s, self._shares, rate, variation)
        waits = erlang_c(replicas, queue.offered)
        first = queue.attainment(replicas, waits, self._targets.ttft_s)
        thinned = 1.0 + (variation - 1.0) / replicas
        return first * self._paced(point, rate / replicas, thinned)

    def settle(self, rate: float) -> Point | None:
        """Of one replica with so many requests/s.  None: it never does, or has no room."""
        live = 0.0
        for _ in range(ROUNDS_MAX):
            point = self._at(rate, live)
            if point is None:
                return None
            after = rate * self._load.osl * point.itl_s
            if after - live <= NEAR * after:
                return point if self._fits(after) else None
            live = after
        return None

    def _at(self, rate: float, live: float) -> Point | None:
        """With so many that decode. An iteration is taken to be linear in its prefill."""
        engine = self._engine
        room = engine.chunk - live
        if room < 1.0:
            return None
        kv = live * self._load.mean_kv
        bare = engine.iteration_s(0.0, live, kv)
        filled = engine.iteration_s(room, live, kv)
        whole, rest = np.divmod(self._lengths, room)
        service = whole * filled + np.where(rest > 0, bare + (filled - bare) * rest / room, 0.0)
        mean = float(service @ self._shares)
        busy = rate * mean
        if busy >= 1.0:
            return None
        full = mean / float((whole + (rest > 0)) @ self._shares)
        itl = 1.0 / (busy / full + (1.0 - busy) / bare)
        accepted = engine.accepted
        return Point(service, busy, full / accepted, bare / accepted, itl / accepted, live)

    def _fits(self, live: float) -> bool:
        load, engine = self._load, self._engine
        kv = live * load.mean_kv + QUANTILE_95 * sqrt(live * load.square_kv)
        return kv <= KV_USED * engine.kv_tokens and live <= engine.seqs

    def _paced(self, point: Point, rate: float, variation: float) -> float:
        """Part of the requests that keep the time between tokens.

        rate, variation: of the prompts of one replica
        """
        if not self._is_paceable:
            return 1.0
        away = sqrt(point.live)
        return sum(
            part * self._paced_among(rate, max(0.0, point.live + deviations * away), variation)
            for deviations, part in NODES
        )

    def _paced_among(self, rate: float, live: float, variation: float) -> float:
        """Among so many others."""
        point = self._at(rate, live)
        slo = self._targets.itl_s
        if point is None or point.bare_s >= slo:
            return 0.0
        if point.full_s <= slo:
            return 1.0
        allowed = (1.0 / point.bare_s - 1.0 / slo) / (1.0 / point.bare_s - 1.0 / point.full_s)
        of_work = rate * variation * float(point.service_s**2 @ self._shares)
        alive_s = self._load.osl * point.itl_s
        always = point.busy * (1.0 - point.busy)
        variance = always / (1.0 + always * alive_s / of_work)
        return 0.5 * (1.0 + erf((allowed - point.busy) / sqrt(2.0 * variance)))
