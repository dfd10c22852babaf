"""What is known of every rank of one partition, as columns with one row per slot.

The rows of a worker are written together, whatever the number of other rows: columns have spare
rows and double when they run out of them.  What others see are views of the first `n_slots` rows,
which are made anew when a row is added.  A fact per rank is a column here; who stands in a row is
in `_rows`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.index.slot_writer import SlotWriter
from indexer.mutex import Mutex
from select_service.core.arrays import Floats, Mask, name_array
from select_service.core.identity import Rank
from select_service.core.workers import rank_layout as layout
from select_service.core.workers.catalog import Worker
from select_service.core.workers.declared_speeds import DeclaredSpeeds
from select_service.core.workers.rank_history import RankHistory
from select_service.core.workers.taints import TaintNames

ROWS_AT_FIRST = 8


class Row(NamedTuple):
    """Who stands in a row.  writer: of its slot in the index"""

    rank: Rank
    worker: Worker
    writer: SlotWriter


class Columns(NamedTuple):
    """Arrays with one entry per slot; what a row of nobody holds is said in parentheses.

    open:          is there a rank that may be chosen: one whose weight is not 0 (False)
    weight:        how much of its share of requests it gets, see `weight_kernels` (1)
    kv_blocks:     blocks of its KV cache; infinite when not known (infinite)
    batch_tokens:  max_num_batched_tokens; infinite when not known (infinite)
    kv_usage:      used part of its KV cache in the words of its engine; NaN: it does not say (NaN)
    worker_number: a small number, the same for all ranks of one worker (0)
    taints:        bits of its taints, see `TaintNames` (0)
    version:       that of the table since which nothing of its worker has changed (0)
    outside:       1 for a rank of another replica's share, else 0 (0)
    speed:         declared prefill speed in tokens per second; 0 when it is not (0)
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
    def of_nobody(cls, n_rows: int) -> "Columns":
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

    def first(self, n_rows: int) -> "Columns":
        """Views of the first rows."""
        columns: Any = (column[:n_rows] for column in self)
        return Columns(*columns)


class RankTable:
    """The ranks of one partition.  Slots are those of its index, which hands them out.

    Kernels of other threads may read the columns, under `lock`.
    """

    def __init__(self, lock: Mutex | None = None) -> None:
        """lock: None: nobody else reads them"""
        self._lock = nullcontext() if lock is None else lock
        self.version = 0
        """Another number after every change of who is there and what is known of them."""
        self.names = TaintNames()
        self._speeds = DeclaredSpeeds()
        self._rows: dict[int, Row] = {}
        self._slot_of: dict[Rank, int] = {}
        self._slots_of: dict[int, list[int]] = {}
        self._number_of: dict[int, int] = {}
        self._free_numbers: list[int] = []
        self._closed: dict[int, str] = {}
        self._history: RankHistory | None = None
        self.header = np.zeros(layout.HEADER_LENGTH, np.int64)
        """How kernels reach the columns (rank_layout); never replaced."""
        self._show(Columns.of_nobody(ROWS_AT_FIRST), 0)

    def __len__(self) -> int:
        """Ranks."""
        return len(self._slot_of)

    @property
    def n_slots(self) -> int:
        return len(self.columns.open)

    @property
    def open(self) -> Mask:
        """bool[n_slots]: the ranks that may be chosen."""
        return self.columns.open

    @property
    def n_closed(self) -> int:
        """Ranks that may not be chosen."""
        return len(self._closed)

    @property
    def is_closed(self) -> bool:
        """May no rank be chosen?"""
        return len(self._closed) == len(self._slot_of)

    def standing(self) -> Mask:
        """bool[n_slots]: all ranks, chosen or not.  O(1) as long as all of them may be."""
        if not self._closed:
            return self.columns.open
        mask = self.columns.open.copy()
        mask[list(self._closed)] = True
        return mask

    def states_of_closed(self, among: Mask) -> dict[str, int]:
        """In which states ranks may not be chosen, and how many are in each.  O(closed ranks)"""
        return dict(Counter(state for slot, state in self._closed.items() if among[slot]))

    # --- who is there

    def ranks(self) -> list[Rank]:
        """By worker and rank.  O(ranks * log(ranks))."""
        return sorted(self._slot_of)

    def slots(self) -> Iterator[tuple[Rank, int]]:
        """In no order."""
        return iter(self._slot_of.items())

    @property
    def n_workers(self) -> int:
        return len(self._slots_of)

    def workers(self) -> list[int]:
        """Ids, in order.  O(workers * log(workers))"""
        return sorted(self._slots_of)

    def has_only(self, worker_id: int) -> bool:
        """Is nobody there but, perhaps, this worker?"""
        return self.n_workers == (worker_id in self._slots_of)

    def find(self, rank: Rank) -> int | None:
        """Slot of a rank."""
        return self._slot_of.get(rank)

    def newcomers(self, ranks: Iterable[Rank]) -> list[Rank]:
        """Those that have no slot, in their order."""
        return [rank for rank in ranks if rank not in self._slot_of]

    def is_taken(self, slot: int) -> bool:
        """Does a rank stand in the row?"""
        return slot in self._rows

    def row(self, slot: int) -> Row:
        return self._rows[slot]

    def remember(self) -> None:
        """From now on `rank_at` knows of those who leave."""
        if self._history is None:
            self._history = RankHistory()

    def rank_at(self, slot: int, version: int) -> Rank | None:
        """Who stood in the row when its version was this one; None: nobody knows any more."""
        if self._history is not None:
            if self._history.is_forgotten(slot, version):
                return None
            left = self._history.find(slot, version)
            if left is not None:
                return left
        row = self._rows.get(slot)
        return None if row is None else row.rank

    def writer(self, rank: Rank) -> SlotWriter:
        return self._rows[self._slot_of[rank]].writer

    def writers(self) -> dict[Rank, SlotWriter]:
        """Of all ranks, in no order."""
        return {row.rank: row.writer for row in self._rows.values()}

    def slots_of(self, worker_id: int) -> list[int]:
        """Slots of the ranks of one worker, by rank; empty for an unknown one."""
        return self._slots_of.get(worker_id, [])

    def slots_of_any(self, worker_ids: Iterable[int]) -> list[int]:
        """Slots of the ranks of these workers, in no order; unknown ones have none."""
        known = self._slots_of.keys() & worker_ids
        return [slot for worker_id in known for slot in self._slots_of[worker_id]]

    def mask_of(self, worker_id: int) -> Mask:
        """bool[n_slots]: the ranks of one worker that may be chosen."""
        mask = np.zeros(self.n_slots, np.bool_)
        slots = self.slots_of(worker_id)
        mask[slots] = self.columns.open[slots]
        return mask

    # --- changes of a row

    def reserve_slots(self, n_slots: int) -> None:
        """Let `ensure_slots` find room.  Raises MemoryError, and has changed nothing."""
        rows = len(self._all.open)
        if n_slots <= rows:
            return
        while rows < n_slots:
            rows *= 2
        grown = Columns.of_nobody(rows)
        for column, old in zip(grown, self._all, strict=True):
            column[: len(old)] = old
        self._show(grown, self.n_slots)

    def ensure_slots(self, n_slots: int) -> None:
        """Let rows below `n_slots` exist.  Never shrinks: a freed slot may return."""
        if n_slots > self.n_slots:
            self.reserve_slots(n_slots)
            self._show(self._all, n_slots)

    def _show(self, rows: Columns, n_slots: int) -> None:
        columns = rows.first(n_slots)
        with self._lock:
            self._all, self.columns = rows, columns
            for pair, column in enumerate(columns):
                name_array(self.header, 2 * pair, column)
            self.header[layout.N_SLOTS] = n_slots

    def prepare(self, worker: Worker) -> None:
        """Note what is known of a worker before its ranks are `put`.

        Raises MemoryError, and has changed nothing.
        """
        worker_id = worker.worker_id
        number = self._number_of.get(worker_id)
        is_new = number is None
        if number is None:
            fresh = len(self._number_of)  # all smaller ones are in use when none is free
            number = self._free_numbers[-1] if self._free_numbers else fresh
        self.names.put(number, worker.given.taints)
        if is_new:
            self._number_of[worker_id] = number
            if self._free_numbers:
                self._free_numbers.pop()

    def put(self, worker: Worker, writers: Mapping[Rank, SlotWriter]) -> None:
        """Write the rows of all ranks of a worker; what their engines said and their weights stay.

        `prepare` and `ensure_slots` have come before.  Ranks that the worker has no more stay for
        `drop`.  O(ranks of the worker)

        writers: by rank, in their order;  a rank that is there has its slot
        """
        slots = [writer.slot for writer in writers.values()]
        rows = map(Row, writers, repeat(worker), writers.values())
        self._rows.update(zip(slots, rows, strict=True))
        self._slot_of.update(zip(writers, slots, strict=True))
        gone = set(self._slots_of.get(worker.worker_id, ())).difference(slots)
        if gone:
            by_rank = sorted((self._rows[slot].rank, slot) for slot in gone.union(slots))
            self._slots_of[worker.worker_id] = [slot for _, slot in by_rank]
        else:
            self._slots_of[worker.worker_id] = slots
        given, columns, at = worker.given, self.columns, np.array(slots)
        number, tokens = self._number_of[worker.worker_id], given.max_num_batched_tokens
        self.version += 1
        self._speeds.put(worker.worker_id, given.prefill_tokens_per_s)
        with self._lock:
            columns.open[at] = columns.weight[at] > 0.0
            columns.speed[at] = given.prefill_tokens_per_s or 0.0
            self._show_usual_speed()
            columns.kv_blocks[at] = given.total_kv_blocks or np.inf
            columns.batch_tokens[at] = np.inf if tokens is None else tokens
            columns.worker_number[at] = number
            columns.taints[at] = self.names.bits(number)
            columns.version[at] = self.version

    def drop(self, worker_id: int, ranks: Iterable[Rank]) -> list[Row]:
        """Ranks of one worker are unknown from now on, and nobody stands in their rows.

        O(ranks of the worker)
        """
        slots = [self._slot_of.pop(rank) for rank in ranks]
        gone = set(slots)
        left = [slot for slot in self._slots_of[worker_id] if slot not in gone]
        if left:
            self._slots_of[worker_id] = left
        else:
            del self._slots_of[worker_id]
            number = self._number_of.pop(worker_id)
            self._free_numbers.append(number)
            self.names.drop(number)
            self._speeds.put(worker_id, None)
        for slot in gone & self._closed.keys():
            del self._closed[slot]
        at = np.array(slots)
        self.version += 1
        with self._lock:
            for column, empty in zip(self.columns, _EMPTY_ROW, strict=True):
                column[at] = empty[0]
            self.columns.version[left] = self.version
            self._show_usual_speed()
        rows = [self._rows.pop(slot) for slot in slots]
        if self._history is not None:
            for slot, row in zip(slots, rows, strict=True):
                self._history.left(slot, self.version, row.rank)
        return rows

    def _show_usual_speed(self) -> None:
        self.header.view(np.float64)[layout.USUAL_SPEED] = self._speeds.median

    # --- taints

    def having_all(self, names: Iterable[str]) -> Mask:
        """bool[n_slots]: the ranks that have every one of these taints; any value for no rank."""
        columns = self.columns
        return self.names.having_all(names, columns.taints, columns.worker_number)

    def having(self, name: str) -> Mask:
        """bool[n_slots]: the ranks that have this taint; any value where there is no rank."""
        return self.having_all((name,))

    # --- what engines say

    def set_kv_usage(self, slot: int, usage: float | None) -> bool:
        """What the engine says of a rank, 0 to 1, or None.  Returns whether that is news."""
        old = self.columns.kv_usage[slot]
        new = np.nan if usage is None else usage
        if old == new or (np.isnan(old) and usage is None):
            return False
        self.columns.kv_usage[slot] = new
        return True

    # --- how fit they are

    def set_weight(self, slot: int, weight: float, state: str) -> bool:
        """Let a rank have this much of its share of requests from now on; 0: it is no candidate.

        Returns whether it was a candidate and is none now, or the other way round.  O(1)

        state: why it is none, in a word for those who are refused
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
        with self._lock:
            columns.weight[slot] = weight
            columns.open[slot] = opens
        return turns

    def set_weight_of(self, worker_id: int, weight: float, state: str) -> bool:
        """As `set_weight`, for all ranks of one worker; whether any of them turned."""
        slots, opens = self.slots_of(worker_id), weight > 0.0
        columns, at = self.columns, np.array(slots, np.intp)
        turns = bool((columns.open[at] != opens).any())
        if opens:
            for slot in slots:
                self._closed.pop(slot, None)
        else:
            self._closed.update(zip(slots, repeat(state), strict=False))
        self.version += turns
        with self._lock:
            columns.weight[at] = weight
            columns.open[at] = opens
        return turns

    # --- which selectors share them

    def set_outside(self, slots: list[int], outside: Mask) -> None:
        """Say of slots in which ranks stand whether other replicas are to be preferred there.

        outside: bool[len(slots)]
        """
        with self._lock:
            self.columns.outside[slots] = outside

    def check_invariants(self) -> None:
        """Recompute everything that is kept incrementally, for tests."""
        self.names.check_invariants()
        assert {row.rank: slot for slot, row in self._rows.items()} == self._slot_of
        assert set(np.flatnonzero(self.standing()).tolist()) == set(self._rows)
        assert self._rows.keys() >= self._closed.keys()
        assert np.array_equal(self.columns.open, self.standing() & (self.columns.weight > 0.0))
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
        usual = int(np.float64(self._speeds.median).view(np.int64))
        assert self.header.tolist() == [*(n for pair in pairs for n in pair), self.n_slots, usual]

    def _check_rows(self) -> None:
        for slot, row in self._rows.items():
            for name in row.worker.given.taints:
                assert self.having(name)[slot]
        for column, empty in zip(self._all, _EMPTY_ROW, strict=True):
            rest = np.delete(column, list(self._rows))
            assert np.array_equal(rest, np.full_like(rest, empty[0]), equal_nan=rest.dtype == float)


_EMPTY_ROW = Columns.of_nobody(1)
