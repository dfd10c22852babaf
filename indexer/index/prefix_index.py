"""Which slots hold which blocks, in which tier, and how much of a prompt each slot has.

One prefix tree over block content hashes for all slots and tiers (layout: state_kernels). Every
slot speaks its own language of engine hashes: a hash is only ever compared with what the same slot
announced. No clock, no thread, no I/O; the lock is held for one bounded step at a
time. The rules:

* A slot holds a block in a tier while at least one of its announcements of it is not undone.
  `counted` stores count copies per (slot, tier, engine hash), each removed on its own.
* A block belongs below its parent as the same slot announced it, in any tier. An unknown parent
  makes it an orphan, invisible until the parent is announced.
* A hash that (slot, tier) announces at another place names only the new place.
* Removing a block leaves its descendants; a match just stops there until it is back.
* A full index records the leading blocks that fit and refuses the rest. Full is: as many blocks as
  it may have, or as many bytes. Where a removal finds no room for the holder sets that it leaves,
  the slot forgets everything, which takes none: it must not promise what is not there.
* What is large is done in steps, and the lock is free in between.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.hashes import Hashes
from indexer.index import invariants
from indexer.index import state_kernels as state
from indexer.index.block_tree import BlockTree
from indexer.index.match_kernels import match
from indexer.index.memory import BYTES_MAX
from indexer.index.orphans import Orphan
from indexer.index.slot_writer import SlotWriter, rows_of_writers
from indexer.index.slots import Slots
from indexer.index.snapshot import IndexSnapshot, Place, RawCopy
from indexer.mutex import Mutex
from indexer.tiers import N_TIERS

ORPHAN_BLOCKS_MAX = 65_536
WRITERS_MADE_AT_ONCE = 256


class IndexStats(NamedTuple):
    """Plain numbers about an index; blocks and memberships are current, the last three totals."""

    blocks: int
    blocks_max: int
    memberships: int  # (slot, tier, block) triples
    bytes: int
    bytes_max: int
    holder_sets: int
    edges: int  # parent-child pairs that are not neighbours in memory
    records: int
    orphans: int
    dropped_orphans: int
    refused_blocks: int
    unannounced_blocks: int  # hash-only announcements of blocks never announced with content


class _Moment(NamedTuple):
    """What belongs to a copy and is not in the arrays."""

    slots: tuple[int, ...]
    places: dict[int, Place]
    live_at: dict[int, float]
    orphans: list[tuple[int, list[Orphan]]]


class PrefixIndex:
    """The index of one partition. Thread-safe, but for snapshots only as far as `copy_lock` is.

    lock: around every step; None: one of its own. copy_lock: around every snapshot, of which there
    is one at a time. Raises MemoryError.
    """

    def __init__(
        self,
        blocks_max: int,
        *,
        bytes_max: int = BYTES_MAX,
        orphan_blocks_max: int = ORPHAN_BLOCKS_MAX,
        lock: Mutex | None = None,
        copy_lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.lock = Mutex() if lock is None else lock
        """Also in the header: kernels that read or change the index take it themselves."""
        self._copy_lock = nullcontext() if copy_lock is None else copy_lock
        self._tree = BlockTree(blocks_max, orphan_blocks_max, bytes_max)
        self.header = self._tree.header
        """How kernels reach all of it (state_kernels); never replaced."""
        self.header[state.MUTEX] = self.lock.address
        self._slots: Slots[SlotWriter] = Slots()
        self._spare: list[SlotWriter] = []
        """Writers without a slot yet."""

    @property
    def n_slots(self) -> int:
        """Highest slot ever in use + 1: the number of rows of a match."""
        return len(self._slots.writers)

    def open_slot(self) -> SlotWriter:
        """Take the lowest free slot. O(holder sets) in steps when the slots double, else O(log).

        Raises MemoryError, and changes nothing, when there is no room for more slots.
        """
        self.reserve_slots(1)
        return self.open_slots(1)[0]

    def open_slots(self, number: int) -> list[SlotWriter]:
        """Take the lowest free slots, for which `reserve_slots` has made room. O(log) each."""
        writers, slots, n_opened = self._new_writers(number), self._slots, 0
        try:
            with self.lock:
                for writer in writers:
                    slots.enter(writer)
                    n_opened += 1
        except MemoryError:
            for writer in writers[:n_opened]:
                writer.close()
            raise
        return writers

    def reopen_slots(self, writers: Sequence[SlotWriter]) -> list[SlotWriter]:
        """Hand slots to new writers, which are returned; the others are closed. O(1) each.

        What a slot holds goes with the new writer's `finish_clear`; until then it stores nothing.
        """
        fresh = self._new_writers(len(writers))
        with self.lock:
            gone = [old.hand_over(new) for old, new in zip(writers, fresh, strict=True)]
        for orphans in gone:
            orphans.discard()
        return fresh

    def make_writers(self, number: int) -> bool:
        """One bounded step, for when so many slots are opened or reopened at once. Returns whether
        another one is needed.
        """
        missing = number - len(self._spare)
        if missing > 0:
            self._spare += self._made_writers(min(missing, WRITERS_MADE_AT_ONCE))
        return len(self._spare) < number

    def _new_writers(self, number: int) -> list[SlotWriter]:
        """Those that were made ahead first."""
        spare, self._spare = self._spare[:number], self._spare[number:]
        return spare + self._made_writers(number - len(spare))

    def _made_writers(self, number: int) -> list[SlotWriter]:
        rows = rows_of_writers(number)
        return [SlotWriter(self._slots, self._tree, self.lock, row) for row in rows]

    def reserve_slots(self, more: int) -> int:
        """Let `open_slots` find room for so many. Returns how many slots that makes.

        O(holder sets) in steps when the slots double. Raises MemoryError, and changes nothing.
        """
        while self.widen_on(more):
            pass
        with self.lock:
            return self._slots.number_with(more)

    def has_room(self, more: int) -> bool:
        """Can `open_slots` take so many?"""
        with self.lock:
            return self._has_room(more)

    def widen_on(self, more: int) -> bool:
        """One bounded step towards room for `more` slots. Returns whether another one is needed.

        Raises MemoryError, and changes nothing, when there is no room for them.
        """
        with self.lock:
            if not self._has_room(more):
                self._tree.memory.widen_on()
            return not self._has_room(more)

    def match(self, path: Hashes) -> NDArray[np.int32]:
        """Matched blocks [n_slots, N_TIERS], tiers cumulated: column t counts tiers 0..t.

        `path` is uint64 [n_blocks], C-contiguous, content hashes, first block first. The result is
        a fresh array. O(n_blocks), plus O(n_slots) where the holders of the path change.
        """
        with self.lock:
            matched = np.empty((len(self._slots.writers), N_TIERS), np.int32)
            match(self.header, path, matched)
        return matched

    def stats(self) -> IndexStats:
        """Current size and totals of everything that was turned away."""
        with self.lock:
            tree, value = self._tree, self._tree.memory.value
            return IndexStats(
                blocks=value(state.NODES_LIVE),
                blocks_max=value(state.NODES_MAX),
                memberships=int(tree.memory.column(state.LIVE).sum()),
                bytes=tree.nbytes(),
                bytes_max=tree.bytes_max,
                holder_sets=value(state.SETS_LIVE),
                edges=value(state.EDGES + state.ENTRIES),
                records=value(state.RECORDS + state.ENTRIES),
                orphans=len(tree.orphans),
                dropped_orphans=tree.orphans.dropped,
                refused_blocks=value(state.REFUSED),
                unannounced_blocks=value(state.UNKNOWN),
            )

    def snapshot(self) -> IndexSnapshot:
        """A copy of one moment. O(blocks), in steps. Raises MemoryError.

        A slot of which a step is outstanding, because it announces much or is cleared or filled,
        is not among its slots.
        """
        with self._copy_lock:
            copy = RawCopy(self._tree.memory)
            moment = self._begin(copy)
            while moment is None:
                copy.reserve()
                moment = self._begin(copy)
            try:
                more = True
                while more:
                    with self.lock:
                        more = copy.step()
            finally:
                with self.lock:
                    copy.end()
        orphans = tuple((slot, orphan) for slot, mine in moment.orphans for orphan in mine)
        return copy.snapshot(moment.slots, moment.places, orphans, moment.live_at)

    def _has_room(self, more: int) -> bool:
        return self._tree.memory.has_slot(self._slots.number_with(more) - 1)

    def _begin(self, copy: RawCopy) -> "_Moment | None":
        """None when the index has grown beyond the copy."""
        with self.lock:
            if not copy.begin():
                return None
            writers = [writer for writer in self._slots.writers if writer is not None]
            return _Moment(
                slots=tuple(w.slot for w in writers if w.is_whole),
                places={w.slot: w.place for w in writers if w.place is not None},
                live_at={w.slot: w.live_at for w in writers if w.live_at is not None},
                orphans=self._tree.orphans.by_slot(),
            )

    def check_invariants(self) -> None:
        """Recompute everything that is kept incrementally. O(blocks * slots), for tests."""
        with self.lock:
            tree = self._tree
            invariants.check_memory(tree.memory)
            tree.orphans.check_invariants()
            assert tree.nbytes() <= tree.bytes_max
            for slot, orphans in tree.orphans.by_slot():
                assert self._slots.writers[slot] is not None
                for orphan in orphans:
                    assert not tree.known(slot, orphan.tier, orphan.parent), "not adopted"
                    placed = tree.placed(slot, orphan.tier, orphan.engine_hash)
                    assert not placed, "both an orphan and in the tree"
