"""Conversion of decisions into log lines, in small steps after the answers.

A step reads new decisions from the ring, and the sequence hashes of their prompts from the ledger,
which holds these until the reservation ends.  Placement and booking therefore do no work for the
log.  Decisions overwritten, and reservations ended, before the next step count as missed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from indexer.hashing.block_hashing import Hashes
from select_service.core.analysis.decision_log_lines import (
    HASHES_MAX,
    LoggedDecision,
    LoggedFleet,
    LoggedRank,
    LogLine,
    blocks_of_hash,
)
from select_service.core.identity import PartitionKey
from select_service.core.load.reservation_view import ReservationView
from select_service.core.load.reservations import Reservations
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement.decision_decoder import read_float, row_policy
from select_service.core.placement.decision_ring import (
    DecisionPartition,
    DecisionRing,
    Words,
    read_id,
)
from select_service.core.registry.fleet.partition import Partition

STEP_S = 0.02
"""Time between two steps, seconds; shorter reservations are missed."""
ROWS_MAX = 32
"""Maximum number of decisions read in a step."""
LOOKS_MAX = 64
"""Reservations checked in a step, for their ends and output blocks."""
PENDING_MAX = 4096
"""Maximum number of followed reservations; beyond, the oldest lines are written without their
ends.
"""
PENDING_HASHES_MAX = 1 << 20
"""Maximum number of hashes of all followed reservations, 8 MiB."""
ANSWER_S_MAX = 3600.0
"""Maximum time to wait for the end of a reservation, seconds."""
FLEETS_MAX = 256
"""Number of partitions with a stored last logged fleet."""
BOOKED_S_MAX = 1.0
"""Maximum time from a decision to its booking, seconds.

Compiled code defers a booking when tables must grow first.
"""
ROUNDED_S = 1e-6
"""Tolerance for times rounded differently by compiled code, seconds."""
RANKS_MAX = 1024
"""Maximum number of logged ranks of a partition."""


@dataclass(slots=True)
class _FollowedReservation:
    """Line waiting for the end of its reservation.

    hashes: uint64[n]
    """

    line: LoggedDecision
    hashes: Hashes
    booking: ReservationView
    booked_at: float


class DecisionLogWriter:
    """Writer of the decision log, owned by the deciding thread."""

    interval_s = STEP_S

    def __init__(
        self,
        ring: DecisionRing,
        reservations: Reservations,
        partitions: Mapping[PartitionKey, Partition],
        offer: Callable[[LogLine], bool],
        unix_s: float,
    ) -> None:
        """Start with the next decision.

        offer: accepts a line, or returns False when full
        unix_s: Unix time when `now` is 0, seconds
        """
        self.missed = 0
        """Number of decisions lost before a step reached them."""
        self._ring, self._reservations, self._partitions = ring, reservations, partitions
        self._offer, self._unix_s = offer, unix_s
        self._seen = ring.newest_number
        self._pending: deque[_FollowedReservation] = deque()
        self._hashes = 0
        self._fleets: dict[PartitionKey, tuple[int, LoggedFleet]] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def write_step(self, now: float) -> bool:
        """Process pending lines and new decisions.  Return whether more decisions remain."""
        # The deque rotates, so every pending line gets its turn within some steps.
        for _ in range(min(LOOKS_MAX, len(self._pending))):
            followed = self._pending.popleft()
            if self._has_ended(followed, now):
                self._offer_line(followed)
            else:
                self._pending.append(followed)
        rows = self._ring.rows_after(self._seen, ROWS_MAX)
        for row in rows:
            number = int(row[layout.NUMBER])
            # Numbers are consecutive, so a gap counts the overwritten decisions.
            self.missed += number - self._seen - 1
            self._seen = number
            self._read_row(row)
        return len(rows) == ROWS_MAX

    def drain_lines(self, now: float) -> Iterator[LogLine]:
        """Iterate over the remaining lines, without ends, once no more decisions follow."""
        while self.write_step(now):
            pass
        while self._pending:
            followed = self._pending.popleft()
            self._has_ended(followed, now)
            yield self._finish_line(followed)

    # Reading of decisions

    def _read_row(self, row: Words) -> None:
        decided = self._ring.find_partition(int(row[layout.PARTITION]))
        if decided is None:
            self.missed += 1
            return
        self._log_fleet(decided.key)
        line = self._line_of(row, decided)
        if not line.reserved:
            self._offer(line)
            return
        booking = self._reservations.find_reservation(read_id(row, layout.RESERVATION_ID) or "")
        if booking is None or not _made_booking(booking, row):
            self.missed += 1
            return
        every = line.hash_blocks
        # A sequence hash includes all blocks before, so every n-th hash is enough.
        hashes = booking.first_hashes(HASHES_MAX * every)[every - 1 :: every].copy()
        self._follow_reservation(_FollowedReservation(line, hashes, booking, booking.booked_at))

    def _follow_reservation(self, followed: _FollowedReservation) -> None:
        self._hashes += len(followed.hashes)
        self._pending.append(followed)
        while len(self._pending) > PENDING_MAX or self._hashes > PENDING_HASHES_MAX:
            self._offer_line(self._pending.popleft())

    def _line_of(self, row: Words, decided: DecisionPartition) -> LoggedDecision:
        packed = int(row[layout.ROW_WORDS + layout.SLOT_AND_VERSION])
        slot, version = packed & ((1 << layout.SLOT_BITS) - 1), packed >> layout.SLOT_BITS
        rank = decided.table.rank_at(slot, version)
        waited = int(row[layout.POLICY_CLASS]) != layout.NO_VALUE
        return LoggedDecision(
            decision=int(row[layout.NUMBER]),
            at=round(self._unix_s + read_float(row, layout.DECIDED_AT), 6),
            model_name=decided.key.model_name,
            tenant_id=decided.key.tenant_id,
            policy=row_policy(row).name,
            isl_tokens=int(row[layout.ISL_TOKENS]),
            block_size=decided.block_size,
            hash_blocks=blocks_of_hash(decided.block_size),
            hashes="",
            worker_id=None if rank is None else rank.worker_id,
            dp_rank=None if rank is None else rank.dp_rank,
            candidates=int(row[layout.N_ELIGIBLE]),
            waited_s=round(read_float(row, layout.WAITED_S), 6) if waited else 0.0,
            reserved=bool(row[layout.FLAGS] & layout.IS_RESERVED),
        )

    # Ends of reservations

    def _has_ended(self, followed: _FollowedReservation, now: float) -> bool:
        """Update the output tokens of a line.  Return whether the line is complete."""
        booking, line = followed.booking, followed.line
        if (
            booking.booked_at == followed.booked_at
        ):  # otherwise another reservation has taken over the row
            line.output_tokens = booking.output_blocks * line.block_size or None
        is_live = self._reservations.is_live(booking)
        return not is_live or now - followed.booked_at > ANSWER_S_MAX

    def _offer_line(self, followed: _FollowedReservation) -> None:
        self._offer(self._finish_line(followed))

    def _finish_line(self, followed: _FollowedReservation) -> LoggedDecision:
        self._hashes -= len(followed.hashes)
        followed.line.hashes = followed.hashes.astype(">u8").tobytes().hex()
        return followed.line

    # Fleets

    def _log_fleet(self, key: PartitionKey) -> None:
        """Log the fleet of a partition with a decision, if changed since last logged."""
        partition = self._partitions.get(key)
        if partition is None:
            return
        version, logged_fleet = self._fleets.get(key, (None, None))
        if version == partition.table.version:
            return
        fleet = _fleet_of(partition)
        # A rejected fleet line is not remembered and comes again with the next decision.
        if fleet != logged_fleet and not self._offer(fleet):
            return
        if key not in self._fleets and len(self._fleets) >= FLEETS_MAX:
            # Forgotten fleets are only logged once more; clients may invent partitions without end.
            self._fleets.clear()
        self._fleets[key] = partition.table.version, fleet

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        assert self._hashes == sum(len(followed.hashes) for followed in self._pending)
        assert len(self._pending) <= PENDING_MAX
        assert self._hashes <= PENDING_HASHES_MAX


def _made_booking(booking: ReservationView, row: Words) -> bool:
    """Return whether this decision made the booking, and not another decision with the same id."""
    late_s = booking.booked_at - read_float(row, layout.DECIDED_AT)
    # The same id may have been booked again by a later request with an equal prompt.
    is_then = -ROUNDED_S <= late_s <= BOOKED_S_MAX
    return is_then and booking.isl_tokens == int(row[layout.ISL_TOKENS])


def _fleet_of(partition: Partition) -> LoggedFleet:
    """Return the fleet of a partition.  O(ranks)"""
    key, table = partition.key, partition.table
    ranks = []
    for rank in table.sorted_ranks()[:RANKS_MAX]:
        slot = table.find_slot(rank)
        assert slot is not None
        given = table.row_at(slot).worker.registration
        ranks.append(LoggedRank(*rank, given.total_kv_blocks, given.max_num_batched_tokens))
    return LoggedFleet(key.model_name, key.tenant_id, partition.block_size, ranks)


def parse_hashes(hashes: str) -> Hashes:
    """Return the hashes of a line as uint64[n].  Raises ValueError."""
    return np.frombuffer(bytes.fromhex(hashes), ">u8").astype(np.uint64)
