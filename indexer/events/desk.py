"""Where usual messages are read, for all streams of one thread."""

import numpy as np

from indexer.events import kernels, usual_kernels
from indexer.events.run import Run
from indexer.events.usual import Usual
from indexer.index.block_tree import Changes

EVENTS_MAX = 64
"""Of one message."""
MESSAGES_MAX = 64
"""Of a run, read at once."""
BYTES_MAX = 32 * 1024
"""Of a message."""


class Desk:
    """Holds what was read last.  Belongs to one thread."""

    def __init__(self) -> None:
        self._rows = np.empty((EVENTS_MAX, kernels.N_COLUMNS), np.int64)
        self._tokens = np.empty(BYTES_MAX, np.uint32)
        self._ends = np.zeros(MESSAGES_MAX, np.int64)
        self.changes = Changes(2 * EVENTS_MAX, usual_kernels.NAMES_MAX + BYTES_MAX)
        """Of all messages that were read."""

    def read(self, run: Run, number: int, usual: Usual) -> int:
        """How many of the next messages are usual, and numbered from `number` on.  Their changes
        lie here afterwards."""
        changes = self.changes
        n_read = usual_kernels.read_run(
            run.buffer,
            run.messages,
            run.first,
            number,
            usual.array,
            self._rows,
            self._tokens,
            changes.rows,
            changes.names,
            changes.blocks,
            self._ends,
        )
        changes.used = int(self._ends[n_read - 1]) if n_read else 0
        changes.totals.fill(0)
        return int(n_read)

    def messages_of(self, n_read: int, n_changes: int) -> tuple[int, int]:
        """How far so many changes are: (whole messages, further changes)."""
        ends = self._ends[:n_read]
        whole = int(np.searchsorted(ends, n_changes, "right"))
        return whole, n_changes - int(ends[whole - 1]) if whole else n_changes
