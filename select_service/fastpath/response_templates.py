"""Prebuilt response texts for the ranks of a partition, complete except for numbers."""

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from select_service.core.array_types import store_pointer
from select_service.core.registry.fleet.partition import Partition
from select_service.core.selection_answers import (
    make_selection,
)
from select_service.core.sessions.session_router import SessionRouter
from select_service.fastpath import serve_layout as layout
from select_service.fastpath.parsing.request_layout import NONE
from select_service.schemas.selection import Overlap

_FIRST_NUMBER = b'"overlap":{"longest_matched":'
_RANK_END = b',"block_size":'
_encode = msgspec.json.Encoder().encode


class _WorkerSlots(NamedTuple):
    """Slots of a worker's ranks, by rank, at a version of the rank table."""

    version: int
    slots: npt.NDArray[np.int64]
    first_dp_rank: int


class ResponseTemplates:
    """Response texts by slot, built on first use.

    Kernels detect outdated texts by the slot's version in the rank table, so that changes of
    workers cost nothing here.
    """

    def __init__(
        self, partition: Partition, row: npt.NDArray[np.int64], sessions: SessionRouter
    ) -> None:
        """row: row of the partition (serve_layout), which always points to the current texts"""
        self._sessions = sessions
        self._partition = partition
        self._row = row
        self._members: dict[int, _WorkerSlots] = {}
        self._records = np.zeros((0, layout.RECORD_LENGTH), np.int64)
        self._texts = np.zeros((0, layout.TEXT_BYTES), np.uint8)
        self._ensure_slots(0)

    def render_template(self, slot: int) -> None:
        """Build the text of a slot with a rank."""
        if slot >= len(self._texts):
            self._ensure_slots(slot + 1)
        version = int(self._partition.table.columns.version[slot])
        text, record = self._encode_text(slot), self._records[slot]
        begin = text.index(_FIRST_NUMBER) + len(_FIRST_NUMBER)
        members = self._members_of(slot, version)
        fits = begin <= layout.TEXT_BYTES
        if fits:
            self._texts[slot, :begin] = np.frombuffer(text, np.uint8)[:begin]
        store_pointer(record, layout.MEMBERS, members.slots)
        record[layout.FIRST_DP_RANK] = members.first_dp_rank
        rank = self._partition.table.row_at(slot).rank
        record[layout.WORKER_ID : layout.DP_RANK + 1] = np.array(rank, np.uint64).view(np.int64)
        table = self._partition.table
        record[layout.HAS_UNSEEN_CACHE] = self._sessions.has_unseen_cache(table, slot)
        record[layout.TEXT_LENGTH] = begin if fits else NONE
        record[layout.RANK_LENGTH] = text.rindex(_RANK_END, 0, begin)
        record[layout.TEXT_VERSION] = version

    def _ensure_slots(self, n_slots: int) -> None:
        """Make room for n_slots, at least doubling; existing texts are kept.

        Raises MemoryError without any change.
        """
        n_texts = len(self._texts)
        more = max(n_slots, 2 * n_texts) - n_texts
        texts = np.zeros((more, layout.TEXT_BYTES), np.uint8)
        records = np.zeros((more, layout.RECORD_LENGTH), np.int64)
        texts = np.concatenate([self._texts, texts])
        records = np.concatenate([self._records, records])
        self._texts, self._records = texts, records
        store_pointer(self._row, layout.RECORDS, self._records)
        store_pointer(self._row, layout.TEXTS, self._texts)

    def _encode_text(self, slot: int) -> bytes:
        """Return a response without ids, from its first member on."""
        nothing = Overlap(longest_matched=0, gpu=0, dp={}, cpu=0, disk=0)
        return _encode(make_selection(self._partition, slot, nothing, 0))[1:]

    def _members_of(self, slot: int, version: int) -> _WorkerSlots:
        """Return the members; all ranks of a worker have the same version and share one array."""
        table = self._partition.table
        number = int(table.columns.worker_number[slot])
        worker_slots = self._members.get(number)
        if worker_slots is None or worker_slots.version != version:
            slots = table.slots_of(table.row_at(slot).rank.worker_id)
            first = table.row_at(slots[0]).rank.dp_rank
            assert table.row_at(slots[-1]).rank.dp_rank == first + len(slots) - 1
            worker_slots = self._members[number] = _WorkerSlots(
                version, np.array(slots, np.int64), first
            )
        return worker_slots
