"""Decisions become lines of a log, a few at a time and after their answers.

A step takes new decisions out of the ring and the sequence hashes of their prompts out of the
ledger, which has them until the reservation ends.  So nobody who decides or books does anything for
it, and what ends, or is overwritten, before the next step is counted as missed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from indexer.hashing.hashes import Hashes
from select_service.core.decide import decision_layout as layout
from select_service.core.decide.decision_ring import Decided, DecisionRing, Words, id_in
from select_service.core.decide.recorded import number_in, policy_in
from select_service.core.decision_lines import (
    HASHES_MAX,
    LoggedDecision,
    LoggedFleet,
    LoggedRank,
    LogLine,
    blocks_of_hash,
)
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey
from select_service.core.load.held_booking import Booking
from select_service.core.load.reservations import Reservations

STEP_S = 0.02
"""Between two steps; reservations that live shorter are missed."""
ROWS_MAX = 32
"""Decisions that one step takes."""
LOOKS_MAX = 64
"""Reservations that one step looks at, for their ends and the blocks of their answers."""
PENDING_MAX = 4096
"""Decisions whose reservations are followed; of more the oldest are written without their ends."""
PENDING_HASHES_MAX = 1 << 20
"""Of all of them, 8 MiB."""
ANSWER_S_MAX = 3600.0
"""A reservation that lives longer is waited for no more."""
FLEETS_MAX = 256
"""Partitions whose ranks are remembered as they were told."""
BOOKED_S_MAX = 1.0
"""From a decision to its booking: what compiled code has decided is booked later where tables must
grow for it."""
ROUNDED_S = 1e-6
"""Compiled code rounds the one time otherwise than the other."""
RANKS_MAX = 1024
"""Of a partition, its first ones; the log has no more."""


@dataclass(slots=True)
class _Followed:
    """A line that waits for the end of its reservation.  hashes: uint64[n]"""

    line: LoggedDecision
    hashes: Hashes
    booking: Booking
    booked_at: float


class DecisionLog:
    """Belongs to the thread that decides."""

    interval_s = STEP_S

    def __init__(
        self,
        ring: DecisionRing,
        held: Reservations,
        partitions: Mapping[PartitionKey, Partition],
        offer: Callable[[LogLine], bool],
        unix_s: float,
    ) -> None:
        """offer: takes a line, or says that it cannot;  unix_s: Unix seconds when `now` is 0"""
        self.missed = 0
        """Decisions that were gone before a step came to them."""
        self._ring, self._held, self._partitions = ring, held, partitions
        self._offer, self._unix_s = offer, unix_s
        self._seen = ring.newest
        self._pending: deque[_Followed] = deque()
        self._hashes = 0
        self._fleets: dict[PartitionKey, tuple[int, LoggedFleet]] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def step(self, now: float) -> bool:
        """Returns whether there are more decisions to take."""
        for _ in range(min(LOOKS_MAX, len(self._pending))):
            followed = self._pending.popleft()
            if self._has_ended(followed, now):
                self._write(followed)
            else:
                self._pending.append(followed)
        rows = self._ring.after(self._seen, ROWS_MAX)
        for row in rows:
            number = int(row[layout.NUMBER])
            self.missed += number - self._seen - 1
            self._seen = number
            self._take(row)
        return len(rows) == ROWS_MAX

    def rest(self, now: float) -> Iterator[LogLine]:
        """Nothing more will be decided: the lines that wait for ends, without them."""
        while self.step(now):
            pass
        while self._pending:
            followed = self._pending.popleft()
            self._has_ended(followed, now)
            yield self._finished(followed)

    # --- taking

    def _take(self, row: Words) -> None:
        decided = self._ring.partition(int(row[layout.PARTITION]))
        if decided is None:
            self.missed += 1
            return
        self._tell_fleet(decided.key)
        line = self._line_of(row, decided)
        if not line.reserved:
            self._offer(line)
            return
        booking = self._held.find(id_in(row, layout.RESERVATION_ID) or "")
        if booking is None or not _is_of(booking, row):
            self.missed += 1
            return
        every = line.hash_blocks
        hashes = booking.first_hashes(HASHES_MAX * every)[every - 1 :: every].copy()
        self._follow(_Followed(line, hashes, booking, booking.booked_at))

    def _follow(self, followed: _Followed) -> None:
        self._hashes += len(followed.hashes)
        self._pending.append(followed)
        while len(self._pending) > PENDING_MAX or self._hashes > PENDING_HASHES_MAX:
            self._write(self._pending.popleft())

    def _line_of(self, row: Words, decided: Decided) -> LoggedDecision:
        who = int(row[layout.ROW_WORDS + layout.WHO])
        slot, version = who & ((1 << layout.SLOT_BITS) - 1), who >> layout.SLOT_BITS
        rank = decided.table.rank_at(slot, version)
        waited = int(row[layout.POLICY_CLASS]) != layout.NONE
        return LoggedDecision(
            decision=int(row[layout.NUMBER]),
            at=round(self._unix_s + number_in(row, layout.DECIDED_AT), 6),
            model_name=decided.key.model_name,
            tenant_id=decided.key.tenant_id,
            policy=policy_in(row).name,
            isl_tokens=int(row[layout.ISL_TOKENS]),
            block_size=decided.block_size,
            hash_blocks=blocks_of_hash(decided.block_size),
            hashes="",
            worker_id=None if rank is None else rank.worker_id,
            dp_rank=None if rank is None else rank.dp_rank,
            candidates=int(row[layout.N_ELIGIBLE]),
            waited_s=round(number_in(row, layout.WAITED_S), 6) if waited else 0.0,
            reserved=bool(row[layout.FLAGS] & layout.RESERVED),
        )

    # --- ends

    def _has_ended(self, followed: _Followed, now: float) -> bool:
        """Note how long the answer is by now.  Is there no more to come?"""
        booking, line = followed.booking, followed.line
        if booking.booked_at == followed.booked_at:  # else the row is another reservation's by now
            line.output_tokens = booking.output_blocks * line.block_size or None
        is_live = self._held.is_live(booking)
        return not is_live or now - followed.booked_at > ANSWER_S_MAX

    def _write(self, followed: _Followed) -> None:
        self._offer(self._finished(followed))

    def _finished(self, followed: _Followed) -> LoggedDecision:
        self._hashes -= len(followed.hashes)
        followed.line.hashes = followed.hashes.astype(">u8").tobytes().hex()
        return followed.line

    # --- fleets

    def _tell_fleet(self, key: PartitionKey) -> None:
        """Of a partition with a decision, when its ranks have changed since they were told."""
        partition = self._partitions.get(key)
        if partition is None:
            return
        version, told = self._fleets.get(key, (None, None))
        if version == partition.table.version:
            return
        fleet = _fleet_of(partition)
        if fleet != told and not self._offer(fleet):
            return
        if key not in self._fleets and len(self._fleets) >= FLEETS_MAX:
            self._fleets.clear()
        self._fleets[key] = partition.table.version, fleet

    def check_invariants(self) -> None:
        """For tests."""
        assert self._hashes == sum(len(followed.hashes) for followed in self._pending)
        assert len(self._pending) <= PENDING_MAX
        assert self._hashes <= PENDING_HASHES_MAX


def _is_of(booking: Booking, row: Words) -> bool:
    """Was it booked by this decision, and not under the same id by another one?"""
    late_s = booking.booked_at - number_in(row, layout.DECIDED_AT)
    is_then = -ROUNDED_S <= late_s <= BOOKED_S_MAX
    return is_then and booking.isl_tokens == int(row[layout.ISL_TOKENS])


def _fleet_of(partition: Partition) -> LoggedFleet:
    """O(ranks)"""
    key, table = partition.key, partition.table
    ranks = []
    for rank in table.ranks()[:RANKS_MAX]:
        slot = table.find(rank)
        assert slot is not None
        given = table.row(slot).worker.given
        ranks.append(LoggedRank(*rank, given.total_kv_blocks, given.max_num_batched_tokens))
    return LoggedFleet(key.model_name, key.tenant_id, partition.block_size, ranks)


def as_numbers(hashes: str) -> Hashes:
    """uint64[n] of the text in a line.  Raises ValueError."""
    return np.frombuffer(bytes.fromhex(hashes), ">u8").astype(np.uint64)
