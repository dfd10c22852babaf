"""The rule `total_work` with the true lengths of answers: a bound for any estimate of them.

    python -m scripts.bench.quality --base work --choosers "work:lengths overlap:lengths backlog"

A length changes the price of live requests, 256 * R, in one of these ways; r are the tokens that a
live request has still to produce, o those of the own answer, m the mean length of ended answers:

    overlap   256 * sum min(r, o) / m     the steps that both requests share
    backlog   256 * sum r / m             requests near their end weigh less
    own       256 * R * o / m             long answers suffer longer
"""

from scripts.bench.quality.work_rule import WORK, RankCosts, WorkRouter
from select_service.core.placement.prompt import ReadAheadPrompt
from select_service.sim.engine.core_router import USUAL, CoreScene, SelectorUsage
from select_service.sim.engine.replay_world import RankRequest

LENGTH_USES = ("overlap", "backlog", "own")
ENDED_MAX = 1000
"""Ended answers over which the mean length forgets earlier answers."""


class LengthRouter(WorkRouter):
    def __init__(self, scene: CoreScene, use: str, setting: SelectorUsage = USUAL) -> None:
        """use: one of LENGTH_USES"""
        super().__init__(scene, WORK, setting)
        self._use = use
        self._ended, self._mean = 0, 0.0
        self._own = 0
        self._remaining: list[dict[int, int]] = [{} for _ in scene.fleet]
        """Tokens that live requests have still to produce, by rank."""

    def choose(self, ask: RankRequest, now: float) -> int | None:
        self._own = self._histories[ask.number].turn.output_tokens
        rank = super().choose(ask, now)
        if rank is not None:
            self._remaining[rank][ask.number] = self._own
        return rank

    def costs_of(self, read: ReadAheadPrompt) -> RankCosts:
        costs = super().costs_of(read)
        if not self._ended:
            return costs
        pairs = zip(costs.cost, self._remaining, strict=True)
        changed = [
            cost + WORK.per_request * (self.weigh_requests(list(live.values())) - len(live))
            for cost, live in pairs
        ]
        return costs._replace(cost=changed)

    def weigh_requests(self, remaining: list[int]) -> float:
        """Return the number that replaces R.

        remaining: tokens that the live requests of a rank have still to produce
        """
        if self._use == "own":
            return len(remaining) * self._own / self._mean
        if self._use == "backlog":
            return sum(remaining) / self._mean
        return sum(min(tokens, self._own) for tokens in remaining) / self._mean

    def output_block(self, number: int, now: float) -> None:
        super().output_block(number, now)
        live = self._remaining[self._histories[number].rank]
        live[number] = max(0, live[number] - self._size)

    def finished(self, number: int, now: float) -> None:
        super().finished(number, now)
        history = self._histories[number]
        del self._remaining[history.rank][number]
        self._ended += 1
        step = 1 / min(self._ended, ENDED_MAX)
        self._mean += step * (history.turn.output_tokens - self._mean)
