"""Release rate of a queue, and the wait that follows from it.

The rate is measured only over seconds throughout which requests waited: then the ranks are as full
as the queue allows, and what leaves shows their speed.  The drain rate of an idle fleet shows its
demand instead.  Ranks for which no request waits may be idle, and do not count.
"""

from math import exp, inf

from select_service.core.admission.drain_rate import MEMORY_S
from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.waiting_ticket import WaitingTicket

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
            # Of ranks waited for at one end only, it is not known since when they are full.
            self._rank_s += elapsed * min(n_ranks, self._n_ranks)
        self._queue, self._at, self._n_ranks = queue, now, n_ranks
        self._released = 0 if queue is None else queue.released_cost

    def tokens_per_s(self, n_ranks: int) -> float | None:
        """Return the rate of `n_ranks` ranks; None means unknown."""
        if self._seconds < KNOWN_S or self._tokens <= 0.0 or self._rank_s <= 0.0:
            return None
        return self._tokens / self._rank_s * n_ranks


def estimate_tokens_before(queue: PartitionQueue, ticket: WaitingTicket) -> float:
    """Return the uncached tokens that leave the queue before a new request, roughly.

    This is the least of three numbers: all that waits; what the class needs for its share to reach
    the end of the class; and what the flow needs for its share to reach the request.  Whatever
    arrives later can at most delay the request to one of the last two.
    """
    own_queue, flow = queue.queue_of(ticket), queue.queue_of(ticket).flow_of(ticket)
    waiting = [each for each in queue.queues if each.requests or each is own_queue]
    quanta = sum(each.rules.quantum for each in waiting)
    class_share = own_queue.rules.quantum / quanta
    # Priorities go before the shares of flows.
    last = (*ticket.order[:1], inf, inf, ticket.number)
    in_class = float(own_queue.total.cost)
    if ticket.order[0] < 0.0:
        in_class = sum(
            each.cost * each.count_before(last) / each.usage.requests
            for each in own_queue.flows.values()
        )
    others = sum(each.total.cost for each in waiting if each is not own_queue)
    before = min(others + in_class, in_class / class_share)
    if ticket.order[0] < 0.0:
        return before
    weights = sum(own_queue.weight_of(name) for name in own_queue.flows.keys() | {ticket.flow})
    flow_share = own_queue.weight_of(ticket.flow) / weights
    n_before = flow.count_before(ticket.order)
    in_flow = ticket.size.cost + (flow.cost * n_before / flow.usage.requests if n_before else 0.0)
    return min(before, in_flow / class_share / flow_share)
