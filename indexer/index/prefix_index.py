"""Index of blocks by slot and tier, and the length of a prompt's prefix in each slot.

A prefix tree over block content hashes serves all slots and tiers (layout: state_kernels). Engine
hashes belong to a slot: a hash is compared only with announcements of the same slot. No
clock, no thread, no I/O; the lock is held for a bounded step at a time. The rules:

* A slot holds a block in a tier while at least one announcement of the block is not undone.
`counted` stores count copies per (slot, tier, engine hash), removed one at a time.
* A block belongs below the parent announced by the same slot, in any tier. A block with an unknown
parent is an orphan, invisible until the parent is announced.
* A hash that (slot, tier) announces at another place names only the new place.
* Removing a block leaves the descendants; a match stops at the gap until the block is back.
* A full index records the leading blocks that fit and refuses the rest. The limits are the number
  of blocks and the number of bytes. If a removal finds no memory for the remaining holder sets,
  the slot forgets everything, which needs none: a false promise would be worse.
* Large changes are done in steps, and the lock is free in between.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.block_hashing import Hashes, Tokens
from indexer.hashing.engine_names import NameScheme
from indexer.index import header_kernels as state
from indexer.index import invariants
from indexer.index.block_tree import BlockTree
from indexer.index.groups_record import GroupsRecord, OpenBlock, complete_record
from indexer.index.held_prefix_kernels import count_held_blocks
from indexer.index.index_memory import BYTES_MAX
from indexer.index.index_snapshot import IndexSnapshot, SnapshotCopy, StreamPosition
from indexer.index.keyed_roots import KeyedRoots
from indexer.index.match_kernels import match_prompt
from indexer.index.orphans import Orphan
from indexer.index.prefix_names import find_prefix_names
from indexer.index.reuse_kernels import refine_matches
from indexer.index.reuse_layout import LAYOUT_LENGTH, R_REPLAY
from indexer.index.slot_table import SlotTable
from indexer.index.slot_writer import SlotWriter, make_writer_rows
from indexer.jit.mutex import Mutex
from indexer.tiers import N_TIERS, Tier

ORPHAN_BLOCKS_MAX = 65_536
WRITERS_PER_STEP = 256


class IndexStats(NamedTuple):
    """Sizes and totals of an index; blocks and memberships are current, the last three are
    totals.
    """

    blocks: int
    blocks_max: int
    memberships: int  # (slot, tier, block) triples
    bytes: int
    bytes_max: int
    holder_sets: int
    edges: int  # parent-child pairs that are not adjacent in memory
    records: int
    orphans: int
    dropped_orphans: int
    refused_blocks: int
    unannounced_blocks: int  # hash-only announcements of blocks never announced with content


class PromptUnits(NamedTuple):
    """Data of a prompt beside the blocks, for a match of ranks with several cache groups.

    n_tokens: length of the prompt
    tokens:   uint32 [n_tokens], C-contiguous; None if unknown
    hashes:   uint64 [units], content of each unit; None if unknown
    names:    uint64 [units], the engine's names of the prefixes up to each unit; None if unknown
    """

    n_tokens: int
    tokens: Tokens | None = None
    hashes: Hashes | None = None
    names: Hashes | None = None


class ReuseMatch(NamedTuple):
    """Match with the reusable tokens of ranks with several cache groups.

    matched: int32 [n_slots, N_TIERS], whole blocks, tiers cumulated
    held:    int32 [n_slots], GPU blocks of the dense group alone
    layouts: bool [n_slots], True for ranks with several cache groups; None: nowhere
    inside:  int64 [n_slots], reusable tokens behind the last whole block; None: 0 everywhere
    certainty: int64 [n_slots], EXACT, AT_MOST, ... of `reuse_layout`; None without layouts
    """

    matched: NDArray[np.int32]
    held: NDArray[np.int32]
    layouts: NDArray[np.bool_] | None = None
    inside: NDArray[np.int64] | None = None
    certainty: NDArray[np.int64] | None = None


def refine_prompt(
    header: NDArray[np.int64],
    path: Hashes,
    matched: NDArray[np.int32],
    units: PromptUnits | None,
) -> None:
    """Refine a match, with the index locked."""
    header[state.PROMPT_TOKENS] = 0 if units is None else units.n_tokens
    _point_to_units(header, units)
    refine_matches(header, path, matched)
    _point_to_units(header, None)


def _point_to_units(header: NDArray[np.int64], units: PromptUnits | None) -> None:
    """Point the header to the arrays of a prompt, which the caller keeps alive; None: to none."""
    arrays = (None, None, None) if units is None else units[1:]
    columns = state.PROMPT_IDS, state.UNIT_HASHES, state.UNIT_NAMES
    for column, array in zip(columns, arrays, strict=True):
        # An empty array has an address as well: a prompt shorter than a unit has no names.
        header[column] = 0 if array is None else array.ctypes.data
        header[column + 1] = 0 if array is None else array.size


def _groups_of(writer: SlotWriter) -> tuple[GroupsRecord, dict[int, OpenBlock]]:
    """Return the record of a writer's groups, and a copy of what changes between records."""
    assert writer.groups_record is not None
    groups = writer.cache_groups
    return writer.groups_record, {} if groups is None else groups.copy_open_blocks()


class _CopyMoment(NamedTuple):
    """State at the moment of a copy that is not in the arrays."""

    slots: tuple[int, ...]
    positions: dict[int, StreamPosition]
    live_at: dict[int, float]
    orphans: list[tuple[int, list[Orphan]]]
    keyed_roots: KeyedRoots
    groups: dict[int, tuple[GroupsRecord, dict[int, OpenBlock]]]


class PrefixIndex:
    """Index of a partition. Thread-safe; snapshots only if `copy_lock` is a lock.

    lock: for every step; None makes a private one. copy_lock: for every snapshot, of which only one
    may run at a time. Raises MemoryError.
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
        """Also in the header: kernels that read or change the index lock the mutex themselves."""
        self._copy_lock = nullcontext() if copy_lock is None else copy_lock
        self._tree = BlockTree(blocks_max, orphan_blocks_max, bytes_max)
        self.header = self._tree.header
        """Access to the whole index for kernels (state_kernels); never replaced."""
        self.header[state.MUTEX] = self.lock.address
        self._slots: SlotTable[SlotWriter] = SlotTable()
        self._spare: list[SlotWriter] = []
        """Writers made ahead, without a slot."""

    @property
    def n_slots(self) -> int:
        """Highest slot ever in use + 1: the number of rows of a match."""
        return len(self._slots.writers)

    def open_slot(self) -> SlotWriter:
        """Take the lowest free slot. O(holder sets) in steps when the slots double, else O(log).

        Raises MemoryError, without effect, if there is no memory for more slots.
        """
        self.reserve_slots(1)
        return self.open_slots(1)[0]

    def open_slots(self, number: int) -> list[SlotWriter]:
        """Take the lowest free slots, prepared by `reserve_slots`. O(log) each."""
        writers, slots, n_opened = self._new_writers(number), self._slots, 0
        try:
            with self.lock:
                for writer in writers:
                    slots.assign_lowest(writer)
                    n_opened += 1
        except MemoryError:
            for writer in writers[:n_opened]:
                # All or nothing: the caller knows only about slots that were returned.
                writer.close()
            raise
        return writers

    def reopen_slots(self, writers: Sequence[SlotWriter]) -> list[SlotWriter]:
        """Give slots to new writers and close the old; return the new writers. O(1) each.

        The blocks of a slot are removed by the new writer's `finish_clear`; until then the writer
        stores nothing.
        """
        fresh = self._new_writers(len(writers))
        with self.lock:
            gone = [old.hand_over_slot(new) for old, new in zip(writers, fresh, strict=True)]
        for orphans in gone:
            orphans.free_entries()
        return fresh

    def make_writers(self, number: int) -> bool:
        """Make writers ahead in a bounded step; return whether another step is needed.

        number: writers that will be opened or reopened at once
        """
        missing = number - len(self._spare)
        if missing > 0:
            self._spare += self._make_writers_now(min(missing, WRITERS_PER_STEP))
        return len(self._spare) < number

    def _new_writers(self, number: int) -> list[SlotWriter]:
        """Return writers, beginning with the prepared writers."""
        spare, self._spare = self._spare[:number], self._spare[number:]
        return spare + self._make_writers_now(number - len(spare))

    def _make_writers_now(self, number: int) -> list[SlotWriter]:
        rows = make_writer_rows(number)
        return [SlotWriter(self._slots, self._tree, self.lock, row) for row in rows]

    def reserve_slots(self, more: int) -> int:
        """Make room for `more` slots of `open_slots`. Return the resulting number of slots.

        O(holder sets) in steps when the slots double. Raises MemoryError, without effect.
        """
        while self.widen_step(more):
            pass
        with self.lock:
            return self._slots.count_with(more)

    def has_room(self, more: int) -> bool:
        """Return whether `open_slots` can take this many slots."""
        with self.lock:
            return self._has_room(more)

    def widen_step(self, more: int) -> bool:
        """Make a bounded step towards room for `more` slots. Return whether another step is
        needed.

        Raises MemoryError, without effect, if memory is short.
        """
        with self.lock:
            if not self._has_room(more):
                self._tree.memory.widen_step()
            return not self._has_room(more)

    def match(self, path: Hashes, units: "PromptUnits | None" = None) -> NDArray[np.int32]:
        """Return the matched blocks [n_slots, N_TIERS], tiers cumulated: column t counts tiers
        0..t.

        `path` is uint64 [n_blocks], C-contiguous, content hashes, first block first. The result
        is a fresh array; of a rank with several cache groups it has the reusable blocks.
        O(n_blocks), plus O(n_slots) where the holders of the path change.
        """
        return self.match_reuse(path, units).matched

    def match_reuse(self, path: Hashes, units: "PromptUnits | None" = None) -> "ReuseMatch":
        """Match as `match`, with the tokens inside blocks and the certainty of each slot."""
        n_slots = len(self._slots.writers)
        with self.lock:
            matched = np.empty((n_slots, N_TIERS), np.int32)
            match_prompt(self.header, path, matched)
            if not self.header[state.LAYOUTS]:
                return ReuseMatch(matched, matched[:, Tier.GPU])
            held = matched[:, Tier.GPU].copy()
            refine_prompt(self.header, path, matched, units)
            return self._read_reuse(matched, held)

    def count_held(self, slot: int, tier: int, path: Hashes) -> int:
        """Return the number of leading blocks that a slot holds in a tier, without cache groups."""
        with self.lock:
            return int(count_held_blocks(self.header, slot, tier, path))

    def last_reuse(self, matched: NDArray[np.int32]) -> "ReuseMatch":
        """Return the match that a kernel has just made.  Only for the thread that places prompts.

        matched: int32 [at least n_slots, N_TIERS], as the kernel left it
        """
        n_slots = len(self._slots.writers)
        matched = matched[:n_slots]
        with self.lock:
            if not self.header[state.LAYOUTS]:
                return ReuseMatch(matched, matched[:, Tier.GPU])
            return self._read_reuse(matched, matched[:, Tier.GPU])

    def _read_reuse(self, matched: NDArray[np.int32], held: NDArray[np.int32]) -> "ReuseMatch":
        """Return a refined match with the other records of the kernel, with the index locked."""
        columns = (state.LAYOUT_OF, state.INSIDE, state.BOUNDED)
        n_slots = len(matched)
        found = np.zeros((len(columns), n_slots), np.int64)
        for row, column in zip(found, columns, strict=True):
            # The columns are older than slots that were added since the layouts changed.
            values = self._tree.memory.column(column)[:n_slots]
            row[: values.size] = values
        layout_of, inside, certainty = found
        has_layout = layout_of != 0
        layouts = self._tree.memory.column(state.LAYOUTS).reshape(-1, LAYOUT_LENGTH)
        size = int(self.header[state.REUSE_BLOCK])
        is_reused = has_layout & (matched[:, Tier.GPU].astype(np.int64) * size + inside > 0)
        # Tokens that the engine computes again behind a hit do not shorten the hit.
        inside[is_reused] += layouts[layout_of[is_reused] - 1, R_REPLAY]
        return ReuseMatch(matched, held, has_layout, inside, certainty)

    def name_prefix(self, slot: int, path: Hashes) -> Hashes | None:
        """Return the engine hashes of the leading GPU blocks of `path` that the slot holds.

        None means that they are too many to search, see `find_prefix_names`.
        """
        with self.lock:
            return find_prefix_names(self._tree.memory, slot, path)

    def set_units(self, units: PromptUnits | None) -> None:
        """Set the data of a prompt that matching kernels may use, until the next call.

        Only for the thread that places prompts.
        """
        if self.header[state.LAYOUTS]:
            _point_to_units(self.header, units)

    @property
    def lookahead(self) -> int:
        """Tokens behind a block that the block's content covers, as events have shown; 0 before."""
        return self._tree.lookahead

    @property
    def name_scheme(self) -> NameScheme | None:
        """How the engines name prefixes, where ends inside blocks are matched by names."""
        return self._tree.layouts.name_scheme

    @property
    def has_layouts(self) -> bool:
        """True if a rank has several cache groups, or a group with a dropped last match."""
        return bool(self.header[state.LAYOUTS])

    @property
    def units_per_block(self) -> int:
        """Units per block in which reusable prefixes of some rank may end; 0: only whole blocks."""
        return int(self.header[state.UNITS_MAX])

    def stats(self) -> IndexStats:
        """Return current sizes, and totals of everything refused or dropped."""
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
        """Return a copy of the present moment. O(blocks), in steps. Raises MemoryError.

        The copy omits slots with an unfinished step: a large announcement, a clear or a fill.
        """
        with self._copy_lock:
            copy = SnapshotCopy(self._tree.memory)
            moment = self._begin_copy(copy)
            # Allocation happens without the lock, so the index may outgrow the arrays before the
            # copy begins.
            while moment is None:
                copy.reserve_arrays()
                moment = self._begin_copy(copy)
            try:
                more = True
                while more:
                    with self.lock:
                        more = copy.copy_step()
            finally:
                with self.lock:
                    copy.end_copy()
        orphans = tuple((slot, orphan) for slot, mine in moment.orphans for orphan in mine)
        snapshot = copy.snapshot(moment.slots, moment.positions, orphans, moment.live_at)
        keyed_roots = moment.keyed_roots.list_rows()
        groups = {slot: complete_record(*copy) for slot, copy in moment.groups.items()}
        return snapshot._replace(keyed_roots=keyed_roots, groups=groups)

    def _has_room(self, more: int) -> bool:
        return self._tree.memory.has_slot(self._slots.count_with(more) - 1)

    def _begin_copy(self, copy: SnapshotCopy) -> "_CopyMoment | None":
        """Begin a copy; None if the index has grown beyond the copy."""
        with self.lock:
            if not copy.begin_copy():
                return None
            writers = [writer for writer in self._slots.writers if writer is not None]
            return _CopyMoment(
                slots=tuple(w.slot for w in writers if w.is_whole),
                positions={w.slot: w.position for w in writers if w.position is not None},
                live_at={w.slot: w.live_at for w in writers if w.live_at is not None},
                orphans=self._tree.orphans.by_slot(),
                keyed_roots=self._tree.keyed_roots.copy(),
                groups={w.slot: _groups_of(w) for w in writers if w.groups_record is not None},
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
                    assert not tree.has_block_name(slot, orphan.tier, orphan.parent), "not adopted"
                    placed = tree.has_block_name_in_tier(slot, orphan.tier, orphan.engine_hash)
                    assert not placed, "both an orphan and in the tree"
