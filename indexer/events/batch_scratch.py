"""Scratch memory for reading usual messages, shared by all streams of a thread."""

import numpy as np

from indexer.events import common_form_kernels, payload_layout
from indexer.events.common_forms import CommonForms
from indexer.events.message_batch import MessageBatch
from indexer.index.block_tree import ChangeBuffer

EVENTS_MAX = 64
"""Limit of events of a message."""
MESSAGES_MAX = 64
"""Limit of messages of a run that are read at once."""
BYTES_MAX = 32 * 1024
"""Limit of bytes of a message."""


class BatchScratch:
    """Buffers with the most recently read messages.  Not thread-safe."""

    def __init__(self) -> None:
        self._ends = np.zeros(MESSAGES_MAX, np.int64)
        self.changes = ChangeBuffer(2 * EVENTS_MAX, common_form_kernels.NAMES_MAX + BYTES_MAX)
        """Changes of all messages that were read."""
        self._memory = (
            np.empty((EVENTS_MAX, payload_layout.N_COLUMNS), np.int64),
            np.empty(BYTES_MAX, np.uint32),
            self.changes.rows,
            self.changes.engine_hashes,
            self.changes.content_hashes,
            self._ends,
        )
        """Memory of the kernel, see `read_common_run`."""

    def read_messages(self, run: MessageBatch, number: int, usual: CommonForms) -> int:
        """Read the usual messages numbered from `number` on into `changes`; return the count."""
        changes = self.changes
        n_read = common_form_kernels.read_common_run(
            run.buffer, run.messages, run.first, number, usual.array, self._memory
        )
        changes.used = int(self._ends[n_read - 1]) if n_read else 0
        changes.progress.fill(0)
        return int(n_read)

    def count_whole_messages(self, n_read: int, n_changes: int) -> tuple[int, int]:
        """Convert a number of changes to (whole messages, further changes)."""
        ends = self._ends[:n_read]
        whole = int(np.searchsorted(ends, n_changes, "right"))
        return whole, n_changes - int(ends[whole - 1]) if whole else n_changes
