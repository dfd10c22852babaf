"""Routers without KV events: round robin, least requests or load."""

from collections.abc import Sequence
from random import Random

from select_service.sim.engine.replay_world import RankRequest, ReplayRouter


class LoadCountingRouter(ReplayRouter):
    """Router that knows only its own running requests and their prompt tokens."""

    def __init__(self, n_ranks: int, seed: int) -> None:
        self.rng = Random(seed)
        self.requests = [0] * n_ranks
        self.tokens = [0] * n_ranks
        self._where: dict[int, tuple[int, int]] = {}

    def choose(self, ask: RankRequest, now: float) -> int | None:
        rank = self.pick_rank(ask)
        self._where[ask.number] = rank, ask.prompt_tokens
        self.requests[rank] += 1
        self.tokens[rank] += ask.prompt_tokens
        return rank

    def pick_rank(self, ask: RankRequest) -> int:
        raise NotImplementedError

    def pick_least(self, loads: Sequence[float]) -> int:
        """Return a random rank among those with the least load."""
        lowest = min(loads)
        return self.rng.choice([rank for rank, load in enumerate(loads) if load == lowest])

    def finished(self, number: int, now: float) -> None:
        rank, tokens = self._where.pop(number)
        self.requests[rank] -= 1
        # Answer tokens are ignored: a router without events does not see them.
        self.tokens[rank] -= tokens


class RoundRobinRouter(LoadCountingRouter):
    """Router that takes the ranks in turn."""

    _turn = -1

    def pick_rank(self, ask: RankRequest) -> int:
        self._turn = (self._turn + 1) % len(self.requests)
        return self._turn


class LeastRequestsRouter(LoadCountingRouter):
    """Router that takes the rank with the fewest live requests."""

    def pick_rank(self, ask: RankRequest) -> int:
        return self.pick_least(self.requests)


class LeastLoadRouter(LoadCountingRouter):
    """Router that takes the rank with the fewest prompt tokens of live requests."""

    def pick_rank(self, ask: RankRequest) -> int:
        return self.pick_least(self.tokens)
