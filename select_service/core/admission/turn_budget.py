"""Budget of a turn of the queues, which keeps a turn a bounded step of the event loop.

Up to a million requests may wait (`--queue-max-requests`), so nothing in a turn depends on their
number: refusals, rebound requests, refreshed lanes and searches all spend the same budget.
"""

SERVED_PER_TURN_MAX = 48
"""Requests leaving the queue before other work gets a turn."""

SERVE_WORK = 4096
"""Work of serving one request, in units of `PartitionQueue.search_work`; about 80 µs."""
REFUSE_WORK = 1365
"""Work of refusing one waiting request."""
REFRESH_WORK = 512
"""Work of finding the candidates of a lane again."""
REBIND_WORK = 128
"""Work of binding one waiting request to the partition made anew."""
SWEEP_WORK = 512
"""Work of a look for requests of shed tiers in a queue."""


class TurnBudget:
    """Work left in a turn: enough for `SERVED_PER_TURN_MAX` requests at first."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = SERVED_PER_TURN_MAX * SERVE_WORK

    @property
    def can_serve(self) -> bool:
        return self.left >= SERVE_WORK

    def count_actions(self, work: int, reserve: int = 0) -> int:
        """Return how many actions of this work fit, if `reserve` stays for other work."""
        return max(0, self.left - reserve) // work

    def spend(self, work: int, actions: int = 1) -> None:
        self.left = max(0, self.left - work * actions)
