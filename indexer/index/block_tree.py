"""The tree and the orphans of one index: what one locked step does to them. No lock, no slots.

Every method is one step under the index's lock, bounded by what it is given; SlotWriter cuts what
is larger. A `holder` is the kernels' one number for who announces what kind of block.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.hashes import Hashes
from indexer.index import change_kernels, clear_kernels, kernels
from indexer.index import state_kernels as state
from indexer.index.memory import IndexMemory
from indexer.index.orphans import ORPHAN_BYTES, Orphan, Orphans
from indexer.tiers import N_TIERS, Tier

DETACHED_STEP_MAX = 64  # blocks stored one by one in one step
ADOPT_STEP_MAX = 64  # orphans placed in one step
CLEAR_STEP_MAX = 2048  # nodes or records looked at in one step
CLEAR_SETS_BYTES = 1 << 19  # of holder sets looked at in one step
ORPHANS_SHARE = 8
"""Orphans may take one in so many of the index's bytes."""

_NO_HASHES: Hashes = np.empty(0, np.uint64)


class Changes:
    """Changes of one slot, see `change_kernels`: the first `used` of `rows`."""

    __slots__ = ("blocks", "names", "rows", "totals", "used")

    def __init__(self, rows: int, names: int) -> None:
        """Room for so many."""
        self.rows = np.zeros((rows, change_kernels.CHANGE_LENGTH), np.int64)
        self.used = 0
        self.names: Hashes = np.empty(names, np.uint64)
        self.blocks: Hashes = np.empty(names, np.uint64)
        self.totals = np.zeros(2, np.int64)


def as_signed(word: int) -> int:
    """The int64 with the bits of a uint64."""
    return word - (word >> 63 << 64)


def holder_of(slot: int, tier: int, *, counted: bool) -> int:
    """What kernels call a holder."""
    return slot << 3 | tier << 1 | counted


class BlockTree:
    """Blocks that have a place, in `memory`, and those that have none yet, in `orphans`."""

    def __init__(self, blocks_max: int, orphans_max: int, bytes_max: int) -> None:
        orphans_max = min(orphans_max, bytes_max // ORPHANS_SHARE // ORPHAN_BYTES)
        self.memory = IndexMemory(blocks_max, bytes_max - orphans_max * ORPHAN_BYTES)
        self.orphans = Orphans(orphans_max, self._let_wait)
        self.bytes_max = bytes_max
        self.header = self.memory.header
        self._one = Changes(1, 0)
        self._one.used = 1
        self._anybody = np.array([1, 0, change_kernels.NO_SLOT], np.int64)
        self.wrong_slots: set[int] = set()
        """Slots with blocks that they have removed: they are to be cleared."""

    def _let_wait(self, slot: int, has_orphans: bool) -> None:
        self.memory.column(state.WAITING)[slot] = has_orphans

    def nbytes(self) -> int:
        """Memory in use; never more than `bytes_max`, unless an empty index takes more."""
        return self.memory.nbytes() + len(self.orphans) * ORPHAN_BYTES

    def blocks_of(self, slot: int) -> int:
        """Blocks that a slot holds, each tier counted."""
        held = self.memory.column(state.LIVE)[slot * N_TIERS : (slot + 1) * N_TIERS]
        return int(held.sum())

    def known(self, slot: int, tier: int, engine_hash: int) -> bool:
        """Whether the slot has a block of this name in the tree, in any tier."""
        holder = holder_of(slot, tier, counted=False)
        return bool(kernels.find_place(self.header, holder, False, 0, engine_hash))

    def placed(self, slot: int, tier: int, engine_hash: int) -> bool:
        """Whether the slot has a block of this name in the tree, in this tier."""
        holder = holder_of(slot, tier, counted=False)
        return bool(kernels.find_here(self.header, holder, engine_hash))

    # --- changes --------------------------------------------------------------------------------

    def carry_out(
        self, changes: Changes, first: int, last: int, writer: NDArray[np.int64], mutex: int
    ) -> int:
        """One call of the kernel, which says what it takes and returns."""
        done: int = change_kernels.carry_out(
            self.header,
            changes.rows,
            first,
            last,
            changes.names,
            changes.blocks,
            changes.totals,
            writer,
            mutex,
        )
        return done

    def go_on(self, changes: Changes, done: int) -> int:
        """Go on where the kernel has stopped.  Returns how many changes are done: all before one
        whose parent is not known, or up to one that makes the slot one of `wrong_slots`, or for
        which room had to be made.
        """
        rows, last = changes.rows, changes.used
        while done < last and rows[done, change_kernels.COUNT] >= 0:
            if self.header[state.NEED]:
                self.memory.make_room()
                last = done + 1  # making room takes as long as many changes
            else:
                self.memory.retry()
                done += 1
                if not rows[done - 1, change_kernels.IS_STORE]:
                    self.wrong_slots.add(int(rows[done - 1, change_kernels.HOLDER]) >> 3)
                    break
            if done < last:
                done = self.carry_out(changes, done, last, self._anybody, 0)
        return done

    def store_chain(self, holder: int, parent: int | None, blocks: Hashes, engines: Hashes) -> int:
        """Blocks recorded below the parent, -1 if the slot does not know it."""
        below = (0, 0) if parent is None else (1, as_signed(parent))
        self._one.rows[0] = (1, holder, *below, 0, 0, blocks.size, 0, 0)
        return self._carry_out_one(engines, blocks)

    def store_known(self, holder: int, engines: Hashes) -> int:
        """Blocks that the slot has in some tier are now in this one too. Returns how many."""
        header = self.header
        recorded = kernels.store_known(header, holder, engines, 0)
        while header[state.NEED]:
            self.memory.make_room()
            recorded += kernels.store_known(header, holder, engines, header[state.CURSOR])
        return int(recorded)

    def add_copies(self, holder: int, engines: Hashes, copies: NDArray[np.int64] | int) -> int:
        """`copies` of each; of those that are no more than 0 nothing."""
        header = self.header
        counts = np.broadcast_to(np.asarray(copies, np.int64), engines.shape)
        engines, counts = engines[counts > 0], counts[counts > 0]
        held = kernels.add_copies(header, holder, engines, counts, 0)
        while header[state.NEED]:
            self.memory.make_room()
            held += kernels.add_copies(header, holder, engines, counts, header[state.CURSOR])
        return int(held)

    def remove(self, holder: int, engines: Hashes, *, every_copy: bool) -> int:
        """Undo announcements. Returns how many were known.

        If there is no memory for the holder sets that it leaves, the slot is one of `wrong_slots`.
        """
        self._one.rows[0] = (0, holder, 0, 0, every_copy, 0, engines.size, 0, 0)
        return self._carry_out_one(engines, engines)

    def _carry_out_one(self, names: Hashes, blocks: Hashes) -> int:
        one = self._one
        one.names, one.blocks = names, blocks
        self.go_on(one, self.carry_out(one, 0, 1, self._anybody, 0))
        one.names = one.blocks = _NO_HASHES
        return int(one.rows[0, change_kernels.COUNT])

    def refuse(self, blocks: int) -> None:
        """Count blocks that are not taken because there is no room, or that are given up."""
        self.header[state.REFUSED] += max(0, blocks)

    def store_detached(self, holder: int, parent: int, blocks: Hashes, engines: Hashes) -> int:
        """Store below a parent the slot does not know: block by block, orphans where need be.

        Returns the blocks recorded. Fewer than given: the rest is dropped, and counted.
        """
        slot, tier, counted = holder >> 3, holder >> 1 & 3, bool(holder & 1)
        for i, (local, name) in enumerate(zip(blocks.tolist(), engines.tolist(), strict=True)):
            if i > 0:
                done = self.store_chain(holder, parent, blocks[i:], engines[i:])
                if done >= 0:
                    return i + done
            if kernels.find_place(self.header, holder, True, local, name):
                self.store_known(holder, engines[i : i + 1])
            else:
                self.remove(holder, engines[i : i + 1], every_copy=True)
                orphan = Orphan(tier, name, parent, local, 1)
                if not self.orphans.add(slot, orphan, counted=counted):
                    self.orphans.dropped += blocks.size - i
                    return i
            parent = name
        return int(blocks.size)

    # --- orphans --------------------------------------------------------------------------------

    def forget_orphans(
        self, slot: int, tier: int, names: list[int], *, every_copy: bool = True
    ) -> int:
        """Undo announcements of orphans. Returns how many there were."""
        if slot not in self.orphans:
            return 0
        return sum(self.orphans.remove(slot, tier, name, every_copy=every_copy) for name in names)

    def copy_orphans(self, holder: int, names: list[int]) -> int:
        """Hash-only announcements of blocks that are orphans in some tier. Returns how many."""
        slot, tier, counted = holder >> 3, holder >> 1 & 3, bool(holder & 1)
        recorded = 0
        for name in names:
            orphan = self.orphans.find(slot, name)
            if orphan is not None and not self.known(slot, tier, name):
                copy = orphan._replace(tier=tier, copies=1)
                recorded += self.orphans.add(slot, copy, counted=counted)
        self.header[state.UNKNOWN] -= recorded
        return recorded

    def join_orphans(
        self, holder: int, parent: int | None, contents: list[int], names: list[int]
    ) -> None:
        """Blocks just announced may have been orphans: their copies join, other places are left."""
        slot, tier, counted = holder >> 3, holder >> 1 & 3, holder & 1
        for content, name in zip(contents, names, strict=True):
            orphan = self.orphans.get(slot, tier, name)
            placed = orphan is not None and self.drop_placed(slot, tier, [name]) > 0
            if orphan is not None and placed and orphan[2:4] == (parent, content):
                self.add_copies(holder, np.array([name], np.uint64), orphan.copies - 1 + counted)
            parent = name

    def drop_placed(self, slot: int, tier: int, names: list[int]) -> int:
        """Forget orphans whose name is in the tree by now. Returns how many there were."""
        placed = [name for name in names if self.placed(slot, tier, name)]
        return self.forget_orphans(slot, tier, placed)

    def adopt(self, slot: int, parents: list[int]) -> None:
        """Place some of the orphans that wait for the parents; `parents` is the work list."""
        room = ADOPT_STEP_MAX
        while parents and room > 0:
            parent = parents.pop()
            room -= 1
            if not self.known(slot, Tier.GPU, parent):
                continue
            children = self.orphans.take_children(slot, parent, room)
            if len(children) == room:
                parents.append(parent)  # there may be more
            room -= len(children)
            for orphan in children:
                holder = holder_of(slot, orphan.tier, counted=True)
                block = np.array([orphan.local], np.uint64)
                name = np.array([orphan.engine_hash], np.uint64)
                self.store_chain(holder, parent, block, name)
                self.add_copies(holder, name, orphan.copies - 1)
                parents.append(orphan.engine_hash)

    # --- clearing -------------------------------------------------------------------------------

    def sweep(self, slot: int) -> Iterator[int]:
        """Take a slot out of the tree, one bounded step for each item: the rows it looked at.

        Takes no memory. Nothing may be announced for the slot until the end.
        """
        header, memory = self.header, self.memory
        while memory.column(state.RECORDS_OF)[slot]:
            position = 0
            while position < memory.column(state.RECORDS).size // state.RECORD_FIELDS:
                clear_kernels.clear_records(header, slot, position, position + CLEAR_STEP_MAX)
                position += CLEAR_STEP_MAX
                yield CLEAR_STEP_MAX
        position = 1
        while position < memory.value(state.SETS_USED) and self.blocks_of(slot):
            step = max(1, CLEAR_SETS_BYTES // memory.value(state.SET_BYTES))
            clear_kernels.clear_sets(header, slot, position, position + step)
            position += step
            yield step
        position = 1
        while position < memory.value(state.NODES_USED) and memory.value(state.SETS_UNLISTED):
            clear_kernels.settle_nodes(header, position, position + CLEAR_STEP_MAX)
            position += CLEAR_STEP_MAX
            yield CLEAR_STEP_MAX
