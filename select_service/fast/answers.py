"""What answers say of the ranks of one partition, as text that only needs numbers."""

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from select_service.bodies.selection import Overlap
from select_service.core.arrays import name_array
from select_service.core.decisions import selection_of
from select_service.core.fleet.partition import Partition
from select_service.fast import serve_layout as layout
from select_service.fast.request_layout import NONE

_FIRST_NUMBER = b'"overlap":{"longest_matched":'
_RANK_END = b',"block_size":'
_encode = msgspec.json.Encoder().encode


class _Members(NamedTuple):
    """Slots of the ranks of a worker, by rank, as they were at a version of the rank table."""

    version: int
    slots: npt.NDArray[np.int64]
    first_dp_rank: int


class Answers:
    """A text for each slot that was ever chosen, made when it is needed first.

    The kernel sees by the version of the slot in the rank table whether a text is old, so that a
    change of a worker costs nothing here.
    """

    def __init__(self, partition: Partition, row: npt.NDArray[np.int64]) -> None:
        """row: of the partition (serve_layout); what it says of the texts is kept up to date"""
        self._partition = partition
        self._row = row
        self._members: dict[int, _Members] = {}
        self._records = np.zeros((0, layout.RECORD_LENGTH), np.int64)
        self._texts = np.zeros((0, layout.TEXT_BYTES), np.uint8)
        self._ensure(0)

    def can_tell(self, slot: int) -> bool:
        """Is there a text of a slot in which a rank stands?  It is made anew if it is old."""
        version = self._partition.table.columns.version[slot]
        if slot >= len(self._records) or self._records[slot, layout.VERSION_TOLD] != version:
            self.tell(slot)
        return bool(self._records[slot, layout.TEXT_LENGTH] != NONE)

    def tell(self, slot: int) -> None:
        """Make the text of a slot in which a rank stands."""
        if slot >= len(self._texts):
            self._ensure(slot + 1)
        version = int(self._partition.table.columns.version[slot])
        text, record = self._text(slot), self._records[slot]
        begin = text.index(_FIRST_NUMBER) + len(_FIRST_NUMBER)
        members = self._members_of(slot, version)
        fits = begin <= layout.TEXT_BYTES
        if fits:
            self._texts[slot, :begin] = np.frombuffer(text, np.uint8)[:begin]
        name_array(record, layout.MEMBERS, members.slots)
        record[layout.FIRST_DP_RANK] = members.first_dp_rank
        rank = self._partition.table.row(slot).rank
        record[layout.WORKER_ID : layout.DP_RANK + 1] = np.array(rank, np.uint64).view(np.int64)
        record[layout.TEXT_LENGTH] = begin if fits else NONE
        record[layout.RANK_LENGTH] = text.rindex(_RANK_END, 0, begin)
        record[layout.VERSION_TOLD] = version

    def _ensure(self, n_slots: int) -> None:
        """Have room for so many, and twice as many as before; what was told stays.

        Raises MemoryError, and has changed nothing.
        """
        known = len(self._texts)
        more = max(n_slots, 2 * known) - known
        texts = np.zeros((more, layout.TEXT_BYTES), np.uint8)
        records = np.zeros((more, layout.RECORD_LENGTH), np.int64)
        texts = np.concatenate([self._texts, texts])
        records = np.concatenate([self._records, records])
        self._texts, self._records = texts, records
        name_array(self._row, layout.RECORDS, self._records)
        name_array(self._row, layout.TEXTS, self._texts)

    def _text(self, slot: int) -> bytes:
        """An answer without ids, from its first member on."""
        nothing = Overlap(longest_matched=0, gpu=0, dp={}, cpu=0, disk=0)
        return _encode(selection_of(self._partition, slot, nothing, 0))[1:]

    def _members_of(self, slot: int, version: int) -> _Members:
        """All ranks of a worker are of one version and share one array."""
        table = self._partition.table
        number = int(table.columns.worker_number[slot])
        known = self._members.get(number)
        if known is None or known.version != version:
            slots = table.slots_of(table.row(slot).rank.worker_id)
            first = table.row(slots[0]).rank.dp_rank
            assert table.row(slots[-1]).rank.dp_rank == first + len(slots) - 1
            known = self._members[number] = _Members(version, np.array(slots, np.int64), first)
        return known
