"""Tree and orphans of an index: effects of locked steps.  No lock, no slots.

Every method is a step under the index's lock, bounded by its input; SlotWriter splits larger
changes. A `holder` is a single number for slot, tier and kind of announcement, as in kernels.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.block_hashing import Hashes
from indexer.index import change_kernels, clear_kernels, lane_kernels, store_kernels
from indexer.index import header_kernels as state
from indexer.index.header_kernels import TIER_BITS, TIER_MASK
from indexer.index.index_memory import IndexMemory
from indexer.index.keyed_roots import ROOT_BYTES, ROOTS_MAX, KeyedRoots, SeedParts
from indexer.index.orphans import ORPHAN_BYTES, Orphan, OrphanStore
from indexer.index.reuse_layouts import ReuseLayouts
from indexer.tiers import Tier

DETACHED_STEP_MAX = 64  # blocks stored singly per step
ADOPT_STEP_MAX = 64  # orphans placed per step
CLEAR_STEP_MAX = 2048  # nodes or records examined per step
CLEAR_SETS_BYTES = 1 << 19  # bytes of holder sets examined per step
ORPHANS_SHARE = 8
"""Divisor of the index's bytes: the share that orphans may take."""
KEYED_ROOTS_SHARE = 16
"""Divisor of the index's bytes: the share that first blocks of sequences with keys may take."""

_NO_HASHES: Hashes = np.empty(0, np.uint64)


class ChangeBuffer:
    """Buffer of changes of a slot, see `change_kernels`: the first `used` of `rows`."""

    __slots__ = ("content_hashes", "engine_hashes", "progress", "rows", "used", "view")

    def __init__(self, rows: int, names: int) -> None:
        """Allocate space for this many changes and names."""
        self.rows = np.zeros((rows, change_kernels.CHANGE_LENGTH), np.int64)
        self.used = 0
        self.engine_hashes: Hashes = np.empty(names, np.uint64)
        self.content_hashes: Hashes = np.empty(names, np.uint64)
        self.progress = np.zeros(change_kernels.PROGRESS_LENGTH, np.int64)
        self.view = self.progress.data
        """View of `progress`, faster to write from Python."""


def to_signed(word: int) -> int:
    """Return the int64 with the bits of a uint64."""
    return word - (word >> 63 << 64)


def holder_of(slot: int, tier: int, *, counted: bool) -> int:
    """Return the number that kernels take for a holder, in a tier or a lane."""
    return slot << 1 + TIER_BITS | tier << 1 | counted


def slot_of_holder(holder: int) -> int:
    """Return the slot of a holder."""
    return holder >> 1 + TIER_BITS


def tier_of_holder(holder: int) -> int:
    """Return the tier, or the lane, of a holder."""
    return holder >> 1 & TIER_MASK


class BlockTree:
    """Blocks in the tree (`memory`), and blocks without a known parent (`orphans`)."""

    def __init__(self, blocks_max: int, orphans_max: int, bytes_max: int) -> None:
        # Orphans and first blocks with keys live outside the arrays, but within the same limit.
        orphans_max = min(orphans_max, bytes_max // ORPHANS_SHARE // ORPHAN_BYTES)
        roots_max = min(ROOTS_MAX, bytes_max // KEYED_ROOTS_SHARE // ROOT_BYTES)
        reserved = orphans_max * ORPHAN_BYTES + roots_max * ROOT_BYTES
        self.memory = IndexMemory(blocks_max, bytes_max - reserved)
        self.layouts = ReuseLayouts(self.memory)
        self.orphans = OrphanStore(orphans_max, self._mark_orphans)
        self.keyed_roots = KeyedRoots(roots_max)
        self.bytes_max = bytes_max
        self.header = self.memory.header
        self._single = ChangeBuffer(1, 0)
        self._single.used = 1
        self._any_writer = np.array([1, 0, change_kernels.NO_SLOT, 0], np.int64)
        self.lookahead = 0
        """Tokens behind a block that the block's content covers, as events have shown; 0 before."""
        self.slots_to_clear: set[int] = set()
        """Slots to be cleared: the engine removed blocks that the tree could not remove."""

    def _mark_orphans(self, slot: int, has_orphans: bool) -> None:
        self.memory.column(state.WAITING)[slot] = has_orphans

    def note_lookahead(self, lookahead: int) -> bool:
        """Take the lookahead of an engine's blocks; return False if another lookahead is in use.

        Paths are hashed for all slots alike.  Blocks without a lookahead so far cover one token.
        """
        usual = self.lookahead or 1
        if lookahead != usual and self.memory.value(state.NODES_LIVE):
            return False
        self.lookahead = lookahead
        return True

    def nbytes(self) -> int:
        """Return the memory in use; at most `bytes_max`, unless an empty index takes more."""
        outside = len(self.orphans) * ORPHAN_BYTES + len(self.keyed_roots) * ROOT_BYTES
        return self.memory.nbytes() + outside

    @property
    def lanes(self) -> int:
        """Number of lanes that the holder sets have planes for."""
        return self.memory.value(state.LANES)

    def count_blocks(self, slot: int) -> int:
        """Return the number of blocks that a slot holds, counted per tier and lane."""
        return int(self._held_by_tier(slot).sum())

    def count_tier_blocks(self, slot: int, tier: int) -> int:
        """Return the number of blocks that a slot holds in a tier or lane."""
        return int(self._held_by_tier(slot)[tier])

    def count_lane_blocks(self, slot: int) -> int:
        """Return the number of blocks that a slot holds in its lanes."""
        return int(self._held_by_tier(slot)[state.N_TIERS :].sum())

    def _held_by_tier(self, slot: int) -> NDArray[np.int64]:
        """Return the number of blocks that a slot holds, by tier and lane."""
        held: NDArray[np.int64] = self.memory.column(state.LIVE)
        return held.reshape(state.LIVE_TIERS, -1)[:, slot]

    def has_block_name(self, slot: int, tier: int, engine_hash: int) -> bool:
        """Return whether the slot has a block of this name in the tree, in any tier."""
        holder = holder_of(slot, tier, counted=False)
        return bool(store_kernels.find_block(self.header, holder, False, 0, engine_hash))

    def has_block_name_in_tier(self, slot: int, tier: int, engine_hash: int) -> bool:
        """Return whether the slot has a block of this name in the tree, in this tier."""
        holder = holder_of(slot, tier, counted=False)
        return bool(store_kernels.find_block_in_tier(self.header, holder, engine_hash))

    def find_names(self, holder: int, names: Hashes) -> NDArray[np.bool_]:
        """Return whether the slot knows each name, in any tier; orphans are unknown."""
        is_known = np.zeros(names.size, np.bool_)
        store_kernels.find_names(self.header, holder, names, is_known)
        return is_known

    def find_seed_parts(self, holder: int, name: int) -> SeedParts | None:
        """Return the parts of the seed below a block; None if the slot does not know the name."""
        root = np.zeros(1, np.uint64)
        if not store_kernels.find_root(self.header, holder, name, root):
            return None
        return self.keyed_roots.find_parts(int(root[0]))

    def add_keyed_root(self, content: int, parts: SeedParts) -> bool:
        """Store the parts of the seed below a first block; return False if the table is full."""
        roots = self.keyed_roots
        if roots.add(content, parts):
            return True
        if not roots.needs_removal:
            return False
        contents = roots.contents()
        is_live = np.zeros(contents.size, np.bool_)
        store_kernels.find_first_blocks(self.header, contents, is_live)
        roots.remove_dead(contents, is_live)
        return roots.add(content, parts)

    # Changes: the methods below return after a kernel call, or grow tables and continue.

    def apply_changes(
        self, changes: ChangeBuffer, first: int, last: int, writer: NDArray[np.int64]
    ) -> int:
        """Run the kernel once for changes[first:last], with the result of `apply_changes`."""
        changes.view[change_kernels.FIRST], changes.view[change_kernels.LAST] = first, last
        done: int = change_kernels.apply_changes(
            self.header,
            changes.rows,
            changes.engine_hashes,
            changes.content_hashes,
            changes.progress,
            writer,
        )
        return done

    def finish_changes(self, changes: ChangeBuffer, done: int) -> int:
        """Continue where the kernel stopped, and return the number of finished changes.

        The loop ends before a change with an unknown parent, or after a change that adds the slot
        to `slots_to_clear` or needed larger tables.
        """
        rows, last = changes.rows, changes.used
        while done < last and rows[done, change_kernels.COUNT] >= 0:
            if self.header[state.NEED]:
                self.memory.grow_tables()
                last = done + 1  # growing the tables takes as long as many changes
            else:
                self.memory.retry_growth()
                done += 1
                if not rows[done - 1, change_kernels.IS_STORE]:
                    self.slots_to_clear.add(
                        slot_of_holder(int(rows[done - 1, change_kernels.HOLDER]))
                    )
                    break
            if done < last:
                done = self.apply_changes(changes, done, last, self._any_writer)
        return done

    def store_chain(self, holder: int, parent: int | None, blocks: Hashes, engines: Hashes) -> int:
        """Store a chain of blocks; return the blocks recorded, -1 if the slot has no such
        parent.
        """
        below = (0, 0) if parent is None else (1, to_signed(parent))
        self._single.rows[0] = (1, holder, *below, 0, 0, blocks.size, 0, 0)
        return self._apply_single(engines, blocks)

    def store_known(self, holder: int, engines: Hashes) -> int:
        """Record blocks that the slot has in some tier in this tier too. Return the number
        recorded.
        """
        header = self.header
        recorded = store_kernels.store_known_blocks(header, holder, engines, 0)
        while header[state.NEED]:
            self.memory.grow_tables()
            recorded += store_kernels.store_known_blocks(
                header, holder, engines, header[state.CURSOR]
            )
        return int(recorded)

    def count_levels(self, slot: int, parent: int | None, name: int, levels_max: int) -> int:
        """Return how many blocks a dense block is below a parent (None: the root), else 0."""
        below = (False, 0) if parent is None else (True, parent)
        return int(lane_kernels.count_levels(self.header, slot, *below, name, levels_max))

    def hold_part(self, holder: int, anchor: int, levels: int, local: int, name: int) -> int:
        """Hold a part of a block, see the kernel.  Return 1, 0 if refused, or UNKNOWN_NAME."""
        while True:
            done = int(lane_kernels.hold_part(self.header, holder, anchor, levels, local, name))
            if not self.header[state.NEED]:
                return done
            self.memory.grow_tables()

    def hold_descendant(self, holder: int, parent: int | None, path: Hashes, name: int) -> int:
        """Hold the last block of a path only, see the kernel.  Return as `hold_part`."""
        below = (False, 0) if parent is None else (True, parent)
        while True:
            done = int(lane_kernels.hold_descendant(self.header, holder, *below, path, name))
            if not self.header[state.NEED]:
                return done
            self.memory.grow_tables()

    def add_copies(self, holder: int, engines: Hashes, copies: NDArray[np.int64] | int) -> int:
        """Add `copies` announcements to each block; numbers below 1 add nothing."""
        header = self.header
        counts = np.broadcast_to(np.asarray(copies, np.int64), engines.shape)
        engines, counts = engines[counts > 0], counts[counts > 0]
        held = store_kernels.add_copies(header, holder, engines, counts, 0)
        while header[state.NEED]:
            self.memory.grow_tables()
            held += store_kernels.add_copies(header, holder, engines, counts, header[state.CURSOR])
        return int(held)

    def remove_blocks(self, holder: int, engines: Hashes, *, every_copy: bool) -> int:
        """Undo announcements. Return how many were known.

        Without memory for the remaining holder sets, the slot is added to `slots_to_clear`.
        """
        self._single.rows[0] = (0, holder, 0, 0, every_copy, 0, engines.size, 0, 0)
        return self._apply_single(engines, engines)

    def _apply_single(self, names: Hashes, blocks: Hashes) -> int:
        one = self._single
        one.engine_hashes, one.content_hashes = names, blocks
        self.finish_changes(one, self.apply_changes(one, 0, 1, self._any_writer))
        one.engine_hashes = one.content_hashes = _NO_HASHES
        return int(one.rows[0, change_kernels.COUNT])

    def count_refused(self, blocks: int) -> None:
        """Count blocks that are refused for lack of space, or given up."""
        self.header[state.REFUSED] += max(0, blocks)

    def store_detached(self, holder: int, parent: int, blocks: Hashes, engines: Hashes) -> int:
        """Store below a parent unknown to the slot: block by block, as orphans where needed.

        Returns the blocks recorded. If fewer than given, the rest is dropped and counted.
        """
        slot, tier, counted = slot_of_holder(holder), tier_of_holder(holder), bool(holder & 1)
        for i, (local, name) in enumerate(zip(blocks.tolist(), engines.tolist(), strict=True)):
            if i > 0:
                done = self.store_chain(holder, parent, blocks[i:], engines[i:])
                if done >= 0:
                    return i + done
            if store_kernels.find_block(self.header, holder, True, local, name):
                self.store_known(holder, engines[i : i + 1])
            else:
                self.remove_blocks(holder, engines[i : i + 1], every_copy=True)
                orphan = Orphan(tier, name, parent, local, 1)
                if not self.orphans.add(slot, orphan, counted=counted):
                    self.orphans.dropped += blocks.size - i
                    return i
            parent = name
        return int(blocks.size)

    # Orphans: Python dictionaries, consulted only for slots that have any.

    def forget_orphans(
        self, slot: int, tier: int, names: list[int], *, every_copy: bool = True
    ) -> int:
        """Undo announcements of orphans. Return how many were known."""
        if slot not in self.orphans:
            return 0
        return sum(self.orphans.remove(slot, tier, name, every_copy=every_copy) for name in names)

    def copy_orphans(self, holder: int, names: list[int]) -> int:
        """Add hash-only announcements of orphans of any tier. Return the number recorded."""
        slot, tier, counted = slot_of_holder(holder), tier_of_holder(holder), bool(holder & 1)
        recorded = 0
        for name in names:
            orphan = self.orphans.find_in_any_tier(slot, name)
            if orphan is not None and not self.has_block_name(slot, tier, name):
                copy = orphan._replace(tier=tier, copies=1)
                recorded += self.orphans.add(slot, copy, counted=counted)
        self.header[state.UNKNOWN] -= recorded
        return recorded

    def join_orphans(
        self, holder: int, parent: int | None, contents: list[int], names: list[int]
    ) -> None:
        """Move the copies of orphans to blocks just stored under the same names; drop the orphans.

        Copies count only if the orphan has the same parent and content.
        """
        slot, tier, counted = slot_of_holder(holder), tier_of_holder(holder), holder & 1
        for content, name in zip(contents, names, strict=True):
            orphan = self.orphans.find_in_tier(slot, tier, name)
            placed = orphan is not None and self.drop_placed(slot, tier, [name]) > 0
            if orphan is not None and placed and orphan[2:4] == (parent, content):
                self.add_copies(holder, np.array([name], np.uint64), orphan.copies - 1 + counted)
            parent = name

    def drop_placed(self, slot: int, tier: int, names: list[int]) -> int:
        """Forget orphans with a name that is in the tree by now. Return the count."""
        placed = [name for name in names if self.has_block_name_in_tier(slot, tier, name)]
        return self.forget_orphans(slot, tier, placed)

    def adopt_orphans(self, slot: int, parents: list[int]) -> None:
        """Place some of the orphans below the parents; `parents` is the work list."""
        room = ADOPT_STEP_MAX
        while parents and room > 0:
            parent = parents.pop()
            room -= 1
            if not self.has_block_name(slot, Tier.GPU, parent):
                continue
            children = self.orphans.take_children(slot, parent, room)
            if len(children) == room:
                parents.append(parent)  # more orphans may wait for this parent
            room -= len(children)
            for orphan in children:
                holder = holder_of(slot, orphan.tier, counted=True)
                block = np.array([orphan.local], np.uint64)
                name = np.array([orphan.engine_hash], np.uint64)
                self.store_chain(holder, parent, block, name)
                self.add_copies(holder, name, orphan.copies - 1)
                parents.append(orphan.engine_hash)

    # Clearing: a generator of short steps, between which the index lock is free.

    def sweep_slot(self, slot: int) -> Iterator[int]:
        """Take a slot out of the tree in bounded steps; yield the rows examined by each.

        The sweep needs no memory. Nothing may be announced for the slot until the end.
        """
        header, memory = self.header, self.memory
        # Deleting a record moves others behind the scan, so the scan repeats until none is left.
        while memory.column(state.RECORDS_OF)[slot]:
            position = 0
            while position < memory.column(state.RECORDS).size // state.RECORD_FIELDS:
                clear_kernels.clear_records(header, slot, position, position + CLEAR_STEP_MAX)
                position += CLEAR_STEP_MAX
                yield CLEAR_STEP_MAX
        position = 1
        while position < memory.value(state.SETS_USED) and self.count_blocks(slot):
            step = max(1, CLEAR_SETS_BYTES // memory.value(state.SET_BYTES))
            clear_kernels.clear_sets(header, slot, position, position + step)
            position += step
            yield step
        position = 1
        while position < memory.value(state.NODES_USED) and memory.value(state.SETS_UNLISTED):
            clear_kernels.settle_nodes(header, position, position + CLEAR_STEP_MAX)
            position += CLEAR_STEP_MAX
            yield CLEAR_STEP_MAX


def add_lane_step(lanes: int, tree: BlockTree) -> int:
    """Make a step towards planes for this many lanes; return whether another step is needed.

    Raises MemoryError, without effect, if memory is short.
    """
    if tree.lanes < lanes:
        tree.memory.add_lane_step(lanes)
    return int(tree.lanes < lanes)
