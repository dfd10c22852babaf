"""Assumed blocks of a partition: an index of prefixes, and an order of eviction per rank.

The index has the same slots as the index of confirmed blocks; prompts are matched in both
(`placement.assumption_kernels`).  `assumed_kernels` keeps the order of use: every booking touches
the blocks of the prompt, and a rank keeps as many blocks as fit in the cache.  A block is named by
the key of the prefix in load accounting, so that blocks of live reservations are recognised.

No clock and no thread; only the event loop changes the blocks.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.hashing.block_hashing import Hashes
from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import SlotWriter
from indexer.page_memory import zeroed_array
from indexer.tiers import Tier
from select_service.core.array_types import store_pointer
from select_service.core.assumed import assumed_kernels as kernels
from select_service.core.assumed import assumed_layout as layout
from select_service.core.assumed.assumed_size import AssumedSize
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX

ENTRIES_SHARE = 4
"""Divisor of the memory limit: the share of the order of eviction; the index has the rest."""
EVICTED_MAX = 2 * BOOKED_BLOCKS_MAX
"""Blocks that a booking examines to evict others, a millisecond or two."""
STEP_BLOCKS = 2048
"""Blocks examined per step of a clear or an expiry."""
CLEARS_PER_STEP = 256
"""Clears of slots without blocks ended per step, about a microsecond each."""

_NOTHING: Hashes = np.zeros(0, np.uint64)
_NO_LOAD = np.zeros(0, np.int64)
_INITIAL_BUCKETS = 1024


@dataclass(slots=True)
class AssumedRank:
    """Rank with assumed blocks for its bookings.

    ttl_s: time after the last use in which a block is assumed, seconds; infinite means no limit
    is_beside_events: whether the engine also announces blocks
    """

    size: AssumedSize
    ttl_s: float = inf
    is_beside_events: bool = False


class AssumedStats(NamedTuple):
    """Sizes now, and totals: blocks that found no memory, and names that were evicted."""

    blocks: int
    blocks_max: int
    bytes: int
    refused: int
    evicted: int


NOTHING_ASSUMED = AssumedStats(0, 0, 0, 0, 0)


class AssumedBlocks:
    """Assumed blocks of all ranks of a partition."""

    def __init__(self, confirmed: PrefixIndex, load: ActiveLoad) -> None:
        """Reserve memory: as much as the index of confirmed blocks may take.  Raises MemoryError.

        confirmed: index of the partition, with the same slots and the same lock
        load: load of the partition
        """
        stats = confirmed.stats()
        bytes_max = stats.bytes_max
        entries_max = min(bytes_max // ENTRIES_SHARE // layout.ENTRY_BYTES, 2**31 - 2)
        self.index = PrefixIndex(
            stats.blocks_max,
            bytes_max=bytes_max - bytes_max // ENTRIES_SHARE,
            orphan_blocks_max=0,
            lock=confirmed.lock,
        )
        self._load = load
        self._writers: list[SlotWriter] = []
        self._ranks: dict[int, AssumedRank] = {}
        self._jobs: deque[Iterator[None]] = deque()
        self._clears: dict[tuple[int, bool], float] = {}
        """Clears that have not begun: time by slot and `keeps_live`, at most two of a slot."""
        self._evicted_names: Hashes = np.empty(EVICTED_MAX, np.uint64)
        self._refused = self._evicted = 0
        self._now = 0.0
        self._reserve_memory(entries_max)
        self.reserve_slots(confirmed.n_slots)
        self.ensure_slots(confirmed.n_slots)

    def _reserve_memory(self, entries_max: int) -> None:
        self.header = header = np.zeros(layout.HEADER_LENGTH, np.int64)
        self._numbers = header.data
        self._entries = zeroed_array((entries_max + 1) * layout.FIELDS, np.int64)
        self._heads = zeroed_array(max(entries_max, _INITIAL_BUCKETS), np.int32)
        self._slots: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        store_pointer(header, layout.ENTRIES, self._entries)
        store_pointer(header, layout.HEADS, self._heads)
        header[layout.USED], header[layout.COUNT_MAX] = 1, entries_max
        header[layout.BUCKETS] = header[layout.POWER] = _INITIAL_BUCKETS
        # Names derive from hashes that callers may choose: a secret seed keeps buckets short.
        header[layout.SEED] = Random().getrandbits(63)

    # Slots and ranks

    def reserve_slots(self, n_slots: int) -> None:
        """Prepare slots 0 .. n_slots-1 for `ensure_slots`.  Raises MemoryError without effect."""
        more = n_slots - len(self._writers)
        if more <= 0:
            return
        self.index.reserve_slots(more)
        n_rows = self._slots.size // layout.SLOT_FIELDS
        if n_rows < n_slots:
            rows = np.zeros(max(n_slots, 2 * n_rows) * layout.SLOT_FIELDS, np.int64)
            rows[: self._slots.size] = self._slots
            self._slots = rows
            store_pointer(self.header, layout.SLOTS, rows)

    def ensure_slots(self, n_slots: int) -> None:
        """Make slots 0 .. n_slots-1 exist.  Never shrinks."""
        more = n_slots - len(self._writers)
        if more > 0:
            opened = self.index.open_slots(more)
            assert [writer.slot for writer in opened] == list(range(n_slots - more, n_slots))
            self._writers += opened

    def set_rank(self, slot: int, rank: AssumedRank | None) -> None:
        """Let the bookings of a slot be assumed; None ends this and removes the slot's blocks."""
        old = self._ranks.pop(slot, None)
        if rank is not None:
            if old is not None and old.size.declared == rank.size.declared:
                rank.size = old.size  # what was learned stays
            self._ranks[slot] = rank
        if old is not None and (rank is None or old.is_beside_events != rank.is_beside_events):
            self.begin_clear(slot, inf, keeps_live=False)

    def rank_at(self, slot: int) -> AssumedRank | None:
        """Return the rank of a slot with assumed bookings, else None."""
        return self._ranks.get(slot)

    @property
    def ranks(self) -> dict[int, AssumedRank]:
        """Ranks with assumed blocks, by slot; not to be changed."""
        return self._ranks

    def count_blocks(self, slot: int) -> int:
        """Return the number of blocks that a slot is assumed to hold."""
        at = slot * layout.SLOT_FIELDS + layout.LENGTH
        return int(self._slots[at]) if at < self._slots.size else 0

    def is_full(self, slot: int) -> bool:
        """Return whether as many blocks are assumed as the rank keeps."""
        rank = self._ranks.get(slot)
        return rank is not None and self.count_blocks(slot) >= rank.size.blocks

    # Prompts

    def name_prompt(self, path: Hashes, sequence: Hashes, before: Hashes = _NOTHING) -> Hashes:
        """Return the names of the leading blocks of a prompt, uint64[n].

        path: uint64[n], block hashes
        sequence: identities of the blocks in load accounting; if shorter, `path` is used
        before: name of the prefix before the first block, uint64[1]; empty at the beginning
        """
        n = min(len(path), BOOKED_BLOCKS_MAX)
        names = np.empty(n, np.uint64)
        kernels.fill_names(before, sequence[:n] if len(sequence) >= n else path[:n], names)
        return names

    def use_prompt(self, slot: int, path: Hashes, names: Hashes, now: float) -> None:
        """Assume that a rank holds a prompt from now on, as far as there is memory.

        path: uint64[at least n], block hashes of the prompt
        names: uint64[n], from `name_prompt`
        O(blocks), bounded by BOOKED_BLOCKS_MAX and EVICTED_MAX
        """
        rank = self._ranks.get(slot)
        if rank is None or not len(names):
            return
        names = names[: self._make_room(slot, names, now)]
        if len(names):
            first = kernels.touch_blocks(self.header, slot, names, now)
            if first < len(names):
                self._store_blocks(slot, path, names, first)
        self._evict(slot, rank.size.blocks, now)

    def extend_prompt(self, slot: int, names: Hashes, answer: Hashes, now: float) -> bool:
        """Assume the blocks of an answer behind a prompt; return whether the prompt is assumed.

        names: uint64[n], names of the prompt and then of the answer
        answer: uint64[m], block hashes of the answer
        """
        rank, n_prompt = self._ranks.get(slot), len(names) - len(answer)
        if rank is None or kernels.count_missing(self.header, slot, names[:n_prompt]):
            return False  # what the engine no longer has cannot be continued
        names = names[: self._make_room(slot, names, now)]
        # Making room may have evicted the prompt itself, unless the prompt is live.
        is_there = not kernels.count_missing(self.header, slot, names[:n_prompt])
        if is_there and len(names) >= n_prompt:
            first = kernels.touch_blocks(self.header, slot, names, now)
            if first < len(names):
                path = np.concatenate([names[:n_prompt], answer])  # only the answer is stored
                self._store_blocks(slot, path, names, first)
        self._evict(slot, rank.size.blocks, now)
        return bool(is_there)

    def _make_room(self, slot: int, names: Hashes, now: float) -> int:
        """Evict blocks of the slot if memory is short; return the leading blocks that fit."""
        free = self._count_free()
        # The usual case needs no look at the names.
        if free >= len(names):
            return len(names)
        missing = kernels.count_missing(self.header, slot, names)
        self._evict(slot, self.count_blocks(slot) - max(0, missing - free), now)
        missing = int(kernels.count_missing(self.header, slot, names))
        fitting = len(names) - max(0, missing - self._count_free())
        self._refused += len(names) - fitting
        return int(max(0, fitting))

    def _count_free(self) -> int:
        return int(self._numbers[layout.COUNT_MAX]) - int(self._numbers[layout.COUNT])

    def _store_blocks(self, slot: int, path: Hashes, names: Hashes, first: int) -> None:
        """Store the blocks from `first` on in the index, which has all blocks before."""
        parent, rest = int(names[first - 1]) if first else None, names[first:]
        blocks = np.ascontiguousarray(path[first : len(names)])
        recorded = self._writers[slot].store(Tier.GPU, parent, blocks, rest, counted=False)
        if recorded < len(rest):
            self._refused += len(rest) - recorded
            out = np.empty(len(rest), np.uint64)
            # The order of use must not hold blocks that the index lacks.
            kernels.forget_blocks(self.header, slot, rest[recorded:], inf, out)

    def _evict(self, slot: int, keep: int, now: float) -> None:
        if self.count_blocks(slot) <= keep:
            return
        out, load = self._evicted_names, self._load.header
        n = kernels.evict_blocks(self.header, load, slot, max(0, keep), now, out)
        self._evicted += n
        self._remove(slot, out[:n])

    def _remove(self, slot: int, names: Hashes) -> None:
        """Remove blocks that are no longer in the order of eviction from the index."""
        writer = self._writers[slot]
        if len(names) and writer.remove(Tier.GPU, names, sweep=False) < len(names):
            # Without memory for the removal the index forgets the slot: a false hit is worse.
            self.begin_clear(slot, inf, keeps_live=False)
            self._jobs.append(_ignore_costs(writer.settle_in_steps()))

    def forget_prompt(self, slot: int, names: Hashes, at: float) -> None:
        """Assume blocks no longer that were last used at a time or before.

        names: uint64[n], at most BOOKED_BLOCKS_MAX
        """
        out = self._evicted_names
        self._remove(slot, out[: kernels.forget_blocks(self.header, slot, names, at, out)])

    # Clears and expiry, in steps

    def begin_clear(self, slot: int, at: float, *, keeps_live: bool) -> None:
        """Remove the blocks of a slot last used at a time or before, in the next turns.

        keeps_live: whether blocks of live reservations stay, as in engines at a weight update
        """
        place = slot, keeps_live
        self._clears[place] = max(at, self._clears.get(place, at))

    def _clear_in_steps(self, slot: int, at: float, keeps_live: bool) -> Iterator[None]:
        # Live blocks count as used now, so each is examined once at most after `at`.
        left, load = self.count_blocks(slot), self._load.header if keeps_live else _NO_LOAD
        while left > 0:
            out = self._evicted_names[: min(left, STEP_BLOCKS)]
            n = kernels.clear_blocks(self.header, load, slot, at, self._now, out)
            examined = self._numbers[layout.EXAMINED]
            left = left - examined if examined == len(out) else 0
            self._remove(slot, out[:n])
            yield

    def run_step(self, now: float) -> bool:
        """Take a bounded step of clears, then of expiry; return whether more steps are due."""
        self._now = now
        for _ in range(CLEARS_PER_STEP):
            if not self._jobs and not self._clears:
                return self._expire_step(now)
            if not self._jobs:
                place = next(iter(self._clears))
                at = self._clears.pop(place)
                self._jobs.append(self._clear_in_steps(place[0], at, place[1]))
            if next(self._jobs[0], True) is None:
                return True
            self._jobs.popleft()
        return True

    def _expire_step(self, now: float) -> bool:
        out, left = self._evicted_names, STEP_BLOCKS
        for slot, rank in self._ranks.items():
            if rank.ttl_s < inf and self.count_blocks(slot):
                n = kernels.expire_blocks(self.header, slot, now - rank.ttl_s, out[:left])
                self._evicted += n
                self._remove(slot, out[:n])
                left -= n
                if not left:
                    return True
        return False

    def is_empty(self, slot: int) -> bool:
        """Return whether nothing is assumed of a slot."""
        return not self.count_blocks(slot)

    def stats(self) -> AssumedStats:
        numbers, n_entries = self._numbers, self._numbers[layout.USED]
        return AssumedStats(
            numbers[layout.COUNT],
            numbers[layout.COUNT_MAX],
            self.index.stats().bytes + n_entries * layout.ENTRY_BYTES,
            self._refused,
            self._evicted,
        )

    def list_names(self, slot: int) -> tuple[list[int], list[float]]:
        """Return names and times of last use from the oldest to the newest, for tests."""
        n = self.count_blocks(slot)
        names, times = np.empty(n, np.uint64), np.empty(n, np.float64)
        assert kernels.list_blocks(self.header, slot, names, times) == n
        return names.tolist(), times.tolist()

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        self.index.check_invariants()
        counts = [self.count_blocks(slot) for slot in range(len(self._writers))]
        assert sum(counts) == self._numbers[layout.COUNT]
        assert self._numbers[layout.COUNT] <= self._numbers[layout.COUNT_MAX]
        assert self.index.n_slots == len(self._writers)
        for slot in range(len(self._writers)):
            names, _ = self.list_names(slot)
            assert len(names) == len(set(names))
            known = np.array(names, np.uint64)
            assert kernels.count_missing(self.header, slot, known) == 0


def _ignore_costs(steps: Iterator[int]) -> Iterator[None]:
    for _ in steps:
        yield
