"""Announcements of a rank: stores, removals and clears of a slot, cut into bounded locked
steps.

`prefix_index` has the rules, `block_tree` the single steps.  This module decides which steps a
change consists of, and how a change ends if the slot is cleared or closed in between.
"""

from collections.abc import Callable, Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.block_hashing import Hashes
from indexer.index import change_kernels
from indexer.index.block_tree import (
    ADOPT_STEP_MAX,
    DETACHED_STEP_MAX,
    BlockTree,
    ChangeBuffer,
    holder_of,
)
from indexer.index.cache_group_status import CacheGroupStatus
from indexer.index.cache_groups import CacheGroups
from indexer.index.groups_record import GroupsRecord
from indexer.index.index_snapshot import StreamPosition
from indexer.index.orphans import SlotOrphans
from indexer.index.slot_changes import add_copies_part, remove_part, store_known_part, store_part
from indexer.index.slot_keys import SlotKeys
from indexer.index.slot_table import SlotTable
from indexer.jit.mutex import Mutex

STEP_BLOCKS_MAX = 2048  # blocks announced or removed per locked step
DETACHED_BLOCK_COST = 64
"""Cost of a block that is placed by itself, in blocks of a chain."""


class SlotWriter:
    """Writer of the announcements of a rank. Each method takes the lock.

    A change may name the writer of the rank with the event stream. That writer's `next_position`
    becomes `place` in the same locked step as the change, so that a snapshot always has the place
    that belongs to the blocks.

    After `close` every method does nothing and returns 0. The same holds for a store during a
    `clear` of the slot in another thread: the store counts as earlier than the clear.

    A writer is made without a slot, so that many can be prepared; `assign_slot` assigns the slot.
    """

    def __init__(
        self,
        slots: "SlotTable[SlotWriter]",
        tree: BlockTree,
        lock: Mutex,
        row: NDArray[np.int64],
    ) -> None:
        """row: a row of `make_writer_rows`"""
        self.slot = change_kernels.NO_SLOT
        self.keys = SlotKeys(tree, lock, self.slot)
        self.lacks_groups = False
        """True if the slot has blocks of a dump that does not know the rank's cache groups."""
        self.groups_record: GroupsRecord | None = None
        """Record of `cache_groups` for snapshots, replaced as a whole."""
        self.group_status: CacheGroupStatus | None = None
        """Part of `cache_groups` that any thread may read, replaced together with `groups_record`;
        None while the rank is plain.
        """
        self.cache_groups: CacheGroups | None = None
        """Cache groups of the rank; None while only a dense group is known."""
        self._row = row
        """State shared with kernels, see `change_kernels`."""
        self._row_view = row.data
        self._row_view[change_kernels.MUTEX] = lock.address
        self._positions: list[StreamPosition | None] = [None, None]
        self.next_position: StreamPosition | None = None
        """Value of `place` after the next change that names this writer as the stream."""
        self.live_at: float | None = None
        """Monotonic seconds when a live batch last moved `place`; None before the first in this
        life.
        """
        self.is_filling = False
        """True while blocks of a dump are being added: the slot is incomplete for all readers."""
        self.has_unpositioned_blocks = False
        """True if the slot has blocks without a stream place, which may be announced again."""
        self._slots = slots
        self._tree = tree
        self._lock = lock
        self._open = True
        self._clearing = False
        self.is_half_cleared = False
        """True after an abandoned clear; until the next clear nothing is recorded."""
        self.pending_steps: Iterator[int] | None = None
        """Remaining steps of an event after the stream was closed midway; see `settle_in_steps`.
        A clear of the slot may drop these steps.
        """
        self._changing = False  # by a change of several steps
        self._clears = 0

    def assign_slot(self, slot: int) -> None:
        """Assign a slot to this writer."""
        self.slot = self._row_view[change_kernels.SLOT] = slot
        self.keys = SlotKeys(self._tree, self._lock, slot)

    @property
    def is_open(self) -> bool:
        """True until `close` or `hand_over_slot`, while the slot belongs to this writer."""
        return self._open

    @property
    def n_clears(self) -> int:
        """Number of clears of the slot since this writer took over."""
        return self._clears

    @property
    def position(self) -> StreamPosition | None:
        """Position up to which the stream of this slot's own rank is applied; None if unknown."""
        return self._positions[self._row_view[change_kernels.PLACE_INDEX]]

    @position.setter
    def position(self, place: StreamPosition | None) -> None:
        self._positions[self._row_view[change_kernels.PLACE_INDEX]] = place

    @property
    def is_whole(self) -> bool:
        """True if the slot has exactly the blocks that the streams announced."""
        return not (self._clearing or self.is_filling or self._changing)

    def store(
        self,
        tier: int,
        parent: int | None,
        block_hashes: Hashes,
        engine_hashes: Hashes,
        *,
        counted: bool = True,
        stream: "SlotWriter | None" = None,
    ) -> int:
        """Store a chain of blocks below `parent` (None: from the root) in `tier`.

        block_hashes and engine_hashes: uint64 [n], C-contiguous. Returns the number of blocks
        recorded, orphans included; fewer if the index is full.
        """
        recorded = self.store_in_one_step(
            tier, parent, block_hashes, engine_hashes, counted=counted, stream=stream
        )
        if recorded >= 0:
            return recorded
        return _run_all(
            self.store_in_steps(
                tier, parent, block_hashes, engine_hashes, counted=counted, stream=stream
            )
        )

    def store_in_one_step(
        self,
        tier: int,
        parent: int | None,
        block_hashes: Hashes,
        engine_hashes: Hashes,
        *,
        counted: bool = True,
        stream: "SlotWriter | None" = None,
    ) -> int:
        """Store as `store`, in a short step; return -1, without effect, if several are needed."""
        size = len(block_hashes)
        assert size == len(engine_hashes)
        if size > STEP_BLOCKS_MAX:
            return -1
        holder = holder_of(self.slot, tier, counted=counted)
        with self._lock:
            recorded = -1
            if self._clearing or not self._open:
                recorded = 0
            elif self.slot not in self._tree.orphans:
                recorded = self._tree.store_chain(holder, parent, block_hashes, engine_hashes)
            if recorded >= 0 and stream is not None:
                stream.position = stream.next_position
            return recorded

    def apply_changes(
        self, changes: ChangeBuffer, after: StreamPosition, part: Callable[[int], StreamPosition]
    ) -> int:
        """Apply changes of this slot by the slot's stream in a short step. Return the number done.

        Other changes do not begin, as these need several steps or wait for `settle_in_steps`.
        after: new `place`; part: function (number of changes done) -> `place`, for fewer
        """
        # The kernel cannot store a Python object: both places exist, and the kernel only switches.
        self._positions[1 - self._row_view[change_kernels.PLACE_INDEX]] = after
        done = self._tree.apply_changes(changes, 0, changes.used, self._row)
        if done == change_kernels.REFUSED:
            return 0
        if done < changes.used:
            try:  # the kernel left the lock to this thread
                done = self._tree.finish_changes(changes, done)
                if done:
                    self.position = after if done == changes.used else part(done)
            finally:
                self._lock.release()
        if self._tree.slots_to_clear:
            self._must_clear()
        return done

    def store_in_steps(
        self,
        tier: int,
        parent: int | None,
        block_hashes: Hashes,
        engine_hashes: Hashes,
        *,
        counted: bool = True,
        stream: "SlotWriter | None" = None,
    ) -> Generator[int, None, int]:
        """Store as `store`, in steps: yield the cost of each, roughly in blocks."""
        holder = holder_of(self.slot, tier, counted=counted)
        waiting: list[int] = []
        clears = self._clears
        recorded = yield from self._store_chain_in_steps(
            holder, parent, block_hashes, engine_hashes, stream, waiting
        )
        yield from self._clear_if_needed()
        while waiting:
            with self._lock:
                if not self._open or self._clearing or self._clears != clears:
                    break
                self._tree.adopt_orphans(self.slot, waiting)
            yield ADOPT_STEP_MAX * DETACHED_BLOCK_COST
        return recorded

    def store_known(
        self,
        tier: int,
        engine_hashes: Hashes,
        *,
        counted: bool = True,
        stream: "SlotWriter | None" = None,
    ) -> int:
        """Record blocks that this slot announced with content, in any tier, in `tier` as well.

        engine_hashes: uint64 [n], C-contiguous. Unknown hashes are ignored and counted. Returns
        the number recorded.
        """
        holder = holder_of(self.slot, tier, counted=counted)
        return self._change_in_steps(
            engine_hashes.size,
            stream,
            lambda part: store_known_part(self._tree, holder, engine_hashes[part]),
        )

    def add_copies(self, tier: int, engine_hashes: Hashes, copies: NDArray[np.int64]) -> None:
        """Add announcements to blocks of this slot and tier, orphans included.

        engine_hashes: uint64 [n], C-contiguous; absent hashes are ignored. copies: int64 [n], the
        announcements beyond the first.
        """
        holder = holder_of(self.slot, tier, counted=True)
        self._change_in_steps(
            engine_hashes.size,
            None,
            lambda part: add_copies_part(self._tree, holder, engine_hashes[part], copies[part]),
        )

    def remove(
        self,
        tier: int,
        engine_hashes: Hashes,
        *,
        stream: "SlotWriter | None" = None,
        sweep: bool = True,
    ) -> int:
        """Undo an announcement of each block. Return the number of known blocks.

        engine_hashes: uint64 [n], C-contiguous. sweep: False leaves a slot that must start over
        half cleared; `settle_in_steps` does the rest, which may be much work.
        """
        holder = holder_of(self.slot, tier, counted=True)
        size = len(engine_hashes)
        if size > STEP_BLOCKS_MAX:
            removed = self._change_in_steps(
                size, stream, lambda part: remove_part(self._tree, holder, engine_hashes[part])
            )
        else:
            with self._lock:
                if stream is not None:
                    stream.position = stream.next_position
                if not self._open or self._clearing:
                    return 0
                removed = remove_part(self._tree, holder, engine_hashes)
        if removed < size and self._must_clear() and sweep:
            self.clear()
        return removed

    def change_tree(self, change: Callable[[BlockTree], int]) -> int:
        """Run a bounded change of the slot under the lock; return the result, 0 if not possible.

        A closed slot or a slot that is being cleared does not change.
        """
        with self._lock:
            return change(self._tree) if self._open and not self._clearing else 0

    def clear(self, *, stream: "SlotWriter | None" = None) -> None:
        """Forget all blocks of the slot, in every tier. O(blocks of the index) at most."""
        for _ in self.clear_in_steps(stream=stream):
            pass

    def clear_in_steps(self, *, stream: "SlotWriter | None" = None) -> Iterator[int]:
        """Clear as `clear`, in steps: yield the upper limit of rows examined after each.

        A caller that stops in between leaves the slot half cleared; `clear` or `close` continues.
        """
        self.pending_steps = None
        if self._begin_clear(closing=False, stream=stream):
            yield from self._finish_clear()

    def settle_in_steps(self) -> Iterator[int]:
        """Finish unfinished work in steps: the rest of an event, or of a clear."""
        while (rest := self.pending_steps) is not None:
            cost = next(rest, None)
            if cost is not None:
                yield cost
            elif self.pending_steps is rest:
                self.pending_steps = None
        if self.is_half_cleared:
            yield from self.clear_in_steps()

    def close(self) -> None:
        """Clear, and free the slot for reuse. Further calls do nothing."""
        self.pending_steps = None
        if self._begin_clear(closing=True, stream=None):
            self.finish_clear()

    def hand_over_slot(self, fresh: "SlotWriter") -> SlotOrphans:
        """Give the slot to a new writer and close this writer.  O(1), with the index locked.

        The blocks of the slot are removed by the new writer's `finish_clear`; until then the writer
        stores nothing. Returns the orphans, which the caller should `discard` after unlocking.
        """
        assert self._open
        self._open, self.pending_steps = False, None
        self._update_row()
        gone = self._tree.orphans.drop_slot(self.slot)
        self._tree.layouts.set_layout(self.slot, None)
        fresh.assign_slot(self.slot)
        fresh._clearing = True
        fresh._update_row()
        # No moment without a writer: the slot must not look free to open_slots.
        self._slots.replace_owner(fresh)
        return gone

    def _update_row(self) -> None:
        self._row_view[change_kernels.TAKES_CHANGES] = self._open and not self._clearing

    # Steps: the lock is free in between, so each step checks for a close or a clear before.

    def _change_in_steps(
        self, size: int, stream: "SlotWriter | None", change: Callable[[slice], int]
    ) -> int:
        """Carry out a change of `size` hashes part by part. Return the sum of the results."""
        result = stop = 0
        clears = self._clears
        while True:
            part = slice(stop, stop + STEP_BLOCKS_MAX)
            with self._lock:
                if not self._open or self._clearing or self._clears != clears:
                    # A clear in between makes the rest obsolete: the change counts as earlier than
                    # the clear.
                    stop = size
                else:
                    stop = min(size, part.stop)
                    result += change(part)
                self._changing = stop < size
                if not self._changing:
                    if stream is not None:
                        stream.position = stream.next_position
                    return result

    def _store_chain_in_steps(
        self,
        holder: int,
        parent: int | None,
        blocks: Hashes,
        engines: Hashes,
        stream: "SlotWriter | None",
        waiting: list[int],
    ) -> Generator[int, None, int]:
        """Yield the steps of a store before orphans are placed; add their parents to `waiting`."""
        recorded, clears = 0, self._clears
        is_over = False
        while not is_over:
            with self._lock:
                stored, offered = 0, 1
                if self._open and not self._clearing and self._clears == clears:
                    part = slice(recorded, recorded + STEP_BLOCKS_MAX)
                    below = parent if recorded == 0 else int(engines[recorded - 1])
                    stored, offered = store_part(
                        self._tree, holder, below, blocks[part], engines[part], waiting
                    )
                    if stored < offered:
                        self._tree.count_refused(blocks.size - recorded - offered)
                recorded += stored
                is_over = stored < offered or recorded >= blocks.size
                self._changing = not is_over
                if is_over and stream is not None:
                    stream.position = stream.next_position
            yield DETACHED_BLOCK_COST * DETACHED_STEP_MAX if stored <= DETACHED_STEP_MAX else stored
        return recorded

    # Clearing: `_clears` counts, so that a store in another thread notices a clear between two
    # steps.

    def _must_clear(self) -> bool:
        """Return whether the slot must be cleared after a removal without memory, and mark this."""
        if self.slot not in self._tree.slots_to_clear:
            return False
        if not self._clearing:
            with self._lock:
                self._tree.count_refused(self._tree.count_blocks(self.slot))
            if self._begin_clear(closing=False, stream=None):
                self.is_half_cleared = True
        return self.is_half_cleared

    def _clear_if_needed(self) -> Iterator[int]:
        if self._must_clear() and self._begin_clear(closing=False, stream=None):
            yield from self._finish_clear()

    def _begin_clear(self, *, closing: bool, stream: "SlotWriter | None") -> bool:
        """Begin a clear; return whether the caller has to finish the clearing."""
        with self._lock:
            if stream is not None:
                stream.position = stream.next_position
            if not self._open:
                return False
            self._open = not closing
            begun = self._clearing and not self.is_half_cleared
            self._clearing, self.is_half_cleared, self._changing = True, False, False
            self._update_row()
            self._clears += 1
            gone = self._tree.orphans.drop_slot(self.slot)
            if closing:
                self._tree.layouts.set_layout(self.slot, None)
        # Outside the lock: freeing many small objects takes long and needs no consistency.
        gone.free_entries()
        return not begun

    def finish_clear(self) -> None:
        """Run the slow part of a clear, O(blocks of the index); the lock is free between steps."""
        for _ in self._finish_clear():
            pass

    def _finish_clear(self) -> Iterator[int]:
        sweep = self._tree.sweep_slot(self.slot)
        try:
            while rows := self._next_sweep_step(sweep):
                yield rows
        except GeneratorExit:
            self.is_half_cleared = True
            raise
        with self._lock:
            self._tree.slots_to_clear.discard(self.slot)
            self._clearing = False
            self._update_row()
            if not self._open:
                self._slots.release_slot(self)

    def _next_sweep_step(self, sweep: Iterator[int]) -> int:
        with self._lock:
            return next(sweep, 0)


def make_writer_rows(number: int) -> Iterator[NDArray[np.int64]]:
    """Return the kernel rows of new writers, which take changes and have no slot."""
    rows = np.zeros((number, change_kernels.WRITER_LENGTH), np.int64)
    rows[:, change_kernels.TAKES_CHANGES] = True
    rows[:, change_kernels.SLOT] = change_kernels.NO_SLOT
    return iter(rows)


def _run_all(steps: Generator[int, None, int]) -> int:
    """Run all steps of a generator; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: int = end.value
            return result
