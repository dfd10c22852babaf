"""Messages that were received together."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from indexer.events.run_layout import (
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


class Run:
    """Those from `first` on are not taken yet.

    buffer:   uint8 [n]
    messages: int64 [n, ROW_LENGTH], see `run_layout`
    """

    __slots__ = ("_bytes", "buffer", "first", "messages")

    def __init__(self, buffer: NDArray[np.uint8], messages: NDArray[np.int64]) -> None:
        self.buffer = buffer
        self._bytes = buffer.data
        self.messages = messages
        self.first = 0

    def __len__(self) -> int:
        """How many are not taken."""
        return len(self.messages) - self.first

    @property
    def nbytes(self) -> int:
        """Of those that are not taken, when they are copied."""
        begin, end = self._ends()
        return end - begin + len(self) * self.messages.strides[0]

    @property
    def is_live(self) -> bool:
        """Has the next message the form of a live batch?"""
        message = self.messages[self.first]
        return bool(message[N_FRAMES] == LIVE_FRAMES and message[IS_NUMBERED])

    @property
    def number(self) -> int:
        """Of the next message."""
        return int(self.messages[self.first, NUMBER]) & U64_MASK

    def payload(self, ahead: int = 0) -> memoryview:
        """Of the next message, or one behind it."""
        begin, end = self.messages[self.first + ahead, PAYLOAD : END + 1].tolist()
        return self._bytes[begin:end]

    def frames(self) -> list[bytes]:
        """Of the next message."""
        row = self.messages[self.first].tolist()
        places = [*row[STARTS : STARTS + row[N_FRAMES]], row[END]]
        return [self._bytes[a:b].tobytes() for a, b in pairwise(places)]

    def copied(self) -> "Run":
        """Those that are not taken, as a run of their own."""
        begin, end = self._ends()
        messages = self.messages[self.first :].copy()
        messages[:, PAYLOAD:] -= begin
        return Run(self.buffer[begin:end].copy(), messages)

    def _ends(self) -> tuple[int, int]:
        if not len(self):
            return 0, 0
        return int(self.messages[self.first, STARTS]), int(self.messages[-1, END])
