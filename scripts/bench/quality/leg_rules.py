"""Rules of other routers for prefill and decode apart, as published, on what a selector knows.

The core matches prompts and holds the reservations of both legs; the rule chooses. Costs are of
every rank; the lowest wins, ties are random.

prefill first       Dynamo's cost for each leg: blocks to compute + active blocks, for the decode
                    leg active blocks alone
llm-d N             the decode leg first, by prefix, use of the cache and queue with weights 3, 2
                    and 2, read every 50 ms; this leg does both if less than N tokens are missing,
                    else the prefill leg is chosen in the same way
SMG                 prefill as SGLang's router does (`cache_aware`), decode: the less busy of two
AIBrix              matched share and requests for the prefill leg, requests for the decode leg
LMetric             (work left + own work) * (requests + 1) for the prefill leg, least requests for
                    the decode leg
work apart          the policy `work` for each leg by itself; the decode leg computes nothing
"""

from typing import NamedTuple

import numpy as np

from scripts.bench.quality.peer_rules import (
    Rule,
    aibrix_cost,
    dynamo_cost,
    llmd_cost,
    lmetric_cost,
)
from scripts.bench.quality.rank_states import RankStates, StateReader
from select_service.core.array_types import Floats
from select_service.schemas.reservations import ReservationRequest
from select_service.sim.engine.core_router import MODEL, CoreScene
from select_service.sim.engine.pair_fleet import PairFleet
from select_service.sim.engine.pair_world import CorePairRouter, RankPair
from select_service.sim.engine.prefix_tree_router import PrefixTreeRouter
from select_service.sim.engine.replay_world import RankRequest, ReplayWorld


def dynamo_decode(state: RankStates) -> Floats:
    return state.active / state.block


def work_cost(state: RankStates) -> Floats:
    share = np.minimum(state.requests / 32, 4.0) * np.minimum(state.work, 16_384.0)
    over = np.maximum(0.0, state.active - 0.95 * state.memory)
    cost: Floats = state.left + state.work + share + 256 * state.requests + over
    return cost


def work_decode(state: RankStates) -> Floats:
    nothing = np.ones_like(state.work)
    return work_cost(state._replace(left=nothing, work=nothing))


def least_requests(state: RankStates) -> Floats:
    return state.requests


class LegRule(NamedTuple):
    """Rule of both legs.  local_below: missing tokens below which the decode rank does both"""

    prefill: Rule
    decode: Rule
    local_below: int = 0


LEG_RULES = {
    "prefill first": LegRule(dynamo_cost, dynamo_decode),
    "llm-d 512": LegRule(llmd_cost, llmd_cost, 512),
    "llm-d 2048": LegRule(llmd_cost, llmd_cost, 2048),
    "llm-d 8192": LegRule(llmd_cost, llmd_cost, 8192),
    "AIBrix": LegRule(aibrix_cost, least_requests),
    "LMetric": LegRule(lmetric_cost, least_requests),
    "work apart": LegRule(work_cost, work_decode),
}


class LegRouter(CorePairRouter):
    """Router that chooses both legs by a rule and books them apart."""

    def __init__(self, scene: CoreScene, pairs: PairFleet, rule: LegRule) -> None:
        super().__init__(scene)
        self._rule, self._states = rule, StateReader(self, scene)
        self._prefills, self._decodes = pairs.ranks_of("prefill"), pairs.ranks_of("decode")

    def join_world(self, world: ReplayWorld) -> None:
        super().join_world(world)
        if llmd_cost in (self._rule.prefill, self._rule.decode):
            self._states.read_metrics(world)

    def _least(self, costs: Floats, ranks: list[int]) -> int:
        there = costs[ranks]
        ties = np.flatnonzero(there == there.min())
        return ranks[int(ties[int(self.selector.decisions.rng.random() * len(ties))])]

    def choose_pair(self, ask: RankRequest, now: float) -> RankPair:
        state = self._states.read_states(ask)
        decode = self._least(self._rule.decode(state), self._decodes)
        prefill = None
        if state.own[decode] >= self._rule.local_below:
            prefill = self._pick_prefill(ask, state)
        self._book(ask, state, RankPair(prefill, decode), now)
        return RankPair(prefill, decode)

    def _pick_prefill(self, ask: RankRequest, state: RankStates) -> int:
        return self._least(self._rule.prefill(state), self._prefills)

    def _book(self, ask: RankRequest, state: RankStates, pair: RankPair, now: float) -> None:
        name = str(ask.number)
        if pair.prefill is None:
            self._reserve(ask, name, pair.decode, state, now)
            return
        self._reserve(ask, f"{name} prefill", pair.prefill, state, now)
        self._reserve(ask, name, pair.decode, None, now)

    def _reserve(
        self, ask: RankRequest, name: str, rank: int, state: RankStates | None, now: float
    ) -> None:
        """state: None means that the rank computes nothing"""
        request = ReservationRequest(
            model_name=MODEL,
            reservation_id=name,
            worker_id=rank,
            effective_prefill_tokens=0 if state is None else int(state.work[rank]),
        )
        self.selector.reserve(request, now, self.read_prompt(ask))
        if state is None:
            self.selector.complete_prefill(name, now)

    def prefill_complete(self, number: int, now: float) -> None:
        self.selector.complete_prefill(f"{number} prefill", now)
        self.selector.free_reservation(f"{number} prefill", now)

    def first_token(self, number: int, now: float) -> None:
        self.selector.complete_prefill(str(number), now)


class SmgRouter(LegRouter):
    """Router with its own history for prefill legs and the better of two random decode ranks."""

    def __init__(self, scene: CoreScene, pairs: PairFleet) -> None:
        super().__init__(scene, pairs, LegRule(least_requests, least_requests))
        self._tree = PrefixTreeRouter(len(self._prefills), scene.seed, scene.n_blocks)

    def choose_pair(self, ask: RankRequest, now: float) -> RankPair:
        state, rng = self._states.read_states(ask), self.selector.decisions.rng
        decode = self._least(state.requests, rng.sample(self._decodes, 2))
        at = self._tree.choose(ask, now)
        assert at is not None
        pair = RankPair(self._prefills[at], decode)
        self._book(ask, state, pair, now)
        return pair

    def prefill_complete(self, number: int, now: float) -> None:
        super().prefill_complete(number, now)
        self._tree.finished(number, now)


def make_leg_router(name: str, scene: CoreScene, pairs: PairFleet) -> LegRouter:
    """Return the router of a rule.  Raises KeyError for unknown names."""
    return SmgRouter(scene, pairs) if name == "SMG" else LegRouter(scene, pairs, LEG_RULES[name])
