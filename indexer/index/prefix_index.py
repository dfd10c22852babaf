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
* A full index records the leading blocks that fit and refuses the rest. Full is: as many blocks as
  it may have, or as many bytes. Where a removal finds no room for the holder sets that it leaves,
  the slot forgets everything, which takes none: it must not promise what is not there.
* What is large is done in steps, and the lock is free in between.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.hashes import Hashes
from indexer.index import invariants, kernels
from indexer.index import state_kernels as state
from indexer.index.block_tree import DETACHED_STEP_MAX, BlockTree, holder_of
from indexer.index.memory import BYTES_MAX
from indexer.index.orphans import Orphan
from indexer.index.snapshot import IndexSnapshot, Place, RawCopy
from indexer.tiers import N_TIERS, Tier

ORPHAN_BLOCKS_MAX = 65_536
STEP_BLOCKS_MAX = 2048  # announced or removed while the lock is held

Lock = AbstractContextManager[Any]


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
    """The index of one partition. Thread-safe exactly as far as the injected locks are.

    lock: around every step. copy_lock: around every snapshot, of which there is one at a time.
    Raises MemoryError.
    """

    def __init__(
        self,
        blocks_max: int,
        *,
        bytes_max: int = BYTES_MAX,
        orphan_blocks_max: int = ORPHAN_BLOCKS_MAX,
        lock: Lock | None = None,
        copy_lock: Lock | None = None,
    ) -> None:
        self._lock: Lock = nullcontext() if lock is None else lock
        self._copy_lock: Lock = nullcontext() if copy_lock is None else copy_lock
        self._tree = BlockTree(blocks_max, orphan_blocks_max, bytes_max)
        self._header = self._tree.header
        self._writers: list[SlotWriter | None] = []
        self._free_slots: list[int] = []  # a heap

    @property
    def n_slots(self) -> int:
        """Highest slot ever in use + 1: the number of rows of a match."""
        return len(self._writers)

    def open_slot(self) -> "SlotWriter":
        """Take the lowest free slot. O(holder sets) in steps when the slots double, else O(log).

        Raises MemoryError, and changes nothing, when there is no room for more slots.
        """
        while True:
            with self._lock:
                slot = self._free_slots[0] if self._free_slots else len(self._writers)
                if self._tree.memory.has_slot(slot):
                    if self._free_slots:
                        heappop(self._free_slots)
                    writer = SlotWriter(self, slot)
                    self._writers[slot : slot + 1] = [writer]
                    return writer
                self._tree.memory.widen_on()

    def reserve_slots(self, more: int) -> int:
        """Let the next `more` calls of `open_slot` find room. Returns how many slots that makes.

        O(holder sets) in steps when the slots double. Raises MemoryError, and changes nothing.
        """
        while True:
            with self._lock:
                n_slots = len(self._writers) + max(0, more - len(self._free_slots))
                if self._tree.memory.has_slot(n_slots - 1):
                    return n_slots
                self._tree.memory.widen_on()

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
                    with self._lock:
                        more = copy.step()
            finally:
                with self._lock:
                    copy.end()
        orphans = tuple((slot, orphan) for slot, mine in moment.orphans for orphan in mine)
        return copy.snapshot(moment.slots, moment.places, orphans, moment.live_at)

    def _begin(self, copy: RawCopy) -> "_Moment | None":
        """None when the index has grown beyond the copy."""
        with self._lock:
            if not copy.begin():
                return None
            writers = [writer for writer in self._writers if writer is not None]
            return _Moment(
                slots=tuple(w.slot for w in writers if w.is_whole),
                places={w.slot: w.place for w in writers if w.place is not None},
                live_at={w.slot: w.live_at for w in writers if w.live_at is not None},
                orphans=self._tree.orphans.by_slot(),
            )

    def check_invariants(self) -> None:
        """Recompute everything that is kept incrementally. O(blocks * slots), for tests."""
        with self._lock:
            tree = self._tree
            invariants.check_memory(tree.memory)
            tree.orphans.check_invariants()
            assert tree.nbytes() <= tree.bytes_max
            for slot, orphans in tree.orphans.by_slot():
                assert self._writers[slot] is not None
                for orphan in orphans:
                    assert not tree.known(slot, orphan.tier, orphan.parent), "not adopted"
                    placed = tree.placed(slot, orphan.tier, orphan.engine_hash)
                    assert not placed, "both an orphan and in the tree"


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
        self._tree = index._tree
        self._lock = index._lock
        self._open = True
        self._clearing = False
        self.is_half_cleared = False
        """A clear was given up in the midst of it; until the next one nothing is recorded."""
        self._changing = False  # by a change that takes several steps
        self._clears = 0

    @property
    def is_open(self) -> bool:
        """Until `close` or `reopen`; the slot is nobody else's for so long."""
        return self._open

    @property
    def is_whole(self) -> bool:
        """Whether the slot has what its streams told of, nothing more and nothing less."""
        return not (self._clearing or self.filling or self._changing)

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
        size = len(block_hashes)
        assert size == len(engine_hashes)
        holder = holder_of(self.slot, tier, counted=counted)
        if size <= STEP_BLOCKS_MAX:
            with self._lock:
                recorded = -1
                if self._clearing or not self._open:
                    recorded = 0
                elif self.slot not in self._tree.orphans:
                    recorded = self._tree.store_chain(holder, parent, block_hashes, engine_hashes)
                if recorded >= 0:
                    if stream is not None:
                        stream.place = stream.upcoming
                    return recorded
        return self._store_in_steps(holder, parent, block_hashes, engine_hashes, stream)

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
        holder = holder_of(self.slot, tier, counted=counted)
        return self._in_steps(
            engine_hashes.size, stream, lambda part: self._know(holder, engine_hashes[part])
        )

    def add_copies(self, tier: Tier, engine_hashes: Hashes, copies: NDArray[np.int64]) -> None:
        """Blocks of this slot and tier, orphans included, were announced more often than once.

        engine_hashes: uint64 [n], C-contiguous; those it does not have are ignored. copies: int64
        [n], the announcements beyond those that are counted already.
        """
        self._in_steps(
            engine_hashes.size,
            None,
            lambda part: self._repeat(tier, engine_hashes[part], copies[part]),
        )

    def remove(
        self, tier: Tier, engine_hashes: Hashes, *, stream: "SlotWriter | None" = None
    ) -> int:
        """Undo one announcement of each block. Returns how many were known.

        engine_hashes: uint64 [n], C-contiguous.
        """
        holder = holder_of(self.slot, tier, counted=True)
        size = len(engine_hashes)
        if size > STEP_BLOCKS_MAX:
            removed = self._in_steps(
                size, stream, lambda part: self._undo(holder, engine_hashes[part])
            )
        else:
            with self._lock:
                if stream is not None:
                    stream.place = stream.upcoming
                if not self._open or self._clearing:
                    return 0
                removed = self._undo(holder, engine_hashes)
        if removed < size:
            self._start_over_if_wrong()
        return removed

    def clear(self, *, stream: "SlotWriter | None" = None) -> None:
        """Forget all blocks of the slot, in every tier. O(blocks of the index) at most."""
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
        with self._lock:
            assert self._open
            self._open = False
            gone = self._tree.orphans.drop_slot(self.slot)
            fresh = SlotWriter(self._index, self.slot)
            fresh._clearing = True
            self._index._writers[self.slot] = fresh
        gone.discard()
        return fresh

    # --- steps ----------------------------------------------------------------------------------

    def _in_steps(
        self, size: int, stream: "SlotWriter | None", change: Callable[[slice], int]
    ) -> int:
        """Carry out a change of `size` hashes part by part. Returns the sum of what it returns."""
        result = stop = 0
        clears = self._clears
        while True:
            part = slice(stop, stop + STEP_BLOCKS_MAX)
            with self._lock:
                if not self._open or self._clearing or self._clears != clears:
                    stop = size
                else:
                    stop = min(size, part.stop)
                    result += change(part)
                self._changing = stop < size
                if not self._changing:
                    if stream is not None:
                        stream.place = stream.upcoming
                    return result

    def _store_in_steps(
        self,
        holder: int,
        parent: int | None,
        blocks: Hashes,
        engines: Hashes,
        stream: "SlotWriter | None",
    ) -> int:
        recorded, clears = 0, self._clears
        waiting: list[int] = []
        is_over = False
        while not is_over:
            with self._lock:
                stored, offered = 0, 1
                if self._open and not self._clearing and self._clears == clears:
                    part = slice(recorded, recorded + STEP_BLOCKS_MAX)
                    below = parent if recorded == 0 else int(engines[recorded - 1])
                    stored, offered = self._store_part(
                        holder, below, blocks[part], engines[part], waiting
                    )
                    if stored < offered:
                        self._tree.refuse(blocks.size - recorded - offered)
                recorded += stored
                is_over = stored < offered or recorded >= blocks.size
                self._changing = not is_over
                if is_over and stream is not None:
                    stream.place = stream.upcoming
        self._start_over_if_wrong()
        while waiting:
            with self._lock:
                if not self._open or self._clearing or self._clears != clears:
                    break
                self._tree.adopt(self.slot, waiting)
        return recorded

    def _store_part(
        self,
        holder: int,
        parent: int | None,
        blocks: Hashes,
        engines: Hashes,
        waiting: list[int],
    ) -> tuple[int, int]:
        """(blocks recorded, blocks that were to be): a part of a store.

        waiting: gets the names among them under which orphans wait
        """
        tree, offered = self._tree, int(blocks.size)
        stored = tree.store_chain(holder, parent, blocks, engines)
        if stored < 0:
            assert parent is not None
            offered = min(offered, DETACHED_STEP_MAX)
            stored = tree.store_detached(holder, parent, blocks[:offered], engines[:offered])
        if self.slot in tree.orphans:
            names = engines[:stored].tolist()
            tree.join_orphans(holder, parent, blocks[:stored].tolist(), names)
            waiting += tree.orphans.awaited(self.slot, names)
        return stored, offered

    def _know(self, holder: int, engines: Hashes) -> int:
        recorded = self._tree.store_known(holder, engines)
        if self.slot in self._tree.orphans:
            names = engines.tolist()
            recorded += self._tree.copy_orphans(holder, names)
            self._tree.drop_placed(self.slot, holder >> 1 & 3, names)
        return recorded

    def _repeat(self, tier: Tier, engines: Hashes, copies: NDArray[np.int64]) -> int:
        tree = self._tree
        held = tree.add_copies(holder_of(self.slot, tier, counted=True), engines, copies)
        if self.slot in tree.orphans:
            for name, more in zip(engines.tolist(), copies.tolist(), strict=True):
                orphan = tree.orphans.get(self.slot, tier, name)
                if orphan is not None and more > 0:
                    tree.orphans.add(self.slot, orphan, counted=more)
        return held

    def _undo(self, holder: int, engines: Hashes) -> int:
        removed = self._tree.remove(holder, engines, every_copy=False)
        if self.slot in self._tree.orphans:
            names = engines.tolist()
            removed += self._tree.forget_orphans(
                self.slot, holder >> 1 & 3, names, every_copy=False
            )
        return removed

    # --- clearing -------------------------------------------------------------------------------

    def _start_over_if_wrong(self) -> None:
        """What could not be undone is forgotten with everything else."""
        if self.slot not in self._tree.wrong_slots:
            return
        with self._lock:
            self._tree.refuse(self._tree.blocks_of(self.slot))
        self.clear()

    def _begin_clear(self, *, closing: bool, stream: "SlotWriter | None") -> bool:
        """Returns whether the caller has to do the clearing."""
        with self._lock:
            if stream is not None:
                stream.place = stream.upcoming
            if not self._open:
                return False
            self._open = not closing
            begun = self._clearing and not self.is_half_cleared
            self._clearing, self.is_half_cleared = True, False
            self._clears += 1
            gone = self._tree.orphans.drop_slot(self.slot)
        gone.discard()
        return not begun

    def finish_clear(self) -> None:
        """The slow part of a clear, O(blocks of the index); the lock is let go between steps."""
        for _ in self._finish_clear():
            pass

    def _finish_clear(self) -> Iterator[int]:
        sweep = self._tree.sweep(self.slot)
        try:
            while rows := self._sweep_on(sweep):
                yield rows
        except GeneratorExit:
            self.is_half_cleared = True
            raise
        index = self._index
        with self._lock:
            self._tree.wrong_slots.discard(self.slot)
            self._clearing = False
            if not self._open and index._writers[self.slot] is self:
                index._writers[self.slot] = None
                heappush(index._free_slots, self.slot)

    def _sweep_on(self, sweep: Iterator[int]) -> int:
        with self._lock:
            return next(sweep, 0)
