"""Published rules of other routers for ranks that do both, with the knowledge of the core.

The core matches prompts and holds reservations; the rule chooses. R are live requests of a rank, u
the prompt tokens that it does not hold, P its unfinished prefill work. The lowest cost wins, ties
are random.

LMetric             (P + u) * (R + 1);  LMetric u: u * (R + 1), the form of the paper
                    (arXiv 2603.15202);  LMetric runs: (P + u) * (R + 1), where u also lacks what
                    live requests compute, as in `work`
llm-d               scorers for prefix, use of the cache and queue with weights 3, 2 and 2, read
                    every 50 ms;  llm-d speculative: blocks of bookings count for 2 s
load-aware          vLLM's production stack: u / isl + beta * (R - mean) / max(1, mean), beta 1
                    (its default) or 0.5
Dynamo predicted    Dynamo 1.6 with DYN_ROUTER_PREDICTED_TTL_SECS=2: `reference`, where a rank also
                    holds the blocks of its bookings of the last 2 s
AIBrix              its prefix-cache rule: missing share and requests

SMG's `cache_aware` is `prefix tree`; hashes of the session with and without bounded load are
`bounded hash` and `hash`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scripts.bench.quality.rank_states import PredictedBlocks, RankStates, StateReader
from select_service.core.array_types import Floats
from select_service.schemas.reservations import ReservationRequest
from select_service.sim.engine.core_router import (
    MODEL,
    USUAL,
    CoreRouter,
    CoreScene,
    SelectorUsage,
)
from select_service.sim.engine.replay_world import RankRequest, ReplayWorld

Rule = Callable[[RankStates], Floats]
PREDICTED_S = 2.0


def lmetric_cost(state: RankStates) -> Floats:
    return (state.left + state.own) * (state.requests + 1)


def lmetric_own_cost(state: RankStates) -> Floats:
    return state.own * (state.requests + 1)


def lmetric_runs_cost(state: RankStates) -> Floats:
    return (state.left + state.work) * (state.requests + 1)


def llmd_cost(state: RankStates) -> Floats:
    longest = max(1.0, float(state.queue.max()))
    held = 1 - state.own / state.isl
    return -(3 * held + 2 * (1 - state.use) + 2 * (1 - state.queue / longest))


def load_aware_cost(state: RankStates, beta: float = 1.0) -> Floats:
    mean = float(state.requests.mean())
    return state.own / state.isl + beta * (state.requests - mean) / max(1.0, mean)


def dynamo_cost(state: RankStates) -> Floats:
    return (state.booked + state.own + state.active) / state.block


def aibrix_cost(state: RankStates) -> Floats:
    most = max(1.0, float(state.requests.max()))
    return 0.1 * 100 * state.own / state.isl + state.requests / most


class PeerRule(NamedTuple):
    """Rule of another router.

    predicted_s: time for which blocks of bookings count as held; 0 means not
    joins: whether these continue the blocks that events announced
    """

    cost: Rule
    predicted_s: float = 0.0
    joins: bool = False


PEER_RULES = {
    "LMetric": PeerRule(lmetric_cost),
    "LMetric u": PeerRule(lmetric_own_cost),
    "LMetric runs": PeerRule(lmetric_runs_cost),
    "llm-d": PeerRule(llmd_cost),
    "llm-d speculative": PeerRule(llmd_cost, PREDICTED_S, joins=True),
    "load-aware": PeerRule(load_aware_cost),
    "load-aware 0.5": PeerRule(lambda state: load_aware_cost(state, 0.5)),
    "Dynamo predicted": PeerRule(dynamo_cost, PREDICTED_S),
    "AIBrix": PeerRule(aibrix_cost),
}


class PeerRouter(CoreRouter):
    """Router that chooses by a rule and books at its core."""

    def __init__(self, scene: CoreScene, rule: PeerRule, setting: SelectorUsage = USUAL) -> None:
        super().__init__(scene, setting=setting)
        self._rule, self._states = rule, StateReader(self, scene)
        self._predicted = (
            PredictedBlocks(scene, rule.predicted_s, rule.joins) if rule.predicted_s else None
        )

    def join_world(self, world: ReplayWorld) -> None:
        super().join_world(world)
        if self._rule.cost is llmd_cost:
            self._states.read_metrics(world)

    def choose(self, ask: RankRequest, now: float) -> int:
        state = self._states.read_states(ask, now, self._predicted)
        costs = self._rule.cost(state)
        ties = np.flatnonzero(costs == costs.min())
        # The generator of the selector keeps runs reproducible.
        rank = int(ties[int(self.selector.decisions.rng.random() * len(ties))])
        request = ReservationRequest(
            model_name=MODEL,
            reservation_id=str(ask.number),
            worker_id=rank,
            effective_prefill_tokens=int(state.own[rank]),
        )
        self.selector.reserve(request, now, self.read_prompt(ask))
        if self._predicted is not None:
            self._predicted.book(rank, ask.chain, now)
        return rank
