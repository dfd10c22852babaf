"""Active load of one partition: which blocks are live on which slot, and how many prefill tokens.

A reservation references its prompt blocks, by sequence hash, and grows output blocks.  The active
blocks of a slot are the sum of the weights of its distinct live blocks.  Weight is 1 until a decay
says otherwise; a decay sets (does not multiply) the weight of those blocks of one reservation that
nobody else on the slot references; the weight stays with the block until its last reference goes.

Source of the rules: the reference selection service, measured (docs/architecture.md, "Load").
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.hashing.hashes import Hashes
from select_service.core.load import kernels
from select_service.core.load import load_layout as layout
from select_service.core.load.growing_table import GrowingTable, count_of, owner_of
from select_service.core.load.table_kernels import KEY

PerSlot = npt.NDArray[np.int64]

_SLOTS_AT_FIRST = 64


class OutputBlocks(NamedTuple):
    """Output blocks of one reservation: `whole` of weight 1, `faded` of weight `fraction`."""

    whole: int = 0
    faded: int = 0
    fraction: float = 1.0


NO_OUTPUT = OutputBlocks()


class ActiveLoad:
    """Load of the slots of one partition.  Reservations are the caller's; this holds their sums."""

    def __init__(self) -> None:
        self.header = np.zeros(layout.HEADER_LENGTH, np.int64)
        """How kernels reach all of it (load_layout); never replaced."""
        self._references = self._table(layout.REFERENCES, kernels.REFERENCE_FIELDS)
        self._prefixes = self._table(layout.PREFIXES, kernels.PREFIX_FIELDS)
        self._holders = self._table(layout.HOLDERS, kernels.HOLDER_FIELDS)
        self._all_totals = np.zeros((_SLOTS_AT_FIRST, layout.N_TOTALS), np.int64)
        self._all_fractions = np.zeros(_SLOTS_AT_FIRST, np.float64)
        self._show(0)

    def _table(self, at: int, fields: int) -> GrowingTable:
        return GrowingTable(self.header, at, fields)

    def _name(self, at: int, array: npt.NDArray[Any]) -> None:
        self.header[at], self.header[at + 1] = array.ctypes.data, array.size

    @property
    def n_slots(self) -> int:
        return int(self.header[layout.N_SLOTS])

    def reserve_slots(self, n_slots: int) -> None:
        """Let `ensure_slots` find room for so many.  O(1) but for doublings.

        Raises MemoryError, and has changed nothing: rows of all arrays grow together or not at all.
        """
        rows = len(self._all_totals)
        if n_slots <= rows:
            return
        while rows < n_slots:
            rows *= 2
        more = rows - len(self._all_totals)
        spare = np.zeros((more, layout.N_TOTALS), np.int64)
        totals = np.vstack([self._all_totals, spare])
        fractions = np.concatenate([self._all_fractions, np.zeros(more)])
        self._all_totals, self._all_fractions = totals, fractions
        self._show(self.n_slots)

    def ensure_slots(self, n_slots: int) -> None:
        """Let slots 0 .. n_slots-1 exist.  Never shrinks: a freed slot may return."""
        if n_slots > self.n_slots:
            self.reserve_slots(n_slots)
            self._show(n_slots)

    def _show(self, n_slots: int) -> None:
        self.totals, self.fractions = self._all_totals[:n_slots], self._all_fractions[:n_slots]
        self._name(layout.TOTALS, self.totals)
        self._name(layout.FRACTIONS, self.fractions)
        self.header[layout.N_SLOTS] = n_slots

    def _tables(self) -> tuple[GrowingTable, GrowingTable, GrowingTable]:
        return self._references, self._prefixes, self._holders

    def reserve_room(self, blocks: int) -> None:
        """Let the next `add` of so many blocks find room.  Raises MemoryError, nothing is lost."""
        for table in self._tables():
            table.reserve(blocks)

    def add(
        self,
        slot: int,
        sequence_hashes: Hashes,
        prefill_tokens: int,
        output: OutputBlocks = NO_OUTPUT,
    ) -> None:
        """Book one reservation: O(blocks).  Raises MemoryError, and has changed nothing."""
        assert 0 <= slot < len(self.totals)
        assert prefill_tokens >= 0
        header, whole = self.header, output.whole
        status = kernels.book(header, slot, sequence_hashes, prefill_tokens, whole)
        if status == kernels.NO_ROOM:
            self.reserve_room(len(sequence_hashes))
            status = kernels.book(header, slot, sequence_hashes, prefill_tokens, whole)
        if status == kernels.CALL_OWNER:
            for table in self._tables():
                table.give_back()

    def remove(
        self, slot: int, sequence_hashes: Hashes, prefill_tokens: int, output: OutputBlocks
    ) -> None:
        """Undo `add` with what is left of the reservation's prefill tokens and output blocks."""
        missing = kernels.release(self.header, slot, sequence_hashes, prefill_tokens, *output)
        assert missing == 0, "more was released than had been booked"

    def complete_prefill(self, slot: int, prefill_tokens: int) -> None:
        """Take one reservation's booked prefill tokens off the slot."""
        kernels.complete_prefill(self.header, slot, prefill_tokens)

    def add_output_block(
        self, slot: int, sequence_hashes: Hashes, output: OutputBlocks, decay_fraction: float | None
    ) -> OutputBlocks:
        """One more output block for a reservation, then the decay if one is given."""
        if decay_fraction is None:
            kernels.add_output_block(self.header, slot)
            return output._replace(whole=output.whole + 1)
        missing = kernels.add_output_block_and_decay(
            self.header, slot, sequence_hashes, *output, decay_fraction
        )
        assert missing == 0, "a block of a live reservation is not booked"
        return OutputBlocks(0, output.whole + output.faded + 1, decay_fraction)

    def active_blocks(self) -> PerSlot:
        """int64[n_slots]: active blocks, rounded half away from zero."""
        out = np.empty(self.n_slots, np.int64)
        kernels.active_blocks(self.header, out)
        return out

    def check_invariants(self) -> None:
        """Recompute everything that is kept incrementally.  O(rows * slots), for tests."""
        for table in self._tables():
            table.check_invariants()
        holding = [int(np.bitwise_count(f[kernels.BITS :]).sum()) for f in self._holders.entries()]
        assert holding == [count_of(fields) for fields in self._holders.entries()]
        assert self._prefixes.used == sum(holding)
        for fields in self._prefixes.entries():
            self._check_prefix(fields[KEY], owner_of(fields))
        assert (self.totals >= 0).all()
        assert (self.fractions[self.totals[:, layout.FRACTIONAL_BLOCKS] == 0] == 0.0).all()

    def _check_prefix(self, prefix: np.uint64, slot: int) -> None:
        """Its bit is set in the row of its group."""
        group, bit = divmod(slot, kernels.GROUP_SLOTS)
        bits = self._holders.entry(prefix, group)[kernels.BITS :]
        assert int(bits[bit >> 6]) >> (bit & 63) & 1
