"""EDGE: when a thread lets messages gather, so that one turn of it serves several.

To wake up and to go through a turn costs as much as several messages.  While messages come close
upon each other the thread therefore rests for a moment before it looks again; one that comes alone
is never kept waiting, nor is a stream that is faster than its queue.
"""

from time import sleep

GATHER_S = 0.001
"""So long a message of a dense stream waits for others, at most."""


class Gathering:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self.pays = False
        """Should the thread rest before it looks for messages again?"""

    def rest(self) -> None:
        sleep(GATHER_S)

    def turned(self, messages: int, waited_s: float, *, is_full: bool) -> None:
        """A turn has taken so many, for which the thread has waited after its rest, if any.

        is_full: the queue of a socket was full, so that a rest would only keep it waiting
        """
        if messages == 0 or is_full:
            self.pays = False
        elif self.pays:
            self.pays = messages > 1
        else:
            self.pays = waited_s < GATHER_S / 2  # then two would have come in a rest
