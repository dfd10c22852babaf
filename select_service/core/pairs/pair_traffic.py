"""Counters of the pairs of a partition, for observations: paths, prompts, and use of the links."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.pairs import pair_traffic_kernels as kernels
from select_service.core.pairs.pair_placer import PairPlacer
from select_service.core.pairs.pair_traffic_layout import N_COUNTERS, N_REMOTE
from select_service.core.workers.transfer_prices import transfer_token_s

Words = npt.NDArray[np.int64]


class LinkCapacity(NamedTuple):
    """Network links of the hosts of a partition at present.

    leaving, entering: number of hosts with ranks for prefill, and for decode
    backlog_s: seconds of the longest queue before a link; None if a link's speed is unknown
    """

    leaving: int
    entering: int
    backlog_s: float | None


class PairTraffic:
    """Counters of the pairs that this process booked in a partition."""

    def __init__(self, placer: PairPlacer) -> None:
        self.words: Words = np.zeros(N_COUNTERS, np.int64)
        """Counters (pair_traffic_layout), which only grow."""
        self._placer = placer

    def count_local(self, tokens: int) -> None:
        """Count a pair on a single rank.  tokens: prompt tokens to be computed"""
        kernels.count_local(self.words, tokens)

    def count_remote(self, slots: tuple[int, int], tokens: int) -> None:
        """Count a pair on two ranks.  Arguments as for `count_move`"""
        self.words[N_REMOTE] += 1
        self.count_move(slots, tokens)

    def count_move(self, slots: tuple[int, int], tokens: int) -> None:
        """Count the tokens that a pair moves.  slots: of prefill and decode"""
        kernels.count_move(self.words, self._placer.header, *slots, tokens)

    def find_capacity(self, prefills: list[int], decodes: list[int]) -> LinkCapacity:
        """Return the links at present.  O(ranks)

        prefills, decodes: slots of the ranks for either part
        """
        groups = self._placer.groups
        hosts = [{groups.host_name_of(slot) for slot in slots} for slots in (prefills, decodes)]
        leaving, entering = (len(names - {None}) for names in hosts)
        token_s = {each.host: transfer_token_s(each) for each in groups.positions}
        backlog: float | None = 0.0
        for waiting in self._placer.waiting_by_host():
            for host, tokens in waiting.items():
                seconds = token_s.get(host)
                # An unknown queue may be the longest, so that the others decide nothing.
                if seconds is None or backlog is None:
                    backlog = None
                else:
                    backlog = max(backlog, seconds * tokens)
        return LinkCapacity(leaving, entering, backlog)
