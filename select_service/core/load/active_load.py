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

PerSlot = npt.NDArray[np.int64]

_ROWS_AT_FIRST = 1024
_SLOTS_AT_FIRST = 64


class OutputBlocks(NamedTuple):
    """Output blocks of one reservation: `whole` of weight 1, `faded` of weight `fraction`."""

    whole: int = 0
    faded: int = 0
    fraction: float = 1.0


NO_OUTPUT = OutputBlocks()


class _Counted:
    """(slot, key) -> count, weight; see load_kernels."""

    def __init__(self, rows: int) -> None:
        self.hash = np.zeros(rows, np.uint64)
        self.slot = np.full(rows, -1, np.int32)
        self.count = np.zeros(rows, np.int32)
        self.weight = np.zeros(rows, np.float64)
        self.used = 0

    def columns(
        self,
    ) -> tuple[Hashes, npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        return self.hash, self.slot, self.count, self.weight

    def with_room_for(self, more: int) -> "_Counted":
        rows = _rows_for(self.used + more, len(self.hash))
        if rows == len(self.hash):
            return self
        grown = _Counted(rows)
        kernels.rehash_references(*self.columns(), *grown.columns())
        grown.used = self.used
        return grown


class _Holders:
    """prefix key -> bitmap of slots; see load_kernels."""

    def __init__(self, rows: int, words: int) -> None:
        self.hash = np.zeros(rows, np.uint64)
        self.slots = np.zeros(rows, np.int32)
        self.bits = np.zeros((rows, words), np.uint64)
        self.used = 0

    def columns(self) -> tuple[Hashes, npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
        return self.hash, self.slots, self.bits

    def with_room_for(self, more: int, words: int) -> "_Holders":
        rows = _rows_for(self.used + more, len(self.hash))
        if rows == len(self.hash) and words == self.bits.shape[1]:
            return self
        grown = _Holders(rows, words)
        kernels.rehash_holders(*self.columns(), *grown.columns())
        grown.used = self.used
        return grown


def _rows_for(entries: int, rows: int) -> int:
    while entries * 8 > rows * 5:
        rows *= 2
    return rows


class ActiveLoad:
    """Load of the slots of one partition.  Reservations are the caller's; this holds their sums."""

    def __init__(self) -> None:
        self._references = _Counted(_ROWS_AT_FIRST)
        self._prefixes = _Counted(_ROWS_AT_FIRST)
        self._holders = _Holders(_ROWS_AT_FIRST, 1)
        self._all_alive = np.zeros(1, np.uint64)
        self._alive = self._all_alive
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
        alive = np.zeros((rows + 63) // 64, np.uint64)
        holders = self._holders.with_room_for(0, len(alive))
        self._all_totals, self._all_fractions = totals, fractions
        self._all_alive, self._holders = alive, holders
        self._show(self.n_slots)

    def ensure_slots(self, n_slots: int) -> None:
        """Let slots 0 .. n_slots-1 exist.  Never shrinks: a freed slot may return."""
        if n_slots > self.n_slots:
            self.reserve_slots(n_slots)
            self._show(n_slots)

    def _show(self, n_slots: int) -> None:
        self.totals, self.fractions = self._all_totals[:n_slots], self._all_fractions[:n_slots]
        self._alive = self._all_alive[: (n_slots + 63) // 64]

    def reserve_room(self, blocks: int) -> None:
        """Let the next `add` of so many blocks find room.  Raises MemoryError, nothing is lost."""
        self._references = self._references.with_room_for(blocks)
        self._prefixes = self._prefixes.with_room_for(blocks)
        self._holders = self._holders.with_room_for(blocks, self._holders.bits.shape[1])

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
        self._references.used += kernels.add_blocks(
            *self._references.columns(), self.totals, slot, sequence_hashes
        )
        prefixes, holders = kernels.add_prefixes(
            *self._prefixes.columns(), *self._holders.columns(), slot, sequence_hashes
        )
        self._prefixes.used += prefixes
        self._holders.used += holders
        if output.whole:
            kernels.add_weights(self.totals, self.fractions, slot, 1.0, output.whole)
        self.totals[slot, kernels.PREFILL_TOKENS] += prefill_tokens
        self.totals[slot, kernels.REQUESTS] += 1

    def remove(
        self, slot: int, sequence_hashes: Hashes, prefill_tokens: int, output: OutputBlocks
    ) -> None:
        """Undo `add` with what is left of the reservation's prefill tokens and output blocks."""
        blocks, missing = kernels.remove_blocks(
            *self._references.columns(), self.totals, self.fractions, slot, sequence_hashes
        )
        prefixes, holders, not_found = kernels.remove_prefixes(
            *self._prefixes.columns(), *self._holders.columns(), slot, sequence_hashes
        )
        self._references.used -= blocks
        self._prefixes.used -= prefixes
        self._holders.used -= holders
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
            *self._references.columns(),
            self.totals,
            self.fractions,
            slot,
            sequence_hashes,
            decay_fraction,
        )
        assert missing == 0, "a block of a live reservation is not booked"
        return OutputBlocks(whole=0, faded=blocks, fraction=decay_fraction)

    def holders(
        self,
    ) -> tuple[Hashes, npt.NDArray[np.int32], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Who holds which beginnings: the first arguments of `kernels.leading_runs`."""
        return *self._holders.columns(), self._alive

    def active_blocks(self) -> PerSlot:
        """int64[n_slots]: active blocks, rounded half away from zero."""
        out = np.empty(self.n_slots, np.int64)
        kernels.active_blocks(self.totals, self.fractions, out)
        return out

    def check_invariants(self) -> None:
        """Recompute everything that is kept incrementally.  O(rows * slots), for tests."""
        for table in (self._references, self._prefixes):
            live = table.slot >= 0
            assert table.used == np.count_nonzero(live)
            assert (table.count[live] > 0).all()
            for row in np.flatnonzero(live):
                found = kernels.find_reference(
                    table.hash, table.slot, table.hash[row], int(table.slot[row])
                )
                assert found == row
        prefixes, holders = self._prefixes, self._holders
        assert holders.used == np.count_nonzero(holders.slots)
        bits = int(np.bitwise_count(holders.bits).sum())
        assert prefixes.used == int(holders.slots.sum()) == bits
        for row in np.flatnonzero(prefixes.slot >= 0):
            slot = int(prefixes.slot[row])
            holder = kernels.find_holder(holders.hash, holders.slots, prefixes.hash[row])
            assert holders.slots[holder] > 0
            assert int(holders.bits[holder, slot >> 6]) >> (slot & 63) & 1
        assert (self.totals >= 0).all()
        assert (self.fractions[self.totals[:, kernels.FRACTIONAL_BLOCKS] == 0] == 0.0).all()
