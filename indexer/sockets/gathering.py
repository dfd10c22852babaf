"""EDGE: how long a thread lets messages gather, so that one turn of it serves several.

To wake up and to go through a turn costs as much as several messages, most of all on a CPU that
had nothing to do and where everything is cold.  While messages come close upon each other the
thread therefore rests for a moment before it looks again; one that comes alone is never kept
waiting.  The faster they come, the shorter is the rest: no queue gets full meanwhile.
"""

from time import sleep

GATHER_S = 0.002
"""So long a message of a dense stream waits for others, at most."""
GATHERED_MIN = 2
"""A rest that would bring fewer messages is none."""
GATHERED_AIM = 16
"""Messages of one socket, half of what is kept for it: a rest ends where that many are expected."""


class Gathering:
    """Belongs to one thread.  Times are monotonic seconds."""

    def __init__(self) -> None:
        self.rest_s = 0.0
        """Of the rest that the thread should take before it looks for messages again."""
        self._looked = float("-inf")

    def rest(self) -> None:
        sleep(self.rest_s)

    def turned(self, looked: float, messages: int, of_one: int) -> None:
        """A turn has taken so many messages; of_one: those of the socket that had most.

        looked: when the turn began to take them
        """
        since, self._looked = looked - self._looked, looked
        if messages * GATHER_S < GATHERED_MIN * since:
            self.rest_s = 0.0
        else:
            self.rest_s = min(GATHER_S, since * GATHERED_AIM / max(of_one, 1))
