"""Sizing of engines that prefill and decode, for both latencies at once.

An iteration of such an engine has the tokens of all decoding requests, and prefill as far as room
is left. So prefill waits longer with more live requests, and requests live longer with more
prefill: the state of n replicas is a fixed point. In a part `busy` of the time, iterations contain
prefill and tokens come at the pace of full iterations; in the rest there is no prefill.

The first token: a queue as for engines that only prefill, with the times at that decode load. The
others: a request has met a part of busy time that varies around `busy`, as much as the work varies
that arrives during its life (compound Poisson), among a varying number of other requests. The
request keeps its target up to a part that follows from both paces. Both latencies are taken to be
independent.
"""

from collections.abc import Callable
from math import erf, sqrt
from typing import NamedTuple

import numpy as np

from select_service.planner.core.forecast_contracts import LatencyTargets
from select_service.planner.core.proposers.queue_sizing import (
    KV_FILL_MAX,
    QUANTILE_95,
    REPLICAS_MAX,
    UTILISATION_MAX,
    Floats,
    PrefillQueue,
    erlang_c,
)
from select_service.planner.core.tick_input import LengthBins

ROUNDS_MAX = 60
CONVERGENCE_PART = 1e-3
"""Tolerance of a fixed point, as part of the live requests."""
EXACT_ROUNDS = 8
ROUNDING_MARGIN = 1.03
"""Margin of the unrounded size: slightly too few replicas keep almost nothing, not slightly
less.
"""
GAUSS_HERMITE_NODES = ((-sqrt(3.0), 1.0 / 6.0), (0.0, 2.0 / 3.0), (sqrt(3.0), 1.0 / 6.0))
"""Gauss-Hermite nodes of a normal variable: standard deviations from the mean, and weights."""
LOAD_MULTIPLE_MAX = 8.0
"""Maximum multiple of the load tried on a single replica, to find its used part."""


class SharedEngine(NamedTuple):
    """Capability of a replica.

    iteration_s: seconds of (prefill tokens, decoding requests, their KV tokens)
    chunk:       tokens of an iteration
    kv_tokens:   KV tokens that fit
    seqs:        requests that fit
    accepted:    tokens of an answer generated in an iteration
    """

    iteration_s: Callable[[float, float, float], float]
    chunk: float
    kv_tokens: float
    seqs: int
    accepted: float


class SharedLoad(NamedTuple):
    """Load of a deployment.

    rate:               requests/s
    lengths:            uncached tokens of prompts
    osl:                tokens of an answer
    mean_kv, square_kv: first and second moment of the KV tokens of a request
    arrival_variation:  squared coefficient of variation of the times between arrivals
    """

    rate: float
    lengths: LengthBins
    osl: float
    mean_kv: float
    square_kv: float
    arrival_variation: float


class SharedSize(NamedTuple):
    """Size of a deployment.

    replicas:   fewest replicas that keep the target
    attainment: part of the requests that keep both latencies
    reachable:  part that could keep both on any number of replicas
    exact:      replicas before rounding
    """

    replicas: int
    attainment: float
    reachable: float
    exact: float


class SharedPoint(NamedTuple):
    """Fixed point of a replica.

    service_s:      prefill seconds of each kind of prompt
    busy:           part of the time in iterations with prefill
    full_s, bare_s: seconds a token with prefill, and without
    itl_s:          mean seconds a token
    live:           live requests
    """

    service_s: Floats
    busy: float
    full_s: float
    bare_s: float
    itl_s: float
    live: float


class SharedSizing:
    """Sizing of one kind of load on one kind of engine. Pure."""

    def __init__(self, load: SharedLoad, engine: SharedEngine, targets: LatencyTargets) -> None:
        self._load = load
        self._engine = engine
        self._ttft_s, self._itl_s = targets.ttft_ms / 1e3, targets.itl_ms / 1e3
        self._lengths = np.asarray(load.lengths.means, dtype=np.float64)
        counts = np.asarray(load.lengths.counts, dtype=np.float64)
        self._shares = counts / counts.sum()
        # If even a single request is too slow, no number of replicas helps the time between tokens,
        # so the size follows from the first token alone.
        alone = engine.iteration_s(0.0, 1.0, load.mean_kv) / engine.accepted
        self._is_paceable = alone <= self._itl_s
        idle = self._state_at(0.0, 0.0)
        in_time = 0.0 if idle is None else float(self._shares @ (idle.service_s <= self._ttft_s))
        self.reachable = in_time * self._is_paceable
        """Part of the requests that could keep both latencies on any number of replicas."""
        self._in_time = in_time

    def size_replicas(self, wanted: float) -> SharedSize:
        """Return the fewest replicas that reach the attainment.

        wanted: part of the requests that shall keep both latencies
        """
        rate = self._load.rate
        low, high = 0, 1
        # Doubling first: bisection needs an upper bound, and sizes range from 1 to thousands.
        while not self._is_sufficient(high, rate, wanted) and high < REPLICAS_MAX:
            low, high = high, min(REPLICAS_MAX, 2 * high)
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_sufficient(middle, rate, wanted):
                high = middle
            else:
                low = middle
        attained = self.attainment(high, rate)
        return SharedSize(high, attained, self.reachable, self._exact_replicas(high, wanted))

    def _is_sufficient(self, replicas: int, rate: float, wanted: float) -> bool:
        """Return whether so many replicas reach the attainment.

        An unreachable attainment is replaced by the same part of the helpable requests, with a
        limit of the utilisation.
        """
        if self.reachable < wanted - 1e-12:
            point = self.find_fixed_point(rate / replicas)
            if point is None or point.busy > UTILISATION_MAX:
                return False
            wanted *= self._in_time
        return self.attainment(replicas, rate) >= wanted - 1e-12

    def _exact_replicas(self, replicas: int, wanted: float) -> float:
        """Return the replicas before rounding, by the largest rate that so many replicas carry."""
        rate = self._load.rate
        # At the upper multiple each replica has the load of one replica less, which does not
        # suffice.
        low, high = 1.0, replicas / (replicas - 1.0) if replicas > 1 else LOAD_MULTIPLE_MAX
        for _ in range(EXACT_ROUNDS):
            middle = (low + high) / 2.0
            if self._is_sufficient(replicas, rate * middle, wanted):
                low = middle
            else:
                high = middle
        return min(float(replicas), ROUNDING_MARGIN * replicas / low)

    def attainment(self, replicas: int, rate: float) -> float:
        """Return the part of the requests that keep both latencies.

        A time between tokens that no engine can keep is left out.
        """
        point = self.find_fixed_point(rate / replicas)
        if point is None:
            return 0.0
        variation = max(1.0, self._load.arrival_variation)
        queue = PrefillQueue(point.service_s, self._shares, rate, variation)
        waits = erlang_c(replicas, queue.busy_replicas)
        first = queue.attainment(replicas, waits, self._ttft_s)
        # Random splitting of a stream over n replicas makes each part more regular, close to
        # Poisson.
        thinned = 1.0 + (variation - 1.0) / replicas
        return first * self._paced_part(point, rate / replicas, thinned)

    def find_fixed_point(self, rate: float) -> SharedPoint | None:
        """Return the fixed point of a replica with so many requests/s.

        None if unstable or without room.
        """
        live = 0.0
        for _ in range(ROUNDS_MAX):
            point = self._state_at(rate, live)
            if point is None:
                return None
            after = rate * self._load.osl * point.itl_s
            # The iteration starts at 0 and grows monotonically, so the first fixed point is the
            # stable one.
            if after - live <= CONVERGENCE_PART * after:
                return point if self._fits_memory(after) else None
            live = after
        return None

    def _state_at(self, rate: float, live: float) -> SharedPoint | None:
        """Return the state with `live` decoding requests.

        An iteration is taken to be linear in its prefill.
        """
        engine = self._engine
        # Every decoding request takes one token of an iteration's budget; prefill gets the rest.
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
        # The mean pace is the mean of rates, not of times: hence the harmonic mean.
        itl = 1.0 / (busy / full + (1.0 - busy) / bare)
        accepted = engine.accepted
        return SharedPoint(service, busy, full / accepted, bare / accepted, itl / accepted, live)

    def _fits_memory(self, live: float) -> bool:
        """Return whether so many live requests fit into the KV cache and the sequences."""
        load, engine = self._load, self._engine
        kv = live * load.mean_kv + QUANTILE_95 * sqrt(live * load.square_kv)
        return kv <= KV_FILL_MAX * engine.kv_tokens and live <= engine.seqs

    def _paced_part(self, point: SharedPoint, rate: float, variation: float) -> float:
        """Return the part of the requests that keep the time between tokens.

        rate, variation: prompts of a replica, requests/s and arrival variation
        """
        if not self._is_paceable:
            return 1.0
        # Live requests are Poisson distributed (infinite servers), so their deviation is the root.
        away = sqrt(point.live)
        return sum(
            part * self._paced_part_among(rate, max(0.0, point.live + deviations * away), variation)
            for deviations, part in GAUSS_HERMITE_NODES
        )

    def _paced_part_among(self, rate: float, live: float, variation: float) -> float:
        """Return that part for a given number of live requests."""
        point = self._state_at(rate, live)
        slo = self._itl_s
        if point is None or point.bare_s >= slo:
            return 0.0
        if point.full_s <= slo:
            return 1.0
        allowed = (1.0 / point.bare_s - 1.0 / slo) / (1.0 / point.bare_s - 1.0 / point.full_s)
        of_work = rate * variation * float(point.service_s**2 @ self._shares)
        alive_s = self._load.osl * point.itl_s
        always = point.busy * (1.0 - point.busy)
        # Interpolates between a request shorter than a busy period (all or nothing) and a long one,
        # over which busy time averages out.
        variance = always / (1.0 + always * alive_s / of_work)
        return 0.5 * (1.0 + erf((allowed - point.busy) / sqrt(2.0 * variance)))
