"""Router by the history of its own choices, without KV events."""

import numpy as np
from numpy.typing import NDArray

from select_service.sim.engine.replay_world import RankRequest
from select_service.sim.engine.simple_routers import LoadCountingRouter


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
