"""Ring of the newest decisions of a thread, as numbers."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import store_pointer
from select_service.core.identity import PartitionKey
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement.decision_ring_kernels import (
    HAS_RESERVATION_ID,
    HAS_SELECTION_ID,
    WAS_RESERVED,
    commit_decision,
)
from select_service.core.workers.rank_table import RankTable

WORDS_PER_DECISION = 256
"""Average length of a row, in words.  With longer rows the ring has room for fewer decisions."""
WORDS_MIN = 4 * layout.ROW_WORDS_MAX
"""Minimum ring size, in words.  One row is for the next placement and one may be skipped at the end
of the memory, so the newest decision is always readable.
"""
EMPTY_PARTITIONS_MAX = 64
"""Number of partitions without ranks that keep readable decisions."""

Words = npt.NDArray[np.int64]


class DecisionPartition(NamedTuple):
    """Partition data needed to show decisions: key, block size, and a rank table with past rows."""

    key: PartitionKey
    block_size: int
    table: RankTable


class QueueWait(NamedTuple):
    """Queueing of a request before the decision.

    policy_class: policy class of the queue
    position: position in the queue, from 1
    """

    policy_class: str
    position: int
    seconds: float


class DecisionRing:
    """Ring written by kernels through `header` (see the layout), read here by the same thread."""

    def __init__(self, decisions_max: int, credit_fades: bool = True) -> None:
        """Allocate the ring.

        decisions_max: capacity, from 1; a decision takes 2 KiB on average
        credit_fades: whether costs of a policy may depend on the least prefill tokens of all ranks
        """
        n_words = max(decisions_max * WORDS_PER_DECISION, WORDS_MIN)
        self._words: Words = np.zeros(n_words, np.int64)
        self._begins: Words = np.zeros(decisions_max, np.int64)
        self.header = np.zeros(layout.RING_LENGTH, np.int64)
        store_pointer(self.header, layout.WORDS, self._words)
        store_pointer(self.header, layout.BYTES, self._words.view(np.uint8))
        store_pointer(self.header, layout.BEGINS, self._begins)
        self._minima = np.zeros(layout.LANES, np.float64)
        store_pointer(self.header, layout.MINIMA, self._minima)
        self.header[layout.CREDIT_FADES] = credit_fades
        # A memoryview reads single numbers faster than an array does.
        self._numbers = self.header.data
        self._partitions: dict[int, DecisionPartition] = {}
        self._n_partitions = 0
        self._classes: list[str] = []

    def add_partition(self, partition: DecisionPartition) -> int:
        """Register a partition; return its number in rows.

        From now on the partition's rank table keeps the rows of ranks that leave.
        """
        # A partition with ranks is never dropped; rows of empty partitions stay readable for a
        # while.
        gone = [number for number, each in self._partitions.items() if not len(each.table)]
        for number in gone[: max(0, len(gone) - EMPTY_PARTITIONS_MAX)]:
            del self._partitions[number]
        partition.table.enable_history()
        self._n_partitions += 1
        self._partitions[self._n_partitions] = partition
        return self._n_partitions

    def find_partition(self, number: int) -> DecisionPartition | None:
        """Return the partition of a number.  None means the ring has dropped the partition."""
        return self._partitions.get(number)

    def policy_class_name(self, number: int) -> str:
        return self._classes[number]

    def commit_decision(
        self,
        now: float,
        reserved: bool,
        selection_id: str | None,
        reservation_id: str | None,
        queue_wait: QueueWait | None = None,
    ) -> None:
        """Turn the last placement into a decision."""
        flags = WAS_RESERVED if reserved else 0
        if selection_id is not None:
            flags |= HAS_SELECTION_ID
        if reservation_id is not None:
            flags |= HAS_RESERVATION_ID
        texts = _text_array(selection_id), _text_array(reservation_id)
        at = commit_decision(self.header, now, flags, *texts)
        if queue_wait is not None and at != layout.NO_VALUE:
            if queue_wait.policy_class not in self._classes:
                self._classes.append(queue_wait.policy_class)
            self._words[at + layout.WAITED_S] = np.float64(queue_wait.seconds).view(np.int64)
            self._words[at + layout.POLICY_CLASS] = self._classes.index(queue_wait.policy_class)
            self._words[at + layout.QUEUE_POSITION] = queue_wait.position

    def __len__(self) -> int:
        """Return the number of readable decisions."""
        return len(self._readable_positions())

    def iterate_rows(self) -> Iterator[Words]:
        """Iterate over the decisions of this moment, newest first; each row is read on demand.

        Rows overwritten in the meantime are left out.
        """
        for number in range(self.newest_number, 0, -1):
            row = self.find_by_number(number)
            if row is None:
                break
            yield row

    @property
    def newest_number(self) -> int:
        """Number of the newest decision, counted from 1.  0 means the ring is empty."""
        return int(self._numbers[layout.N_DECISIONS])

    def find_by_number(self, number: int) -> Words | None:
        """Return the row of a decision number.  None means the row has been overwritten."""
        assert 0 < number <= self.newest_number
        # BEGINS is a ring of its own and may be shorter than the rows that are still whole.
        if self.newest_number - number >= len(self._begins):
            return None
        place = int(self._begins[(number - 1) % len(self._begins)])
        return self._copy_row(place) if place >= self._whole_from() else None

    def rows_after(self, number: int, at_most: int) -> list[Words]:
        """Return up to `at_most` readable decisions after a number, oldest first."""
        newest = self.newest_number
        if newest <= number:
            return []
        first = max(number, newest - len(self._begins)) + 1
        places = self._begins[(np.arange(first, newest + 1) - 1) % len(self._begins)]
        return [self._copy_row(int(p)) for p in places[places >= self._whole_from()][:at_most]]

    def find_all_by_id(self, text: str) -> Iterator[Words]:
        """Iterate over all decisions with this selection or reservation id, newest first."""
        id_words = _id_words(text)
        places = self._readable_positions()
        if not len(places):
            return
        at = places[:, np.newaxis] % len(self._words) + np.arange(len(id_words))
        found = np.zeros(len(places), np.bool_)
        for begin in (layout.SELECTION_ID, layout.RESERVATION_ID):
            found |= (self._words[at + begin] == id_words).all(axis=1)
        for place in sorted(places[found].tolist(), reverse=True):
            yield self._copy_row(place)

    def draft_row(self) -> Words:
        """Return the row of the last placement, which must not be kept yet."""
        assert self._numbers[layout.DRAFT_WORDS]
        return self._copy_row(self._draft_position())

    def _copy_row(self, place: int) -> Words:
        """Return a copy of a row, with the words behind the row."""
        at = place % len(self._words)
        return self._words[at : at + layout.ROW_WORDS_MAX].copy()

    def _draft_position(self) -> int:
        """Return the position of the next row, as the kernel `draft_position` computes it."""
        head, n_words = self._numbers[layout.NEXT_POSITION], len(self._words)
        at = head % n_words
        place: int = head if at + layout.ROW_WORDS_MAX <= n_words else head + n_words - at
        return place

    def _whole_from(self) -> int:
        """Return the position from which rows are whole, whatever is placed next."""
        return max(0, self._draft_position() + layout.ROW_WORDS_MAX - len(self._words))

    def _readable_positions(self) -> Words:
        """Return the positions of all readable rows, in no order."""
        kept = min(self._numbers[layout.N_DECISIONS], len(self._begins))
        places = self._begins[:kept]
        whole: Words = places[places >= self._whole_from()]
        return whole

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        rows = list(self.iterate_rows())
        newest = self._numbers[layout.N_DECISIONS]
        numbers = [int(row[layout.NUMBER]) for row in rows]
        assert numbers == list(range(newest, newest - len(rows), -1))
        assert len(rows) == len(self)


def _text_array(text: str | None) -> npt.NDArray[np.uint8]:
    return np.frombuffer(_text_bytes(text), np.uint8) if text else _NO_TEXT


_NO_TEXT: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)


def _text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _id_words(text: str) -> Words:
    """Return an id in the row format, int64[1 + ID_WORDS]."""
    whole = _text_bytes(text)
    kept = whole
    if len(whole) > layout.ID_BYTES:
        h = 0xCBF29CE484222325
        for byte in whole:
            h = (h ^ byte) * 0x100000001B3 % 2**64
        kept = whole[: layout.ID_BYTES_KEPT] + h.to_bytes(8, "little")
    words = np.frombuffer(kept.ljust(layout.ID_BYTES, b"\0"), np.int64)
    return np.concatenate([[np.int64(len(whole))], words])


def read_id(row: Words, begin: int) -> str | None:
    """Return the id at a word of a row; a long id is cut and ends with dots."""
    length = int(row[begin])
    if length == layout.NO_VALUE:
        return None
    text = row[begin + 1 : begin + 1 + layout.ID_WORDS].tobytes()
    if length <= layout.ID_BYTES:
        return text[:length].decode("utf-8", "replace")
    return text[: layout.ID_BYTES_KEPT].decode("utf-8", "ignore") + "..."
