"""EDGE: delay that batches the messages of a thread, so that one turn serves several.

Waking up and going through a turn costs as much as several messages, above all on a CPU that was
idle and has cold caches.  While messages come in quick succession, the thread therefore rests for
a moment before it looks again; a single message is never delayed.  The rest is shorter at higher
rates, so that no queue fills up meanwhile.
"""

from time import sleep

DELAY_S_MAX = 0.002
"""Longest delay of a message of a dense stream, in seconds."""
BATCH_MIN = 2
"""Expected number of messages below which there is no rest."""
BATCH_TARGET = 16
"""Messages of a socket that end a rest, half of the queue that libzmq keeps."""


class BatchingDelay:
    """Batching delay of a thread.  Times are monotonic seconds."""

    def __init__(self) -> None:
        self.pause_s = 0.0
        """Length of the rest before the thread looks for messages again."""
        self._looked = float("-inf")

    def pause(self) -> None:
        sleep(self.pause_s)

    def note_turn(self, looked: float, messages: int, of_one: int) -> None:
        """Record the messages of a turn; of_one: those of the busiest socket.

        looked: time when the turn began to take them
        """
        since, self._looked = looked - self._looked, looked
        if messages * DELAY_S_MAX < BATCH_MIN * since:
            self.pause_s = 0.0
        else:
            self.pause_s = min(DELAY_S_MAX, since * BATCH_TARGET / max(of_one, 1))
