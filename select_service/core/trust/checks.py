"""A few bookings are followed: how long they waited, and whether the index then has their prompt.

A step takes a booking out of the ring of decisions and copies its block hashes, which the ledger
has as long as the prefill goes on.  So nobody who decides or books does anything for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple
from weakref import WeakKeyDictionary

from indexer.hashing.hashes import Hashes
from indexer.index.slot_writer import SlotWriter
from select_service.core.decide import decision_layout as layout
from select_service.core.decide.decision_ring import DecisionRing, Words, id_in
from select_service.core.fleet.partition import Partition
from select_service.core.histogram import Histogram
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.held_booking import Booking
from select_service.core.load.reservations import Reservations
from select_service.core.trust.rank_trust import RankTrust

STEP_S = 0.05
"""Between two steps; prefills that take less are seldom seen."""
PENDING_MAX = 64
"""Bookings that are followed at once."""
ROWS_MAX = 8
"""Decisions that one step looks at, to take one of them."""
MATCHES_MAX = 2
"""Prompts that one step looks for in the index."""
BLOCKS_MAX = 1024
"""Of a prompt, its first ones; what lies behind is not looked for."""
GRACE_S = 1.0
"""After the end of a prefill, for the events of its last blocks."""
PREFILL_S_MAX = 120.0
"""A prefill that takes longer was probably never reported; it is not followed any more."""

PROVED_BUCKETS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
WAIT_BUCKETS = (0.25, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 4.0)


@dataclass(slots=True)
class Check:
    """A booking that is followed.

    prompt: uint64[n], the first block hashes;  cached: blocks that the rank had when it was booked
    tokens: own work, and what was left to do before it
    due_at: when the prompt is looked for next, None: the prefill goes on
    """

    booking: Booking
    partition: Partition
    writer: SlotWriter
    rank: Rank
    prompt: Hashes
    cached: int
    tokens: int
    booked_at: float
    ended_at: float = 0.0
    due_at: float | None = None


class RankTrustReport(NamedTuple):
    """None: nothing is known yet."""

    rank: Rank
    trust: float | None
    wait_error: float | None


class TrustReport(NamedTuple):
    """What metrics show.

    proved: shares of the new blocks that were announced;  waits: observed over believed ones
    """

    ranks: tuple[RankTrustReport, ...]
    pending: int
    suspects: int
    proved: Histogram
    waits: Histogram


class Checks:
    """Belongs to the thread that decides."""

    def __init__(
        self,
        ring: DecisionRing,
        held: Reservations,
        partitions: Mapping[PartitionKey, Partition],
    ) -> None:
        self._ring = ring
        self._held = held
        self._partitions = partitions
        self._seen = 0
        self._pending: list[Check] = []
        self._matches_left = 0
        self._ranks: WeakKeyDictionary[SlotWriter, RankTrust] = WeakKeyDictionary()
        """A rank whose index begins anew has another writer."""
        self._proved = Histogram(PROVED_BUCKETS)
        self._waits = Histogram(WAIT_BUCKETS)

    def step(self, now: float) -> bool:
        """Take one more booking, look at all; never leaves anything for the next turn."""
        self._matches_left = MATCHES_MAX
        self._pending = [check for check in self._pending if not self._is_over(check, now)]
        self._take()
        return False

    # --- reading

    def of_rank(self, writer: SlotWriter) -> RankTrust | None:
        """None: nothing is known."""
        return self._ranks.get(writer)

    def report(self, ranks_max: int) -> TrustReport:
        """O(ranks)"""
        known = list(self._ranks.values())
        return TrustReport(
            tuple(map(_reported, known[:ranks_max])),
            len(self._pending),
            sum(trust.is_suspect for trust in known),
            self._proved.copy(),
            self._waits.copy(),
        )

    # --- taking

    def _take(self) -> None:
        """Follow the newest booking since the last step that can be followed."""
        seen, may_take = self._seen, len(self._pending) < PENDING_MAX
        for row in islice(self._ring.rows(), ROWS_MAX):
            number = int(row[layout.NUMBER])
            if number <= self._seen:
                break
            seen = max(seen, number)
            check = self._check_of(row) if may_take else None
            if check is not None:
                self._pending.append(check)
                break
        self._seen = seen

    def _check_of(self, row: Words) -> Check | None:
        length = row[layout.RESERVATION_ID]
        if not row[layout.FLAGS] & layout.RESERVED or length > layout.ID_BYTES:
            return None
        booking = self._held.find(id_in(row, layout.RESERVATION_ID) or "")
        if booking is None or booking.is_leaving or not booking.work:
            return None
        partition = self._partitions.get(booking.key)
        prompt = booking.first_of_prompt(BLOCKS_MAX)
        slot = int(row[layout.ROW_WORDS + layout.WHO]) & ((1 << layout.SLOT_BITS) - 1)
        if partition is None or not len(prompt) or slot != booking.slot:
            return None
        return Check(
            booking,
            partition,
            partition.table.row(slot).writer,
            booking.rank,
            prompt,
            booking.cached_blocks,
            int(row[layout.ROW_WORDS + layout.LEFT]) + booking.work,
            booking.booked_at,
        )

    # --- looking

    def _is_over(self, check: Check, now: float) -> bool:
        """Look at it.  Is there nothing more to see?"""
        if not self._stands(check):
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

    def _is_proved(self, check: Check, to_come: int, now: float) -> bool:
        """Look for the prompt.  Is that the last word, for good or ill?"""
        matched = check.partition.index.match(check.prompt)[check.writer.slot]
        share = min(1.0, max(0.0, (int(matched.max()) - check.cached) / to_come))
        if share < 1.0 and now < check.ended_at + GRACE_S:
            check.due_at = check.ended_at + GRACE_S
            return False
        self._proved.add(share)
        self._trust_of(check).proved(share)
        return True

    def _stands(self, check: Check) -> bool:
        """Is the rank what it was when the prompt was booked?"""
        partition = check.partition
        if self._partitions.get(partition.key) is not partition:
            return False
        slot = partition.table.find(check.rank)
        return slot is not None and partition.table.row(slot).writer is check.writer

    def _has_ended(self, check: Check, now: float) -> bool:
        """Note the end of the prefill, and how long it took if somebody said so."""
        booking = check.booking
        is_live = self._held.is_live(booking)
        if is_live and booking.prefilling:
            return False
        check.due_at = check.ended_at = now
        if is_live:
            check.ended_at = check.due_at = min(now, booking.renewed_at)
            self._enter_wait(check)
        return True

    def _enter_wait(self, check: Check) -> None:
        seconds = check.ended_at - check.booked_at
        if seconds > 0.0:
            ratio = self._trust_of(check).waited(check.tokens, seconds)
            if ratio is not None:
                self._waits.add(ratio)

    def _trust_of(self, check: Check) -> RankTrust:
        trust = self._ranks.get(check.writer)
        if trust is None:
            trust = self._ranks[check.writer] = RankTrust(check.rank)
        return trust


def _reported(known: RankTrust) -> RankTrustReport:
    trust = known.trust if known.checks else None
    return RankTrustReport(known.rank, trust, known.wait_error if known.waits else None)
