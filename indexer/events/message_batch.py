"""Messages that were received together."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from indexer.events.message_batch_layout import (
    END,
    IS_NUMBERED,
    LIVE_FRAMES,
    N_FRAMES,
    NUMBER,
    PAYLOAD,
    STARTS,
)

assert END == PAYLOAD + 1

U64_MASK = 2**64 - 1


class MessageBatch:
    """Run of messages; the messages from `first` on are not taken yet.

    buffer:   uint8 [n]
    messages: int64 [n, ROW_LENGTH], see `message_batch_layout`
    """

    __slots__ = ("_bytes", "buffer", "first", "messages", "stop")

    def __init__(self, buffer: NDArray[np.uint8], messages: NDArray[np.int64]) -> None:
        self.buffer = buffer
        self._bytes = buffer.data
        self.messages = messages
        self.first = 0
        self.stop = len(messages)

    def __len__(self) -> int:
        """Return the number of messages not taken."""
        return self.stop - self.first

    @property
    def nbytes(self) -> int:
        """Bytes of a copy of the messages not taken."""
        begin, end = self._byte_range()
        return end - begin + len(self) * self.messages.strides[0]

    @property
    def is_live(self) -> bool:
        """True if the next message has the form of a live batch."""
        message = self.messages[self.first]
        return bool(message[N_FRAMES] == LIVE_FRAMES and message[IS_NUMBERED])

    @property
    def sequence_number(self) -> int:
        """Sequence number of the next message."""
        return int(self.messages[self.first, NUMBER]) & U64_MASK

    def payload_ahead(self, ahead: int = 0) -> memoryview:
        """Return the payload of the next message, or of a later message (`ahead`)."""
        begin, end = self.messages[self.first + ahead, PAYLOAD : END + 1].tolist()
        return self._bytes[begin:end]

    @property
    def topic(self) -> bytes:
        """Topic of the next message, which must be live."""
        begin, end = self.messages[self.first, STARTS : STARTS + 2].tolist()
        return self._bytes[begin:end].tobytes()

    def next_frames(self) -> list[bytes]:
        """Return the frames of the next message."""
        row = self.messages[self.first].tolist()
        places = [*row[STARTS : STARTS + row[N_FRAMES]], row[END]]
        return [self._bytes[a:b].tobytes() for a, b in pairwise(places)]

    def copy(self) -> "MessageBatch":
        """Return the messages not taken as a new run, copied."""
        begin, end = self._byte_range()
        messages = self.messages[self.first :].copy()
        # Positions in the copy count from the copy's own beginning.
        messages[:, PAYLOAD:] -= begin
        return MessageBatch(self.buffer[begin:end].copy(), messages)

    def _byte_range(self) -> tuple[int, int]:
        if not len(self):
            return 0, 0
        return int(self.messages[self.first, STARTS]), int(self.messages[-1, END])
