"""Routers without KV events: round robin, least requests or load, and a prefix-tree router."""

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from select_service.sim.replay.kv_block_pool import Change
from select_service.sim.replay.replay_world import RankRequest


class LoadCountingRouter:
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

    def first_token(self, number: int, now: float) -> None:
        pass

    def output_block(self, number: int, now: float) -> None:
        pass

    def finished(self, number: int, now: float) -> None:
        rank, tokens = self._where.pop(number)
        self.requests[rank] -= 1
        # Answer tokens are ignored: a router without events does not see them.
        self.tokens[rank] -= tokens

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        pass

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        return ()


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


class PrefixTreeRouter(LoadCountingRouter):
    """Rules of SGLang's router, `cache_aware`: an assumed cache from the history of its own
    choices.

    While the load is balanced, the rank with the longest earlier beginning of the prompt, if at
    least CACHE_SHARE of the prompt, else the rank with the fewest earlier blocks. Otherwise the
    rank with the fewest requests. Source: sgl-router, policies/cache_aware.rs and its defaults.
    Left out: eviction of history beyond 2^26 characters a rank, which no run here reaches.
    """

    CACHE_SHARE = 0.3
    UNEVEN_BY, UNEVEN_TIMES = 64, 1.5

    def __init__(self, n_ranks: int, seed: int, n_blocks: int) -> None:
        super().__init__(n_ranks, seed)
        self._sent: NDArray[np.uint64] = np.zeros(n_blocks, np.uint64)
        self._known = [0] * n_ranks

    def pick_rank(self, ask: RankRequest) -> int:
        most, fewest = max(self.requests), min(self.requests)
        if most - fewest > self.UNEVEN_BY and most > self.UNEVEN_TIMES * fewest:
            rank = self.pick_least(self.requests)
        else:
            rank = self._longest(ask)
        # One bit per rank, so at most 64 ranks.
        mark = np.uint64(1 << rank)
        self._known[rank] += int(np.count_nonzero(self._sent[ask.chain] & mark == 0))
        self._sent[ask.chain] |= mark
        return rank

    def _longest(self, ask: RankRequest) -> int:
        sent = np.bitwise_and.accumulate(self._sent[ask.chain])
        runs = [int(np.count_nonzero(sent & np.uint64(1 << r))) for r in range(len(self.requests))]
        # Ties go to a random rank of the longest.
        best = max(runs)
        if best > self.CACHE_SHARE * len(ask.chain):
            return self.pick_least([-run for run in runs])
        return self.pick_least(self._known)
