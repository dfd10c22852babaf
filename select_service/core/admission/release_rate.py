"""Release rate of a queue, from which the wait of a new request is estimated.

The rate is measured only over seconds throughout which requests waited: then the ranks are as full
as the queue allows, and what leaves shows their speed.  The drain rate of an idle fleet shows its
demand instead.  Ranks for which no request waits may be idle, and do not count.
"""

from math import exp

from select_service.core.admission.drain_rate import MEMORY_S
from select_service.core.admission.partition_queue import PartitionQueue

KNOWN_S = 2.0
"""Weighted seconds of measurement from which the rate counts as known."""


class ReleaseRate:
    """Uncached prompt tokens per second and rank that leave the queue of a partition.

    Recent seconds count most, with a time constant of MEMORY_S.
    """

    __slots__ = ("_at", "_n_ranks", "_queue", "_rank_s", "_released", "_seconds", "_tokens")

    def __init__(self) -> None:
        self._queue: PartitionQueue | None = None
        self._at = 0.0
        self._released = self._n_ranks = 0
        self._tokens = self._seconds = self._rank_s = 0.0

    def observe_queue(self, queue: PartitionQueue | None, n_ranks: int, now: float) -> None:
        """Add the time since the last call, if requests waited all the time.

        queue: the queue of the partition; None means that no request waits
        n_ranks: ranks for which requests wait
        """
        elapsed, keep = now - self._at, exp(min(0.0, self._at - now) / MEMORY_S)
        # Without a wait too: the ranks may be faster now than in the last queue.
        self._tokens, self._seconds = keep * self._tokens, keep * self._seconds
        self._rank_s *= keep
        # A queue is made anew after it was empty, so the same object means an uninterrupted wait.
        if queue is not None and queue is self._queue and elapsed > 0.0:
            self._tokens += queue.released_cost - self._released
            self._seconds += elapsed
            # The time since which ranks are full is unknown if requests wait for them at one end
            # only.
            self._rank_s += elapsed * min(n_ranks, self._n_ranks)
        self._queue, self._at, self._n_ranks = queue, now, n_ranks
        self._released = 0 if queue is None else queue.released_cost

    def tokens_per_s(self) -> float | None:
        """Return the rate of a rank; None means unknown."""
        if self._seconds < KNOWN_S or self._tokens <= 0.0 or self._rank_s <= 0.0:
            return None
        return self._tokens / self._rank_s
