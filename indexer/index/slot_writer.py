"""What one rank announces: stores, removals and clears of one slot, cut into bounded locked steps.

The rules are those of `prefix_index`, one step is `block_tree`'s.  Here is what lies between: which
steps a change is made of, and what becomes of it when the slot is cleared or closed in between.
"""

from collections.abc import Callable, Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.hashes import Hashes
from indexer.index import change_kernels
from indexer.index.block_tree import (
    ADOPT_STEP_MAX,
    DETACHED_STEP_MAX,
    BlockTree,
    Changes,
    holder_of,
)
from indexer.index.orphans import SlotOrphans
from indexer.index.slots import Slots
from indexer.index.snapshot import Place
from indexer.mutex import Mutex
from indexer.tiers import Tier

STEP_BLOCKS_MAX = 2048  # announced or removed while the lock is held
SINGLE_COST = 64
"""A block that is placed by itself costs as much as so many of a chain."""


class SlotWriter:
    """The announcements of one rank. Each method takes the lock.

    A change may name the writer of the rank whose stream it is part of. That writer's `place`
    becomes its `upcoming` in the same locked step as the change, so that a snapshot always has the
    place that belongs to its blocks.

    After `close` every method does nothing and returns 0; so does a store that meets a `clear` of
    the same slot in another thread: it counts as having come before the clear.

    It is made without a slot, so that many can be made ahead; `begin` gives it one.
    """

    def __init__(
        self,
        slots: "Slots[SlotWriter]",
        tree: BlockTree,
        lock: Mutex,
        row: NDArray[np.int64],
    ) -> None:
        """row: of `rows_of_writers`"""
        self.slot = change_kernels.NO_SLOT
        self._row = row
        """What kernels know of it, see `change_kernels`."""
        self._numbers = row.data
        self._places: list[Place | None] = [None, None]
        self.upcoming: Place | None = None
        """What `place` will be after the next change that names this writer as its stream."""
        self.live_at: float | None = None
        """Monotonic seconds when a live batch last moved `place`; None: not in this life of it."""
        self.filling = False
        """Blocks of a dump are on their way into the slot: it is no use to anybody else yet."""
        self.unplaced_blocks = False
        """The slot holds blocks that came without a place: their stream may tell of them again."""
        self._slots = slots
        self._tree = tree
        self._lock = lock
        self._open = True
        self._clearing = False
        self.is_half_cleared = False
        """A clear was given up in the midst of it; until the next one nothing is recorded."""
        self.rest: Iterator[int] | None = None
        """What a stream that was given up in the midst of an event had yet to do; see `settling`.
        Dropping it is right when the slot is cleared."""
        self._changing = False  # by a change that takes several steps
        self._clears = 0

    def begin(self, slot: int) -> None:
        """The slot is its own from now on."""
        self.slot = self._numbers[change_kernels.SLOT] = slot

    @property
    def is_open(self) -> bool:
        """Until `close` or `reopen`; the slot is nobody else's for so long."""
        return self._open

    @property
    def place(self) -> Place | None:
        """How far the stream of this slot's own rank is applied; None: nothing known."""
        return self._places[self._numbers[change_kernels.PLACE]]

    @place.setter
    def place(self, place: Place | None) -> None:
        self._places[self._numbers[change_kernels.PLACE]] = place

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
        recorded = self.store_at_once(
            tier, parent, block_hashes, engine_hashes, counted=counted, stream=stream
        )
        if recorded >= 0:
            return recorded
        return _end_of(
            self.storing(tier, parent, block_hashes, engine_hashes, counted=counted, stream=stream)
        )

    def store_at_once(
        self,
        tier: Tier,
        parent: int | None,
        block_hashes: Hashes,
        engine_hashes: Hashes,
        *,
        counted: bool = True,
        stream: "SlotWriter | None" = None,
    ) -> int:
        """As `store`, in one short step; -1, and nothing is done, when it takes several."""
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
                stream.place = stream.upcoming
            return recorded

    def carry_out(self, changes: Changes, after: Place, part: Callable[[int], Place]) -> int:
        """Changes of this slot by its own stream, in one short step. Returns how many are done.

        The others are not begun: they take several steps, or have to wait for `settling`.
        after: what `place` becomes; part: the same when only so many are done
        """
        self._places[1 - self._numbers[change_kernels.PLACE]] = after
        done = self._tree.carry_out(changes, 0, changes.used, self._row, self._lock.address)
        if done == change_kernels.REFUSED:
            return 0
        if done < changes.used:
            try:  # the kernel has left the lock to us
                done = self._tree.go_on(changes, done)
                if done:
                    self.place = after if done == changes.used else part(done)
            finally:
                self._lock.release()
        if self._tree.wrong_slots:
            self._starts_over()
        return done

    def storing(
        self,
        tier: Tier,
        parent: int | None,
        block_hashes: Hashes,
        engine_hashes: Hashes,
        *,
        counted: bool = True,
        stream: "SlotWriter | None" = None,
    ) -> Generator[int, None, int]:
        """As `store`, in steps: yields what each has cost, in blocks or so."""
        holder = holder_of(self.slot, tier, counted=counted)
        waiting: list[int] = []
        clears = self._clears
        recorded = yield from self._storing(
            holder, parent, block_hashes, engine_hashes, stream, waiting
        )
        yield from self._starting_over()
        while waiting:
            with self._lock:
                if not self._open or self._clearing or self._clears != clears:
                    break
                self._tree.adopt(self.slot, waiting)
            yield ADOPT_STEP_MAX * SINGLE_COST
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
        self,
        tier: Tier,
        engine_hashes: Hashes,
        *,
        stream: "SlotWriter | None" = None,
        sweep: bool = True,
    ) -> int:
        """Undo one announcement of each block. Returns how many were known.

        engine_hashes: uint64 [n], C-contiguous. sweep: False leaves the slot half cleared where it
        has to start over; `settling` does the rest, which may be much.
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
        if removed < size and self._starts_over() and sweep:
            self.clear()
        return removed

    def clear(self, *, stream: "SlotWriter | None" = None) -> None:
        """Forget all blocks of the slot, in every tier. O(blocks of the index) at most."""
        for _ in self.clearing(stream=stream):
            pass

    def clearing(self, *, stream: "SlotWriter | None" = None) -> Iterator[int]:
        """As `clear`, in steps: yields after each how many rows it looked at, at most.

        Whoever stops in between leaves the slot half cleared; `clear` or `close` goes on with it.
        """
        self.rest = None
        if self._begin_clear(closing=False, stream=stream):
            yield from self._finish_clear()

    def settling(self) -> Iterator[int]:
        """What was left undone, in steps: the rest of an event, or of a clear."""
        while (rest := self.rest) is not None:
            cost = next(rest, None)
            if cost is not None:
                yield cost
            elif self.rest is rest:
                self.rest = None
        if self.is_half_cleared:
            yield from self.clearing()

    def close(self) -> None:
        """Clear, and free the slot for reuse. Further calls do nothing."""
        self.rest = None
        if self._begin_clear(closing=True, stream=None):
            self.finish_clear()

    def hand_over(self, fresh: "SlotWriter") -> SlotOrphans:
        """Give the slot to a new writer; this one is closed.  O(1), with the index locked.

        What the slot holds goes with the new writer's `finish_clear`; until then it stores nothing.
        Returns what the caller should `discard` when the index is not locked.
        """
        assert self._open
        self._open, self.rest = False, None
        self._tell_kernels()
        gone = self._tree.orphans.drop_slot(self.slot)
        fresh.begin(self.slot)
        fresh._clearing = True
        fresh._tell_kernels()
        self._slots.replace(fresh)
        return gone

    def _tell_kernels(self) -> None:
        self._numbers[change_kernels.TAKES] = self._open and not self._clearing

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

    def _storing(
        self,
        holder: int,
        parent: int | None,
        blocks: Hashes,
        engines: Hashes,
        stream: "SlotWriter | None",
        waiting: list[int],
    ) -> Generator[int, None, int]:
        """The steps of a store up to those that place orphans, which wait under `waiting`."""
        recorded, clears = 0, self._clears
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
            yield SINGLE_COST * DETACHED_STEP_MAX if stored <= DETACHED_STEP_MAX else stored
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

    def _starts_over(self) -> bool:
        """What could not be undone is to be forgotten with everything else: it is half cleared."""
        if self.slot not in self._tree.wrong_slots:
            return False
        if not self._clearing:
            with self._lock:
                self._tree.refuse(self._tree.blocks_of(self.slot))
            if self._begin_clear(closing=False, stream=None):
                self.is_half_cleared = True
        return self.is_half_cleared

    def _starting_over(self) -> Iterator[int]:
        if self._starts_over() and self._begin_clear(closing=False, stream=None):
            yield from self._finish_clear()

    def _begin_clear(self, *, closing: bool, stream: "SlotWriter | None") -> bool:
        """Returns whether the caller has to do the clearing."""
        with self._lock:
            if stream is not None:
                stream.place = stream.upcoming
            if not self._open:
                return False
            self._open = not closing
            begun = self._clearing and not self.is_half_cleared
            self._clearing, self.is_half_cleared, self._changing = True, False, False
            self._tell_kernels()
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
        with self._lock:
            self._tree.wrong_slots.discard(self.slot)
            self._clearing = False
            self._tell_kernels()
            if not self._open:
                self._slots.leave(self)

    def _sweep_on(self, sweep: Iterator[int]) -> int:
        with self._lock:
            return next(sweep, 0)


def rows_of_writers(number: int) -> Iterator[NDArray[np.int64]]:
    """What kernels know of new writers: they take changes, and have no slot."""
    rows = np.zeros((number, 3), np.int64)
    rows[:, change_kernels.TAKES] = True
    rows[:, change_kernels.SLOT] = change_kernels.NO_SLOT
    return iter(rows)


def _end_of(steps: Generator[int, None, int]) -> int:
    """All of them, one after the other; what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: int = end.value
            return result
