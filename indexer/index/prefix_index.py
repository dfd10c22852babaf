"""Which slots hold which blocks, in which tier, and how much of a prompt each slot has.

One prefix tree over block content hashes for all slots and tiers (layout: state_kernels). Every
slot speaks its own language of engine hashes: a hash is only ever compared with what the same slot
announced. No clock, no thread, no I/O; the lock is injected and held for one bounded step at a
time. The rules:

* A slot holds a block in a tier while at least one of its announcements of it is not undone.
  `counted` stores count copies per (slot, tier, engine hash), each removed on its own.
* A block belongs below its parent as the same slot announced it, in any tier. An unknown parent
  makes it an orphan, invisible until the parent is announced.
* A hash that (slot, tier) announces at another place names only the new place.
* Removing a block leaves its descendants; a match just stops there until it is back.
* A full index records the leading blocks that fit and refuses the rest.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.index import invariants, kernels
from indexer.index import state_kernels as state
from indexer.index.memory import IndexMemory
from indexer.index.orphans import Orphan, Orphans
from indexer.index.snapshot import IndexSnapshot, Place, RawCopy
from indexer.tiers import N_TIERS, Tier

Hashes = NDArray[np.uint64]

ORPHAN_BLOCKS_MAX = 65_536
CLEAR_STEP_MAX = 16_384  # nodes or records looked at while the lock is held
ADOPT_STEP_MAX = 256  # parents whose orphans are placed while the lock is held


class IndexStats(NamedTuple):
    """Plain numbers about an index; blocks and memberships are current, the last three totals."""

    blocks: int
    blocks_max: int
    memberships: int  # (slot, tier, block) triples
    bytes: int
    holder_sets: int
    edges: int  # parent-child pairs that are not neighbours in memory
    records: int
    orphans: int
    dropped_orphans: int
    refused_blocks: int
    unannounced_blocks: int  # hash-only announcements of blocks never announced with content


class PrefixIndex:
    """The index of one partition. Thread-safe exactly as far as the injected lock is."""

    def __init__(
        self,
        blocks_max: int,
        *,
        orphan_blocks_max: int = ORPHAN_BLOCKS_MAX,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._lock: AbstractContextManager[Any] = nullcontext() if lock is None else lock
        self._memory = IndexMemory(blocks_max)
        self._header = self._memory.header
        self._orphans = Orphans(orphan_blocks_max)
        self._writers: list[SlotWriter | None] = []

    @property
    def n_slots(self) -> int:
        """Highest slot ever in use + 1: the number of rows of a match."""
        return len(self._writers)

    def open_slot(self) -> "SlotWriter":
        """Take the lowest free slot."""
        with self._lock:
            free = (slot for slot, writer in enumerate(self._writers) if writer is None)
            slot = next(free, len(self._writers))
            self._memory.make_slots(slot + 1)
            writer = SlotWriter(self, slot)
            self._writers[slot : slot + 1] = [writer]
            return writer

    def match(self, path: Hashes) -> NDArray[np.int32]:
        """Matched blocks [n_slots, N_TIERS], tiers cumulated: column t counts tiers 0..t.

        `path` is uint64 [n_blocks], C-contiguous, content hashes, first block first. The result is
        a fresh array. O(n_blocks), plus O(n_slots) where the holders of the path change.
        """
        with self._lock:
            matched = np.empty((len(self._writers), N_TIERS), np.int32)
            kernels.match(self._header, path, matched)
        return matched

    def read(self, kernel: Callable[..., int], *arguments: Any) -> int:
        """What a kernel of somebody else returns that reads the index, as `kernels.match` does:
        `kernel(header, *arguments)`, under the lock, in one bounded step.
        """
        with self._lock:
            return kernel(self._header, *arguments)

    def stats(self) -> IndexStats:
        """Current size and totals of everything that was turned away."""
        with self._lock:
            value = self._memory.value
            return IndexStats(
                blocks=value(state.NODES_LIVE),
                blocks_max=value(state.NODES_MAX),
                memberships=int(self._memory.column(state.LIVE).sum()),
                bytes=self._memory.nbytes(),
                holder_sets=value(state.SETS_LIVE),
                edges=value(state.EDGES_LIVE),
                records=value(state.RECORDS_LIVE),
                orphans=len(self._orphans),
                dropped_orphans=self._orphans.dropped,
                refused_blocks=value(state.REFUSED),
                unannounced_blocks=value(state.UNKNOWN),
            )

    def slot_blocks(self) -> NDArray[np.int64]:
        """Blocks held, [n_slots, N_TIERS]."""
        with self._lock:
            live = self._memory.column(state.LIVE)[: self.n_slots * N_TIERS]
            return live.reshape(self.n_slots, N_TIERS).copy()

    def snapshot(self) -> IndexSnapshot:
        """A consistent copy of everything. O(blocks) under the lock, but a plain memory copy."""
        copy = RawCopy(self._memory)
        with self._lock:
            copy.take()
            writers = [writer for writer in self._writers if writer is not None]
            whole = (w.slot for w in writers if not w._clearing and not w.filling)
            slots = tuple(whole)
            places = {w.slot: w.place for w in writers if w.place is not None}
            live_at = {w.slot: w.live_at for w in writers if w.live_at is not None}
            orphans = tuple(self._orphans.items())
        return copy.snapshot(slots, places, orphans, live_at)

    def check_invariants(self) -> None:
        """Recompute everything that is kept incrementally. O(blocks * slots), for tests."""
        with self._lock:
            invariants.check_memory(self._memory)
            self._orphans.check_invariants()
            for slot, orphan in self._orphans.items():
                assert self._writers[slot] is not None
                assert not self._known(slot, orphan.tier, orphan.parent), "not adopted"
                placed = self._placed(slot, orphan.tier, orphan.engine_hash)
                assert not placed, "both an orphan and in the tree"

    # The rest is for SlotWriter, which holds the lock.

    def _known(self, slot: int, tier: int, engine_hash: int) -> bool:
        holder = _holder(slot, tier, counted=False)
        return bool(kernels.find_place(self._header, holder, False, 0, engine_hash))

    def _placed(self, slot: int, tier: int, engine_hash: int) -> bool:
        holder = _holder(slot, tier, counted=False)
        return bool(kernels.find_here(self._header, holder, engine_hash))

    def _store_chain(self, holder: int, parent: int | None, blocks: Hashes, engines: Hashes) -> int:
        """Blocks recorded below the parent, -1 if the slot does not know it."""
        header = self._header
        done = kernels.store(header, holder, parent is not None, parent or 0, blocks, engines)
        while 0 <= done < blocks.size and header[state.NEED]:
            self._memory.make_room()
            done = kernels.store_on(header, holder, blocks, engines, done)
        return int(done)

    def _store_known(self, holder: int, engines: Hashes) -> int:
        header = self._header
        recorded = kernels.store_known(header, holder, engines, 0)
        while header[state.NEED]:
            self._memory.make_room()
            recorded += kernels.store_known(header, holder, engines, header[state.CURSOR])
        return int(recorded)

    def _add_copies(self, holder: int, engines: Hashes, copies: NDArray[np.int64] | int) -> int:
        """`copies` of each; of those that are no more than 0 nothing."""
        header = self._header
        counts = np.broadcast_to(np.asarray(copies, np.int64), engines.shape)
        engines, counts = engines[counts > 0], counts[counts > 0]
        held = kernels.add_copies(header, holder, engines, counts, 0)
        while header[state.NEED]:
            self._memory.make_room()
            held += kernels.add_copies(header, holder, engines, counts, header[state.CURSOR])
        return int(held)

    def _remove(self, holder: int, engines: Hashes, every_copy: bool) -> int:
        header = self._header
        removed = kernels.remove(header, holder, engines, every_copy, 0)
        while header[state.NEED]:
            self._memory.make_room()
            removed += kernels.remove(header, holder, engines, every_copy, header[state.CURSOR])
        return int(removed)

    def _store_detached(self, holder: int, parent: int, blocks: Hashes, engines: Hashes) -> int:
        """Store below a parent the slot does not know: block by block, orphans where need be."""
        slot, tier, counted = holder >> 3, holder >> 1 & 3, bool(holder & 1)
        for i, (local, name) in enumerate(zip(blocks.tolist(), engines.tolist(), strict=True)):
            if i > 0:
                done = self._store_chain(holder, parent, blocks[i:], engines[i:])
                if done >= 0:
                    return i + done
            if kernels.find_place(self._header, holder, True, local, name):
                self._store_known(holder, engines[i : i + 1])
            else:
                self._remove(holder, engines[i : i + 1], True)
                orphan = Orphan(tier, name, parent, local, 1)
                if not self._orphans.add(slot, orphan, counted=counted):
                    self._orphans.dropped += blocks.size - i
                    return i
            parent = name
        return int(blocks.size)

    def _forget_orphans(self, slot: int, tier: int, names: list[int], every_copy: bool) -> int:
        if slot not in self._orphans:
            return 0
        return sum(self._orphans.remove(slot, tier, name, every_copy=every_copy) for name in names)

    def _copy_orphans(self, holder: int, names: list[int]) -> int:
        """Hash-only announcements of blocks that are orphans in some tier. Returns how many."""
        slot, tier, counted = holder >> 3, holder >> 1 & 3, bool(holder & 1)
        recorded = 0
        for name in names:
            orphan = self._orphans.find(slot, name)
            if orphan is not None and not self._known(slot, tier, name):
                copy = orphan._replace(tier=tier, copies=1)
                recorded += self._orphans.add(slot, copy, counted=counted)
        self._header[state.UNKNOWN] -= recorded
        return recorded

    def _join_orphans(
        self, holder: int, parent: int | None, contents: list[int], names: list[int]
    ) -> None:
        """Blocks just announced may have been orphans: their copies join, other places are left."""
        slot, tier, counted = holder >> 3, holder >> 1 & 3, holder & 1
        for content, name in zip(contents, names, strict=True):
            orphan = self._orphans.get(slot, tier, name)
            placed = orphan is not None and self._drop_placed(slot, tier, [name]) > 0
            if orphan is not None and placed and orphan[2:4] == (parent, content):
                self._add_copies(holder, np.array([name], np.uint64), orphan.copies - 1 + counted)
            parent = name

    def _drop_placed(self, slot: int, tier: int, names: list[int]) -> int:
        """Forget orphans whose name is in the tree by now. Returns how many there were."""
        placed = [name for name in names if self._placed(slot, tier, name)]
        return self._forget_orphans(slot, tier, placed, True)

    def _adopt(self, slot: int, parents: list[int]) -> None:
        """Place the orphans waiting for some of the parents; `parents` is the work list."""
        for _ in range(min(ADOPT_STEP_MAX, len(parents))):
            parent = parents.pop()
            if not self._known(slot, Tier.GPU, parent):
                continue
            for orphan in self._orphans.take_children(slot, parent):
                holder = _holder(slot, orphan.tier, counted=True)
                block = np.array([orphan.local], np.uint64)
                name = np.array([orphan.engine_hash], np.uint64)
                self._store_chain(holder, parent, block, name)
                self._add_copies(holder, name, orphan.copies - 1)
                parents.append(orphan.engine_hash)

    def _sweep(self, slot: int) -> Iterator[int]:
        """Take the slot out of the tree, letting the lock go between steps.

        Yields after each step how many rows it may have looked at.
        """
        while (yield from self._sweep_pass(kernels.clear_records, slot, state.RECORDS)):
            pass
        yield from self._sweep_pass(kernels.clear_nodes, slot, state.PARENT)

    def _sweep_pass(self, step: Any, slot: int, column: int) -> Generator[int, None, bool]:
        """One pass over the table or nodes. Returns whether records of the slot are left."""
        position = 0
        while True:
            with self._lock:
                end = self._memory.column(column).size // state.RECORD_FIELDS
                if column == state.PARENT:
                    end = self._memory.value(state.NODES_USED)
                if position >= end or not self._left_to_sweep(slot, column):
                    return bool(self._memory.column(state.RECORDS_OF)[slot])
                stop = min(end, position + CLEAR_STEP_MAX)
                position = step(self._header, slot, position, stop)
                if self._header[state.NEED]:
                    self._memory.make_room()
            yield CLEAR_STEP_MAX

    def _left_to_sweep(self, slot: int, column: int) -> bool:
        if column == state.PARENT:
            row = slice(slot * N_TIERS, (slot + 1) * N_TIERS)
            return bool(self._memory.column(state.LIVE)[row].any())
        return bool(self._memory.column(state.RECORDS_OF)[slot])


class SlotWriter:
    """The announcements of one rank. Each method takes the lock.

    A change may name the writer of the rank whose stream it is part of. That writer's `place`
    becomes its `upcoming` in the same locked step as the change, so that a snapshot always has the
    place that belongs to its blocks.

    After `close` every method does nothing and returns 0; so does a store that meets a `clear` of
    the same slot in another thread: it counts as having come before the clear.
    """

    def __init__(self, index: PrefixIndex, slot: int) -> None:
        self.slot = slot
        self.place: Place | None = None
        """How far the stream of this slot's own rank is applied; None: nothing known."""
        self.upcoming: Place | None = None
        """What `place` will be after the next change that names this writer as its stream."""
        self.live_at: float | None = None
        """Monotonic seconds when a live batch last moved `place`; None: not in this life of it."""
        self.filling = False
        """Blocks of a dump are on their way into the slot: it is no use to anybody else yet."""
        self.unplaced_blocks = False
        """The slot holds blocks that came without a place: their stream may tell of them again."""
        self._index = index
        self._open = True
        self._clearing = False
        self.is_half_cleared = False
        """A clear was given up in the midst of it; until the next one nothing is recorded."""

    @property
    def is_open(self) -> bool:
        """Until `close` or `reopen`; the slot is nobody else's for so long."""
        return self._open

    def store(
        self,
        tier: Tier,
        parent: int | None,
        block_hashes: Hashes,
        engine_hashes: Hashes,
        *,
        counted: bool = True,
        stream: "SlotWriter | None" = None,
    ) -> int:
        """The slot now holds a chain of blocks below `parent` (None: from the root) in `tier`.

        block_hashes and engine_hashes: uint64 [n], C-contiguous. Returns how many of them are
        recorded, orphans included; fewer when the index is full.
        """
        assert block_hashes.size == engine_hashes.size
        index, slot = self._index, self.slot
        holder = _holder(slot, tier, counted=counted)
        with index._lock:
            if stream is not None:
                stream.place = stream.upcoming
            if not self._open or self._clearing:
                return 0
            recorded = index._store_chain(holder, parent, block_hashes, engine_hashes)
            if recorded < 0:
                assert parent is not None
                recorded = index._store_detached(holder, parent, block_hashes, engine_hashes)
            if slot not in index._orphans:
                return recorded
            names = engine_hashes[:recorded].tolist()
            contents = block_hashes[:recorded].tolist()
            index._join_orphans(holder, parent, contents, names)
            waiting = index._orphans.awaited(slot, names)
        while waiting:
            with index._lock:
                if not self._open or self._clearing:
                    break
                index._adopt(slot, waiting)
        return recorded

    def store_known(
        self,
        tier: Tier,
        engine_hashes: Hashes,
        *,
        counted: bool = True,
        stream: "SlotWriter | None" = None,
    ) -> int:
        """Blocks that this slot announced with content, in any tier, are now in `tier` as well.

        engine_hashes: uint64 [n], C-contiguous. Unknown ones are ignored and counted. Returns how
        many are recorded.
        """
        index = self._index
        holder = _holder(self.slot, tier, counted=counted)
        with index._lock:
            if stream is not None:
                stream.place = stream.upcoming
            if not self._open or self._clearing:
                return 0
            recorded = index._store_known(holder, engine_hashes)
            if self.slot in index._orphans:
                names = engine_hashes.tolist()
                recorded += index._copy_orphans(holder, names)
                index._drop_placed(self.slot, tier, names)
            return recorded

    def add_copies(self, tier: Tier, engine_hashes: Hashes, copies: NDArray[np.int64]) -> None:
        """Blocks of this slot and tier, orphans included, were announced more often than once.

        engine_hashes: uint64 [n], C-contiguous; those it does not have are ignored. copies: int64
        [n], the announcements beyond those that are counted already.
        """
        index = self._index
        with index._lock:
            if not self._open or self._clearing:
                return
            index._add_copies(_holder(self.slot, tier, counted=True), engine_hashes, copies)
            if self.slot not in index._orphans:
                return
            for name, more in zip(engine_hashes.tolist(), copies.tolist(), strict=True):
                orphan = index._orphans.get(self.slot, tier, name)
                if orphan is not None and more > 0:
                    index._orphans.add(self.slot, orphan, counted=more)

    def remove(
        self, tier: Tier, engine_hashes: Hashes, *, stream: "SlotWriter | None" = None
    ) -> int:
        """Undo one announcement of each block. Returns how many were known.

        engine_hashes: uint64 [n], C-contiguous.
        """
        index = self._index
        holder = _holder(self.slot, tier, counted=True)
        with index._lock:
            if stream is not None:
                stream.place = stream.upcoming
            if not self._open or self._clearing:
                return 0
            removed = index._remove(holder, engine_hashes, False)
            if self.slot in index._orphans:
                names = engine_hashes.tolist()
                removed += index._forget_orphans(self.slot, tier, names, False)
            return removed

    def clear(self, *, stream: "SlotWriter | None" = None) -> None:
        """Forget all blocks of the slot, in every tier. O(blocks of the index)."""
        for _ in self.clearing(stream=stream):
            pass

    def clearing(self, *, stream: "SlotWriter | None" = None) -> Iterator[int]:
        """As `clear`, in steps: yields after each how many rows it looked at, at most.

        Whoever stops in between leaves the slot half cleared; `clear` or `close` goes on with it.
        """
        if self._begin_clear(closing=False, stream=stream):
            yield from self._finish_clear()

    def close(self) -> None:
        """Clear, and free the slot for reuse. Further calls do nothing."""
        if self._begin_clear(closing=True, stream=None):
            self.finish_clear()

    def reopen(self) -> "SlotWriter":
        """Hand the slot to a new writer, which is returned; this one is closed.  O(1).

        What the slot holds goes with the new writer's `finish_clear`; until then it stores nothing.
        """
        index = self._index
        with index._lock:
            assert self._open
            self._open = False
            index._orphans.drop_slot(self.slot)
            fresh = SlotWriter(index, self.slot)
            fresh._clearing = True
            index._writers[self.slot] = fresh
        return fresh

    def _begin_clear(self, *, closing: bool, stream: "SlotWriter | None") -> bool:
        """Returns whether the caller has to do the clearing."""
        with self._index._lock:
            if stream is not None:
                stream.place = stream.upcoming
            if not self._open:
                return False
            self._open = not closing
            begun = self._clearing and not self.is_half_cleared
            self._clearing, self.is_half_cleared = True, False
            self._index._orphans.drop_slot(self.slot)
            return not begun

    def finish_clear(self) -> None:
        """The slow part of a clear, O(blocks of the index); the lock is let go between steps."""
        for _ in self._finish_clear():
            pass

    def _finish_clear(self) -> Iterator[int]:
        try:
            yield from self._index._sweep(self.slot)
        except GeneratorExit:
            self.is_half_cleared = True
            raise
        with self._index._lock:
            self._clearing = False
            if not self._open and self._index._writers[self.slot] is self:
                self._index._writers[self.slot] = None


def _holder(slot: int, tier: int, *, counted: bool) -> int:
    """The kernels' one number for who announces what kind of block."""
    return slot << 3 | tier << 1 | counted
