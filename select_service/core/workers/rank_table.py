"""Rank table: facts about every rank of a partition, as columns with one row per slot.

The rows of a worker are written together, independently of other rows. Columns have spare rows and
double when full. Readers see views of the first `n_slots` rows, which are recreated when a row is
added. Every fact per rank is a column here; `_rows` maps rows to ranks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.index.slot_writer import SlotWriter
from select_service.core.array_types import Floats, Mask, store_pointer
from select_service.core.identity import Rank
from select_service.core.workers import rank_table_layout as layout
from select_service.core.workers.declared_speeds import DeclaredSpeeds
from select_service.core.workers.rank_history import RankHistory
from select_service.core.workers.taint_bits import TaintBits
from select_service.core.workers.worker_catalog import RegisteredWorker

ROWS_AT_FIRST = 8


class RankRow(NamedTuple):
    """Rank of a row.

    writer: writer of its index slot
    """

    rank: Rank
    worker: RegisteredWorker
    writer: SlotWriter


class RankColumns(NamedTuple):
    """Arrays with one entry per slot; the value of an empty row is in parentheses.

    open: whether the rank may be chosen, that is, its weight is not 0 (False)
    weight: share of requests, see `weight_kernels` (1)
    kv_blocks: blocks of the KV cache; infinite if unknown (infinite)
    batch_tokens: max_num_batched_tokens; infinite if unknown (infinite)
    kv_usage: used share of the KV cache as reported by the engine; NaN if not reported (NaN)
    worker_number: small number, the same for all ranks of one worker (0)
    taints: bits of its taints, see `TaintBits` (0)
    version: version of the table at the latest change of its worker (0)
    outside: 1 for a rank in another replica's share, else 0 (0)
    speed: declared prefill speed in tokens/s; 0 if not declared (0)
    """

    open: Mask
    weight: Floats
    kv_blocks: Floats
    batch_tokens: Floats
    kv_usage: Floats
    worker_number: npt.NDArray[np.int64]
    taints: npt.NDArray[np.uint64]
    version: npt.NDArray[np.int64]
    outside: Floats
    speed: Floats

    @classmethod
    def empty_rows(cls, n_rows: int) -> "RankColumns":
        return cls(
            open=np.zeros(n_rows, np.bool_),
            weight=np.ones(n_rows, np.float64),
            kv_blocks=np.full(n_rows, np.inf),
            batch_tokens=np.full(n_rows, np.inf),
            kv_usage=np.full(n_rows, np.nan),
            worker_number=np.zeros(n_rows, np.int64),
            taints=np.zeros(n_rows, np.uint64),
            version=np.zeros(n_rows, np.int64),
            outside=np.zeros(n_rows, np.float64),
            speed=np.zeros(n_rows, np.float64),
        )

    def first_rows(self, n_rows: int) -> "RankColumns":
        """Return views of the first rows."""
        columns: Any = (column[:n_rows] for column in self)
        return RankColumns(*columns)


_TABLE_NUMBERS = count(1)
_TABLE_BITS, _CHANGE_BITS = 13, 25
"""Bits of a first version: a number of the table, above the changes.  Kept decisions have a slot
and a version in one number (decision_ring_layout.SLOT_BITS).
"""


class RankTable:
    """Ranks of a partition; the index assigns the slots."""

    def __init__(self) -> None:
        """Create an empty table."""
        self.version = next(_TABLE_NUMBERS) % (1 << _TABLE_BITS) << _CHANGE_BITS
        """Version, changed by every change of ranks or their facts.

        The next tables have other versions: a session outlives the table of its partition, and must
        not take a row of the next table for its rank.
        """
        self.taint_names = TaintBits()
        self._speeds = DeclaredSpeeds()
        self._rows: dict[int, RankRow] = {}
        self._slot_of: dict[Rank, int] = {}
        self._slots_of: dict[int, list[int]] = {}
        self._number_of: dict[int, int] = {}
        self._free_numbers: list[int] = []
        self._closed: dict[int, str] = {}
        self._history: RankHistory | None = None
        self.header = np.zeros(layout.HEADER_LENGTH, np.int64)
        """Access of kernels to the columns (rank_layout); never replaced."""
        self._publish_columns(RankColumns.empty_rows(ROWS_AT_FIRST), 0)

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self._slot_of)

    @property
    def n_slots(self) -> int:
        return len(self.columns.open)

    @property
    def open_slots(self) -> Mask:
        """bool[n_slots]: ranks that may be chosen."""
        return self.columns.open

    @property
    def n_closed(self) -> int:
        """Number of ranks that may not be chosen."""
        return len(self._closed)

    @property
    def is_closed(self) -> bool:
        """Whether no rank may be chosen."""
        return len(self._closed) == len(self._slot_of)

    def occupied_slots(self) -> Mask:
        """Return bool[n_slots]: all occupied rows. O(1) while all ranks may be chosen."""
        if not self._closed:
            return self.columns.open
        mask = self.columns.open.copy()
        mask[list(self._closed)] = True
        return mask

    def states_of_closed(self, among: Mask) -> dict[str, int]:
        """Return the number of excluded ranks by state. O(excluded ranks)"""
        return dict(Counter(state for slot, state in self._closed.items() if among[slot]))

    def sorted_ranks(self) -> list[Rank]:
        """Return the ranks sorted by worker and rank. O(ranks * log(ranks))"""
        return sorted(self._slot_of)

    def iterate_slots(self) -> Iterator[tuple[Rank, int]]:
        """Iterate over ranks and slots in arbitrary order."""
        return iter(self._slot_of.items())

    @property
    def n_workers(self) -> int:
        return len(self._slots_of)

    def worker_ids(self) -> list[int]:
        """Return the sorted worker ids. O(workers * log(workers))"""
        return sorted(self._slots_of)

    def has_only(self, worker_id: int) -> bool:
        """Return whether no other worker is in the table."""
        return self.n_workers == (worker_id in self._slots_of)

    def find_slot(self, rank: Rank) -> int | None:
        """Return the slot of a rank, or None."""
        return self._slot_of.get(rank)

    def ranks_without_slot(self, ranks: Iterable[Rank]) -> list[Rank]:
        """Return the ranks without a slot, in their order."""
        return [rank for rank in ranks if rank not in self._slot_of]

    def is_taken(self, slot: int) -> bool:
        """Return whether the row is occupied."""
        return slot in self._rows

    def row_at(self, slot: int) -> RankRow:
        return self._rows[slot]

    def enable_history(self) -> None:
        """Enable the history of `rank_at`."""
        if self._history is None:
            self._history = RankHistory()

    def rank_at(self, slot: int, version: int) -> Rank | None:
        """Return the rank of a row at a version; None if no longer known."""
        if self._history is not None:
            if self._history.is_forgotten(slot, version):
                return None
            left = self._history.find_former_rank(slot, version)
            if left is not None:
                return left
        row = self._rows.get(slot)
        return None if row is None else row.rank

    def writer_of(self, rank: Rank) -> SlotWriter:
        return self._rows[self._slot_of[rank]].writer

    def writers_by_rank(self) -> dict[Rank, SlotWriter]:
        """Return the index writers of all ranks, in arbitrary order."""
        return {row.rank: row.writer for row in self._rows.values()}

    def slots_of(self, worker_id: int) -> list[int]:
        """Return the slots of a worker by rank; empty for an unknown worker."""
        return self._slots_of.get(worker_id, [])

    def slots_of_any(self, worker_ids: Iterable[int]) -> list[int]:
        """Return the slots of several workers in arbitrary order; unknown workers are ignored."""
        present_ids = self._slots_of.keys() & worker_ids
        return [slot for worker_id in present_ids for slot in self._slots_of[worker_id]]

    def mask_of(self, worker_id: int) -> Mask:
        """Return bool[n_slots]: ranks of a worker that may be chosen."""
        mask = np.zeros(self.n_slots, np.bool_)
        slots = self.slots_of(worker_id)
        mask[slots] = self.columns.open[slots]
        return mask

    def reserve_slots(self, n_slots: int) -> None:
        """Allocate room for `ensure_slots`. Raises MemoryError without changes."""
        rows = len(self._all.open)
        if n_slots <= rows:
            return
        while rows < n_slots:
            rows *= 2
        grown = RankColumns.empty_rows(rows)
        for column, old in zip(grown, self._all, strict=True):
            column[: len(old)] = old
        self._publish_columns(grown, self.n_slots)

    def ensure_slots(self, n_slots: int) -> None:
        """Create rows below `n_slots`; rows are never removed, as slots are reused."""
        if n_slots > self.n_slots:
            self.reserve_slots(n_slots)
            self._publish_columns(self._all, n_slots)

    def _publish_columns(self, rows: RankColumns, n_slots: int) -> None:
        columns = rows.first_rows(n_slots)
        self._all, self.columns = rows, columns
        for pair, column in enumerate(columns):
            store_pointer(self.header, 2 * pair, column)
        self.header[layout.N_SLOTS] = n_slots

    def prepare_worker(self, worker: RegisteredWorker) -> None:
        """Store the facts of a worker that need memory, before `put`. Raises MemoryError without
        changes.
        """
        worker_id = worker.worker_id
        number = self._number_of.get(worker_id)
        is_new = number is None
        if number is None:
            fresh = len(self._number_of)  # all smaller ones are in use when none is free
            # Only looked at here and popped below: a MemoryError in between must change nothing.
            number = self._free_numbers[-1] if self._free_numbers else fresh
        self.taint_names.set_taints(number, worker.registration.taints)
        if is_new:
            self._number_of[worker_id] = number
            if self._free_numbers:
                self._free_numbers.pop()

    def put_worker(self, worker: RegisteredWorker, writers: Mapping[Rank, SlotWriter]) -> None:
        """Write the rows of all ranks of a worker; engine readings and weights stay. O(ranks of the
        worker)

        Requires `prepare_worker` and `ensure_slots`. Ranks that the worker lacks now stay until
        `drop`.

        writers: by rank, in order; existing ranks keep their slot
        """
        slots = [writer.slot for writer in writers.values()]
        rows = map(RankRow, writers, repeat(worker), writers.values())
        self._rows.update(zip(slots, rows, strict=True))
        self._slot_of.update(zip(writers, slots, strict=True))
        gone = set(self._slots_of.get(worker.worker_id, ())).difference(slots)
        if gone:
            by_rank = sorted((self._rows[slot].rank, slot) for slot in gone.union(slots))
            self._slots_of[worker.worker_id] = [slot for _, slot in by_rank]
        else:
            self._slots_of[worker.worker_id] = slots
        given, columns, at = worker.registration, self.columns, np.array(slots)
        number, tokens = self._number_of[worker.worker_id], given.max_num_batched_tokens
        self.version += 1
        self._speeds.set_speed(worker.worker_id, given.prefill_tokens_per_s)
        # A rank out of rotation stays out when its worker registers again.
        columns.open[at] = columns.weight[at] > 0.0
        columns.speed[at] = given.prefill_tokens_per_s or 0.0
        self._publish_median_speed()
        columns.kv_blocks[at] = given.total_kv_blocks or np.inf
        columns.batch_tokens[at] = np.inf if tokens is None else tokens
        columns.worker_number[at] = number
        columns.taints[at] = self.taint_names.bits_of(number)
        columns.version[at] = self.version

    def renew_version_of(self, worker_id: int) -> None:
        """Let what others keep about the ranks of a worker count as outdated."""
        self.version += 1
        self.columns.version[self.slots_of(worker_id)] = self.version

    def remove_ranks(self, worker_id: int, ranks: Iterable[Rank]) -> list[RankRow]:
        """Remove ranks of a worker and empty their rows. O(ranks of the worker)"""
        slots = [self._slot_of.pop(rank) for rank in ranks]
        gone = set(slots)
        left = [slot for slot in self._slots_of[worker_id] if slot not in gone]
        if left:
            self._slots_of[worker_id] = left
        else:
            del self._slots_of[worker_id]
            number = self._number_of.pop(worker_id)
            # Small numbers are reused, since taint masks have one bit per number.
            self._free_numbers.append(number)
            self.taint_names.remove_worker(number)
            self._speeds.set_speed(worker_id, None)
        for slot in gone & self._closed.keys():
            del self._closed[slot]
        at = np.array(slots)
        self.version += 1
        for column, empty in zip(self.columns, _EMPTY_ROW, strict=True):
            column[at] = empty[0]
        self.columns.version[left] = self.version
        self._publish_median_speed()
        rows = [self._rows.pop(slot) for slot in slots]
        if self._history is not None:
            for slot, row in zip(slots, rows, strict=True):
                self._history.record_departure(slot, self.version, row.rank)
        return rows

    @property
    def median_speed(self) -> float:
        """Median of the prefill speeds that workers declare, tokens/s; 0 without any."""
        return self._speeds.median_speed

    def _publish_median_speed(self) -> None:
        self.header.view(np.float64)[layout.MEDIAN_SPEED] = self.median_speed

    def ranks_with_taints(self, names: Iterable[str]) -> Mask:
        """Return bool[n_slots]: ranks with all these taints; empty rows have arbitrary values."""
        columns = self.columns
        return self.taint_names.slots_with_taints(names, columns.taints, columns.worker_number)

    def ranks_with_taint(self, name: str) -> Mask:
        """Return bool[n_slots]: ranks with this taint; empty rows have arbitrary values."""
        return self.ranks_with_taints((name,))

    def set_kv_usage(self, slot: int, usage: float | None) -> bool:
        """Set the reported cache usage of a rank, 0 to 1 or None. Return whether the value
        changed.
        """
        old = self.columns.kv_usage[slot]
        new = np.nan if usage is None else usage
        if old == new or (np.isnan(old) and usage is None):
            return False
        self.columns.kv_usage[slot] = new
        return True

    def set_weight(self, slot: int, weight: float, state: str) -> bool:
        """Set the weight of a rank; 0 excludes the rank. O(1)

        Returns whether the rank changed between candidate and excluded.

        state: reason for a weight of 0, used in error messages
        """
        assert slot in self._rows
        assert 0.0 <= weight < np.inf
        columns, opens = self.columns, weight > 0.0
        if opens and columns.weight[slot] == weight:
            return False
        turns = bool(columns.open[slot]) != opens
        if opens:
            self._closed.pop(slot, None)
        else:
            self._closed[slot] = state
        self.version += turns
        columns.weight[slot] = weight
        columns.open[slot] = opens
        return turns

    def set_weight_of(self, worker_id: int, weight: float, state: str) -> bool:
        """Set the weight of all ranks of a worker; return whether any became candidate or
        excluded.
        """
        slots, opens = self.slots_of(worker_id), weight > 0.0
        columns, at = self.columns, np.array(slots, np.intp)
        turns = bool((columns.open[at] != opens).any())
        if opens:
            for slot in slots:
                self._closed.pop(slot, None)
        else:
            self._closed.update(zip(slots, repeat(state), strict=False))
        self.version += turns
        columns.weight[at] = weight
        columns.open[at] = opens
        return turns

    def set_outside(self, slots: list[int], outside: Mask) -> None:
        """Set whether occupied slots belong to other replicas' shares.

        outside: bool[len(slots)]
        """
        self.columns.outside[slots] = outside

    def check_invariants(self) -> None:
        """Recompute all incrementally maintained values; used by tests."""
        self.taint_names.check_invariants()
        assert {row.rank: slot for slot, row in self._rows.items()} == self._slot_of
        assert set(np.flatnonzero(self.occupied_slots()).tolist()) == set(self._rows)
        assert self._rows.keys() >= self._closed.keys()
        assert np.array_equal(
            self.columns.open, self.occupied_slots() & (self.columns.weight > 0.0)
        )
        assert not self.columns.open[list(self._closed)].any()
        for worker_id, slots in self._slots_of.items():
            own = sorted((rank, s) for rank, s in self._slot_of.items() if rank[0] == worker_id)
            assert slots == [slot for _, slot in own]
            numbers = {int(self.columns.worker_number[slot]) for slot in slots}
            assert numbers == {self._number_of[worker_id]}
        assert self._slots_of.keys() == self._number_of.keys()
        used = sorted([*self._number_of.values(), *self._free_numbers])
        assert used == list(range(len(used)))
        self._check_rows()
        self._speeds.check_invariants()
        pairs = [(column.ctypes.data, column.size) for column in self.columns]
        usual = int(np.float64(self._speeds.median_speed).view(np.int64))
        assert self.header.tolist() == [*(n for pair in pairs for n in pair), self.n_slots, usual]

    def _check_rows(self) -> None:
        for slot, row in self._rows.items():
            for name in row.worker.registration.taints:
                assert self.ranks_with_taint(name)[slot]
        for column, empty in zip(self._all, _EMPTY_ROW, strict=True):
            rest = np.delete(column, list(self._rows))
            assert np.array_equal(rest, np.full_like(rest, empty[0]), equal_nan=rest.dtype == float)


_EMPTY_ROW = RankColumns.empty_rows(1)
