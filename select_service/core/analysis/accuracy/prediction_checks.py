"""Checks of sampled bookings: the waiting time, and whether the index then has the prompt.

A step takes a booking from the decision ring and copies its block hashes, which the ledger keeps
during the prefill. Placements and bookings therefore pay nothing for the checks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

from indexer.hashing.block_hashing import Hashes
from indexer.index.slot_writer import SlotWriter
from select_service.core.analysis.accuracy.prediction_accuracy import PredictionAccuracy
from select_service.core.duration_histogram import DurationHistogram
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.reservation_view import ReservationView
from select_service.core.load.reservations import Reservations
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement.decision_ring import DecisionRing, Words, read_id
from select_service.core.registry.fleet.partition import Partition

STEP_S = 0.05
"""Time between two steps, s; shorter prefills are rarely sampled."""
PENDING_MAX = 64
"""Maximum number of bookings checked at the same time."""
ROWS_MAX = 8
"""Maximum number of decisions examined per step to sample one."""
MATCHES_MAX = 2
"""Maximum number of index look-ups per step."""
BLOCKS_MAX = 1024
"""Maximum number of leading prompt blocks looked up."""
GRACE_S = 1.0
"""Time after the end of a prefill for the events of its last blocks, s."""
PREFILL_S_MAX = 120.0
"""Maximum prefill time of a check, s; longer prefills were probably never reported."""

PROVED_BUCKETS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
WAIT_BUCKETS = (0.25, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 4.0)


@dataclass(slots=True)
class PredictionCheck:
    """Sampled booking.

    prompt: uint64[n], leading block hashes
    cached: blocks cached on the rank at booking
    tokens: own work and work left before it, tokens
    due_at: time of the next look-up; None during the prefill
    """

    booking: ReservationView
    partition: Partition
    writer: SlotWriter
    rank: Rank
    prompt: Hashes
    cached: int
    tokens: int
    booked_at: float
    ended_at: float = 0.0
    due_at: float | None = None


class RankAccuracyReport(NamedTuple):
    """Accuracy of a rank; None means no data."""

    rank: Rank
    trust: float | None
    wait_error: float | None


class AccuracyReport(NamedTuple):
    """Accuracy metrics.

    proved: announced share of the new blocks
    waits: observed divided by predicted waiting time
    """

    ranks: tuple[RankAccuracyReport, ...]
    pending: int
    suspects: int
    proved: DurationHistogram
    waits: DurationHistogram


class PredictionChecks:
    """Sampler and checker; used by the event loop thread only."""

    def __init__(
        self,
        ring: DecisionRing,
        reservations: Reservations,
        partitions: Mapping[PartitionKey, Partition],
    ) -> None:
        self._ring = ring
        self._reservations = reservations
        self._partitions = partitions
        self._last_number = 0
        self._pending: list[PredictionCheck] = []
        self._matches_left = 0
        self._ranks: WeakKeyDictionary[SlotWriter, PredictionAccuracy] = WeakKeyDictionary()
        """Results by index writer; a rank with a restarted index has a new writer."""
        self._proved = DurationHistogram(PROVED_BUCKETS)
        self._waits = DurationHistogram(WAIT_BUCKETS)

    def run_turn(self, now: float) -> bool:
        """Sample one booking and advance all checks. Return False: no work is left for the next
        turn.
        """
        self._matches_left = MATCHES_MAX
        self._pending = [check for check in self._pending if not self._is_over(check, now)]
        self._sample_booking()
        return False

    def accuracy_of(self, writer: SlotWriter) -> PredictionAccuracy | None:
        """Return the results of a rank; None without data."""
        return self._ranks.get(writer)

    def make_report(self, ranks_max: int) -> AccuracyReport:
        """Return the metrics. O(ranks)"""
        accuracies = list(self._ranks.values())
        return AccuracyReport(
            tuple(map(_rank_report, accuracies[:ranks_max])),
            len(self._pending),
            sum(trust.is_suspect for trust in accuracies),
            self._proved.copy(),
            self._waits.copy(),
        )

    def _sample_booking(self) -> None:
        """Sample the newest suitable booking since the last step."""
        seen, may_take = self._last_number, len(self._pending) < PENDING_MAX
        for row in islice(self._ring.iterate_rows(), ROWS_MAX):
            number = int(row[layout.NUMBER])
            if number <= self._last_number:
                break
            seen = max(seen, number)
            check = self._check_of(row) if may_take else None
            if check is not None:
                self._pending.append(check)
                break
        self._last_number = seen

    def _check_of(self, row: Words) -> PredictionCheck | None:
        length = row[layout.RESERVATION_ID]
        if not row[layout.FLAGS] & layout.IS_RESERVED or length > layout.ID_BYTES:
            return None
        booking = self._reservations.find_reservation(read_id(row, layout.RESERVATION_ID) or "")
        # Without work there is no waiting time to measure.
        if booking is None or booking.is_leaving or not booking.prefill_work:
            return None
        partition = self._partitions.get(booking.key)
        # Copied: the ledger reuses the memory when the prefill ends.
        prompt = booking.prompt_beginning(BLOCKS_MAX)
        slot = int(row[layout.ROW_WORDS + layout.SLOT_AND_VERSION]) & ((1 << layout.SLOT_BITS) - 1)
        if partition is None or not len(prompt) or slot != booking.slot:
            return None
        return PredictionCheck(
            booking,
            partition,
            partition.table.row_at(slot).writer,
            booking.rank,
            prompt,
            booking.cached_blocks,
            int(row[layout.ROW_WORDS + layout.WORK_LEFT]) + booking.prefill_work,
            booking.booked_at,
        )

    def _is_over(self, check: PredictionCheck, now: float) -> bool:
        """Advance a check; return whether the check is complete."""
        if not self._is_unchanged(check):
            return True
        if check.due_at is None and not self._has_ended(check, now):
            return now - check.booked_at > PREFILL_S_MAX
        assert check.due_at is not None
        to_come = len(check.prompt) - check.cached
        if to_come <= 0:
            return True
        if now < check.due_at or not self._matches_left:
            return False
        self._matches_left -= 1
        return self._is_proved(check, to_come, now)

    def _is_proved(self, check: PredictionCheck, to_come: int, now: float) -> bool:
        """Look up the prompt; return whether the result is final."""
        matched = check.partition.index.match(check.prompt)[check.writer.slot]
        share = min(1.0, max(0.0, (int(matched.max()) - check.cached) / to_come))
        # Events of the last blocks may still be on their way: look up once more after the grace
        # time.
        if share < 1.0 and now < check.ended_at + GRACE_S:
            check.due_at = check.ended_at + GRACE_S
            return False
        self._proved.add(share)
        self._ensure_accuracy(check).add_check(share)
        return True

    def _is_unchanged(self, check: PredictionCheck) -> bool:
        """Return whether the rank has been unchanged since the booking."""
        partition = check.partition
        if self._partitions.get(partition.key) is not partition:
            return False
        slot = partition.table.find_slot(check.rank)
        # A new writer means that the index of the rank began again, empty.
        return slot is not None and partition.table.row_at(slot).writer is check.writer

    def _has_ended(self, check: PredictionCheck, now: float) -> bool:
        """Record the end of the prefill, and its duration if reported."""
        booking = check.booking
        is_live = self._reservations.is_live(booking)
        if is_live and booking.is_prefilling:
            return False
        check.due_at = check.ended_at = now
        if is_live:
            check.ended_at = check.due_at = min(now, booking.renewed_at)
            self._enter_wait(check)
        return True

    def _enter_wait(self, check: PredictionCheck) -> None:
        seconds = check.ended_at - check.booked_at
        if seconds > 0.0:
            ratio = self._ensure_accuracy(check).add_wait(check.tokens, seconds)
            if ratio is not None:
                self._waits.add(ratio)

    def _ensure_accuracy(self, check: PredictionCheck) -> PredictionAccuracy:
        trust = self._ranks.get(check.writer)
        if trust is None:
            trust = self._ranks[check.writer] = PredictionAccuracy(check.rank)
        return trust


def _rank_report(accuracy: PredictionAccuracy) -> RankAccuracyReport:
    trust = accuracy.trust if accuracy.checks else None
    return RankAccuracyReport(accuracy.rank, trust, accuracy.wait_error if accuracy.waits else None)
