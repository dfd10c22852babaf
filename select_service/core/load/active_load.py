"""Active load of one partition: which blocks are live on which slot, and how many prefill tokens.

A reservation references its prompt blocks, by sequence hash, and grows output blocks.  The active
blocks of a slot are the sum of the weights of its distinct live blocks.  Weight is 1 until a decay
says otherwise; a decay sets (does not multiply) the weight of those blocks of one reservation that
nobody else on the slot references; the weight stays with the block until its last reference goes.

Source of the rules: the reference selection service, measured (docs/architecture.md, "Load").
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.hashing.hashes import Hashes
from select_service.core.load import kernels
from select_service.core.load.growing_table import GrowingTable, Table, count_of, owner_of
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
        self._references = GrowingTable(kernels.REFERENCE_FIELDS)
        self._prefixes = GrowingTable(kernels.PREFIX_FIELDS)
        self._holders = GrowingTable(kernels.HOLDER_FIELDS)
        self._alive = np.zeros(kernels.GROUP_WORDS, np.uint64)
        self._all_totals = np.zeros((_SLOTS_AT_FIRST, kernels.N_TOTALS), np.int64)
        self._all_fractions = np.zeros(_SLOTS_AT_FIRST, np.float64)
        self.totals = self._all_totals[:0]
        self.fractions = self._all_fractions[:0]

    @property
    def n_slots(self) -> int:
        return len(self.totals)

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
        spare = np.zeros((more, kernels.N_TOTALS), np.int64)
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
        """Book one reservation: O(blocks)."""
        assert 0 <= slot < self.n_slots
        assert prefill_tokens >= 0
        self.reserve_room(len(sequence_hashes))
        references, prefixes, holders = self._tables()
        for table in (references, prefixes, holders):
            table.step(len(sequence_hashes))
        references.used += kernels.add_blocks(
            references.table, references.old, self.totals, slot, sequence_hashes
        )
        new, new_holders = kernels.add_prefixes(
            prefixes.table, prefixes.old, holders.table, holders.old, slot, sequence_hashes
        )
        prefixes.used += new
        holders.used += new_holders
        if output.whole:
            kernels.add_weights(self.totals, self.fractions, slot, 1.0, output.whole)
        self.totals[slot, kernels.PREFILL_TOKENS] += prefill_tokens
        self.totals[slot, kernels.REQUESTS] += 1

    def remove(
        self, slot: int, sequence_hashes: Hashes, prefill_tokens: int, output: OutputBlocks
    ) -> None:
        """Undo `add` with what is left of the reservation's prefill tokens and output blocks."""
        references, prefixes, holders = self._tables()
        gone, missing = kernels.remove_blocks(
            references.table, references.old, self.totals, self.fractions, slot, sequence_hashes
        )
        references.used -= gone
        gone, gone_holders, not_found = kernels.remove_prefixes(
            prefixes.table, prefixes.old, holders.table, holders.old, slot, sequence_hashes
        )
        prefixes.used -= gone
        holders.used -= gone_holders
        kernels.add_weights(self.totals, self.fractions, slot, 1.0, -output.whole)
        kernels.add_weights(self.totals, self.fractions, slot, output.fraction, -output.faded)
        self.totals[slot, kernels.PREFILL_TOKENS] -= prefill_tokens
        self.totals[slot, kernels.REQUESTS] -= 1
        assert missing == not_found == 0, "more was released than had been booked"

    def complete_prefill(self, slot: int, prefill_tokens: int) -> None:
        """Take one reservation's booked prefill tokens off the slot."""
        self.totals[slot, kernels.PREFILL_TOKENS] -= prefill_tokens

    def add_output_block(
        self, slot: int, sequence_hashes: Hashes, output: OutputBlocks, decay_fraction: float | None
    ) -> OutputBlocks:
        """One more output block for a reservation, then the decay if one is given."""
        kernels.add_weights(self.totals, self.fractions, slot, 1.0, 1)
        if decay_fraction is None:
            return output._replace(whole=output.whole + 1)
        blocks = output.whole + output.faded + 1
        kernels.add_weights(self.totals, self.fractions, slot, 1.0, -(output.whole + 1))
        kernels.add_weights(self.totals, self.fractions, slot, output.fraction, -output.faded)
        kernels.add_weights(self.totals, self.fractions, slot, decay_fraction, blocks)
        missing = kernels.decay_blocks(
            self._references.table,
            self._references.old,
            self.totals,
            self.fractions,
            slot,
            sequence_hashes,
            decay_fraction,
        )
        assert missing == 0, "a block of a live reservation is not booked"
        return OutputBlocks(whole=0, faded=blocks, fraction=decay_fraction)

    def holders(self) -> tuple[Table, Table, npt.NDArray[np.uint64]]:
        """Who holds which beginnings: the first arguments of `kernels.leading_runs`."""
        return self._holders.table, self._holders.old, self._alive

    def active_blocks(self) -> PerSlot:
        """int64[n_slots]: active blocks, rounded half away from zero."""
        out = np.empty(self.n_slots, np.int64)
        kernels.active_blocks(self.totals, self.fractions, out)
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
        assert (self.fractions[self.totals[:, kernels.FRACTIONAL_BLOCKS] == 0] == 0.0).all()

    def _check_prefix(self, prefix: np.uint64, slot: int) -> None:
        """Its bit is set in the row of its group."""
        group, bit = divmod(slot, kernels.GROUP_SLOTS)
        bits = self._holders.entry(prefix, group)[kernels.BITS :]
        assert int(bits[bit >> 6]) >> (bit & 63) & 1
