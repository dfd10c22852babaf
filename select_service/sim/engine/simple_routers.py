"""Routers without KV events: round robin, least requests or load, hash of the session."""

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil
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


class SessionHashRouter(LoadCountingRouter):
    """Router that pins each session to a rank by consistent hashing.

    Source: consistent hashing with bounded loads, Mirrokni, Thorup, Zadimoghaddam (2018); without
    a bound it is plain consistent hashing, as in routers with sticky sessions.
    """

    POINTS = 160
    """Points of a rank on the ring."""

    def __init__(self, n_ranks: int, seed: int, bound: float | None = None) -> None:
        """bound: largest load of a rank, in mean loads; None means no bound"""
        super().__init__(n_ranks, seed)
        self._bound = bound
        self._ring = sorted(
            (Random(f"rank {seed} {rank} {point}").random(), rank)
            for rank in range(n_ranks)
            for point in range(self.POINTS)
        )

    def pick_rank(self, ask: RankRequest) -> int:
        where = Random(f"session {ask.session}").random()
        first = bisect_left(self._ring, (where, 0))
        ring = self._ring[first:] + self._ring[:first]
        if self._bound is None:
            return ring[0][1]
        # The new request counts, so that a rank always has room.
        most = ceil(self._bound * (sum(self.requests) + 1) / len(self.requests))
        return next(rank for _, rank in ring if self.requests[rank] < most)
