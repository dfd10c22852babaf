"""Who knows less than the service: round robin, least requests or load, a prefix-tree router."""

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from select_service.replaying.pool import Change
from select_service.replaying.world import Ask


class Counting:
    """What choosers without events know: the requests that they have running, and their tokens."""

    def __init__(self, n_ranks: int, seed: int) -> None:
        self.rng = Random(seed)
        self.requests = [0] * n_ranks
        self.tokens = [0] * n_ranks
        self._where: dict[int, tuple[int, int]] = {}

    def choose(self, ask: Ask, now: float) -> int | None:
        rank = self.pick(ask)
        self._where[ask.number] = rank, ask.prompt_tokens
        self.requests[rank] += 1
        self.tokens[rank] += ask.prompt_tokens
        return rank

    def pick(self, ask: Ask) -> int:
        raise NotImplementedError

    def least(self, loads: Sequence[float]) -> int:
        """One of the ranks with the least; at random."""
        lowest = min(loads)
        return self.rng.choice([rank for rank, load in enumerate(loads) if load == lowest])

    def first_token(self, number: int, now: float) -> None:
        pass

    def output_block(self, number: int, now: float) -> None:
        pass

    def finished(self, number: int, now: float) -> None:
        rank, tokens = self._where.pop(number)
        self.requests[rank] -= 1
        self.tokens[rank] -= tokens

    def changed(self, rank: int, changes: Sequence[Change], now: float) -> None:
        pass

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        return ()


class RoundRobin(Counting):
    """Each rank in turn."""

    _turn = -1

    def pick(self, ask: Ask) -> int:
        self._turn = (self._turn + 1) % len(self.requests)
        return self._turn


class LeastRequests(Counting):
    """The fewest live requests."""

    def pick(self, ask: Ask) -> int:
        return self.least(self.requests)


class LeastLoad(Counting):
    """The fewest prompt tokens of live requests."""

    def pick(self, ask: Ask) -> int:
        return self.least(self.tokens)


class PrefixTree(Counting):
    """The rules of SGLang's router, `cache_aware`: it remembers whom it sent what, and believes it.

    Where the load is even enough, the rank that was sent the longest beginning of the prompt, if
    that is at least CACHE_SHARE of it, else the rank that was sent the least; where not, the fewest
    requests.  Source: sgl-router, policies/cache_aware.rs and its defaults.  Left out: that it
    forgets what was sent long ago, beyond 2^26 characters a rank, which no run here comes to.
    """

    CACHE_SHARE = 0.3
    UNEVEN_BY, UNEVEN_TIMES = 64, 1.5

    def __init__(self, n_ranks: int, seed: int, n_blocks: int) -> None:
        super().__init__(n_ranks, seed)
        self._sent: NDArray[np.uint64] = np.zeros(n_blocks, np.uint64)
        self._known = [0] * n_ranks

    def pick(self, ask: Ask) -> int:
        most, fewest = max(self.requests), min(self.requests)
        if most - fewest > self.UNEVEN_BY and most > self.UNEVEN_TIMES * fewest:
            rank = self.least(self.requests)
        else:
            rank = self._longest(ask)
        mark = np.uint64(1 << rank)
        self._known[rank] += int(np.count_nonzero(self._sent[ask.chain] & mark == 0))
        self._sent[ask.chain] |= mark
        return rank

    def _longest(self, ask: Ask) -> int:
        sent = np.bitwise_and.accumulate(self._sent[ask.chain])
        runs = [int(np.count_nonzero(sent & np.uint64(1 << r))) for r in range(len(self.requests))]
        best = max(runs)
        if best > self.CACHE_SHARE * len(ask.chain):
            return self.least([-run for run in runs])
        return self.least(self._known)
