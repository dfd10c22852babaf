"""Repair: adoption of a peer's list of reservations.

The list arrives in pages while events continue. Rules that keep this safe:

* A reservation that ended here after the peer booked it is not booked again (tombstones are
  compared with the age). The peer still has the reservation, so our `ReservationFreed` was lost and
  is sent again. The same holds for a prefill that ended here.
* Only reservations booked here before the list was begun, and missing on all pages, are dropped.
* A reservation keeps age and end of the lease. Two replicas therefore cannot keep a reservation
alive by copying from each other.
* If two replicas admitted the same id, the replica with the smaller router id keeps the reservation
and the other replica follows. Every replica can decide this alone.
* If two replicas differ on a reservation of an orphaned origin, because each received different
last events of a dead process, the later booking counts. Both can decide this alone.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from msgspec import UNSET

from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.ledger_memory import RESERVATIONS_MAX, RESERVED_BLOCKS_MAX
from select_service.core.load.new_reservation import (
    BOOKED_BLOCKS_MAX,
    NO_PROMPT,
    LoadAccount,
    NewReservation,
    bound_hashes,
    count_untracked_blocks,
)
from select_service.core.load.prefill_legs import prefill_leg_of
from select_service.core.load.reservation_view import ReservationView
from select_service.core.load.reservations import ReservationFilter
from select_service.core.placement.prompt import ISL_TOKENS_MAX
from select_service.core.replication.load_events import PrefillCompleted, ReservationFreed
from select_service.core.replication.replica_state import ReplicaState
from select_service.schemas.common import ID_CHARS_MAX, U64_MAX
from select_service.schemas.pairs import PairRecord
from select_service.schemas.reservations import ReservationPage, ReservationRow
from select_service.schemas.sessions import is_session_id

AGE_SLACK_S = 0.002
CLOCK_DRIFT = 1e-4
"""Relative drift between two clocks; ages are rounded in addition."""
AGE_S_MAX = 1e9
SAME_AGE_S = 1.0
"""Age difference below which two bookings count as equally old, s.

Ages are inaccurate by the transmission time of an event or a list.
"""
PAGE_ROWS = 1000
ROW_WORK = 8
SCAN_ROWS = 256
TURN_WORK_MAX = 2048
"""Work per turn, in about microseconds: ROW_WORK per row, and one per block booked or released.

The last row may exceed the limit.
"""
PAGES_MAX = 2 * RESERVATIONS_MAX
"""Maximum number of pages; every page of a well-behaved peer has at least one row."""


@dataclass(slots=True)
class RepairResult:
    """Result of a repair.

    repeated: number of events sent again
    refused: number of reservations that could not be booked here
    """

    added: int = 0
    dropped: int = 0
    changed: int = 0
    repeated: int = 0
    refused: int = 0

    @property
    def has_progress(self) -> bool:
        return self.added + self.dropped + self.changed > 0


RowVerdict: TypeAlias = Literal[
    "nothing",
    "book",
    "assign",
    "complete_prefill",
    "repeat_freed",
    "repeat_prefill",
    "revoke",
    "trust",
]


class ReservationPageAnswer(NamedTuple):
    """Page of the list, written between the two times."""

    page: ReservationPage
    asked_at: float
    came_at: float


T = TypeVar("T")
RepairSteps: TypeAlias = Generator[ReservationFilter | None, ReservationPageAnswer | None, T]

ReservationLife: TypeAlias = Literal["alive", "ended", "unsure"]

_VERDICT_ON_DOUBTED: Mapping[ReservationLife, RowVerdict] = {
    "alive": "trust",
    "ended": "revoke",
    "unsure": "nothing",
}


class UnexpectedProcess(Exception):
    """The list came from another process than requested, for example after a restart."""


class Repair:
    """Pass over the list of a peer; `run_repair` yields the requests and receives the pages."""

    def __init__(self, state: ReplicaState, router_id: int, now: float) -> None:
        """Create a repair; only the list of the process router_id is accepted."""
        self.result = RepairResult()
        self.router_id = router_id
        self._state = state
        self._began = now
        self._listed: set[str] = set()
        self._work = 0

    def run_repair(self) -> RepairSteps[None]:
        """Yield requests for pages and receive the pages; yield None to give other tasks a turn.

        Block hashes are large, and are requested only if something has to be booked. Raises
        UnexpectedProcess; changes made until then stay and are correct.
        """
        after = None
        for _ in range(PAGES_MAX):
            page_filter = ReservationFilter(limit=PAGE_ROWS, after=after, separate_legs=True)
            answer = yield from _request_page(page_filter)
            # The first request omits the hashes, which are most of the bytes and usually not
            # needed.
            if (yield from self._needs_hashes(answer)):
                answer = yield from _request_page(page_filter._replace(sequence_hashes=True))
            yield from self._apply_page(answer)
            after = answer.page.next
            if after is None:
                yield from self._drop_unlisted(answer.came_at)
                return

    def _count_work(self, work: int) -> RepairSteps[None]:
        """Add work; yield when the limit of a turn is reached."""
        self._work += work
        while self._work >= TURN_WORK_MAX or not self._state.ledger.is_ready_everywhere():
            self._work = 0
            yield None

    def _needs_hashes(self, answer: ReservationPageAnswer) -> RepairSteps[bool]:
        """Return whether a row of the page has to be booked, which needs the block hashes."""
        for row in answer.page.reservations:
            if self._judge_row(row, answer) == "book" and self._find_slot(row) is not None:
                return True
            yield from self._count_work(ROW_WORK)
        return False

    def _apply_page(self, answer: ReservationPageAnswer) -> RepairSteps[None]:
        page = answer.page
        if page.router_id != self.router_id:
            raise UnexpectedProcess(
                f"list of router {self.router_id} was requested, router {page.router_id} answered"
            )
        for row in page.reservations:
            # Every row counts as listed, whatever the verdict: only reservations without a row
            # were dropped by the peer.
            self._listed.add(row.reservation_id)
            self._apply_verdict(self._judge_row(row, answer), row, answer.came_at)
            blocks = 0 if row.sequence_hashes is UNSET else len(row.sequence_hashes)
            yield from self._count_work(ROW_WORK + blocks)

    def _drop_unlisted(self, now: float) -> RepairSteps[None]:
        """Drop reservations of the peer that the complete list lacks."""
        order = 0
        # Scanned by admission order instead of by dict iteration: bookings change between two
        # turns.
        while some := self._state.reservations.list_from(order, SCAN_ROWS):
            order = some[-1].order + 1
            yield from self._count_work(SCAN_ROWS)
            for booking in some:
                if self._is_gone(booking):
                    self._state.ledger.release(booking, "replica", now)
                    self.result.dropped += 1
                    yield from self._count_work(ROW_WORK + booking.n_hashed)

    def _is_gone(self, booking: ReservationView) -> bool:
        """Return whether the booking is older than the list, belongs to the peer, and is not
        listed.
        """
        return (
            booking.origin == self.router_id
            and booking.renewed_at < self._began
            and booking.reservation_id not in self._listed
            and self._state.reservations.find_reservation(booking.reservation_id) == booking
        )

    def _judge_row(self, row: ReservationRow, answer: ReservationPageAnswer) -> RowVerdict:
        booking = self._state.reservations.find_reservation(row.reservation_id)
        if booking is None:
            return self._judge_missing_row(row, answer)
        if row.reservation_id in self._state.unconfirmed and row.router_id == booking.origin:
            return _VERDICT_ON_DOUBTED[self._reservation_life(row, answer)]
        is_there = _has_same_load(row, booking)
        if self._peer_decides(row, booking, answer) or self._is_last_word(row, booking, answer):
            return "assign" if is_there else "book"
        if not is_there:
            return "book" if row.router_id == self.router_id == booking.origin else "nothing"
        if row.state == "decode":
            return "complete_prefill" if booking.is_prefilling else "nothing"
        is_over = not booking.is_prefilling and booking.renewed_at < self._began
        return "repeat_prefill" if is_over else "nothing"

    def _judge_missing_row(self, row: ReservationRow, answer: ReservationPageAnswer) -> RowVerdict:
        """Judge a row without a booking here; only rows of the peer and of orphaned origins count.

        Our own router id before a restart is an orphaned origin as well.
        """
        origin = row.router_id
        is_orphan = self._state.liveness.is_orphan(origin, answer.came_at)
        if origin != self.router_id and not is_orphan:
            return "nothing"
        if self._reservation_life(row, answer) == "alive":
            return "book"
        ending = self._state.tombstones.ending_of(row.reservation_id, answer.came_at)
        # The peer may meanwhile have received what ended since the list was begun.
        return "repeat_freed" if ending is not None and ending.at < self._began else "nothing"

    def _reservation_life(
        self, row: ReservationRow, answer: ReservationPageAnswer
    ) -> ReservationLife:
        """Return whether this reservation ended, or only an earlier reservation with the same id.

        Only the admitting replica knows the age; other replicas know when they saw the id first.
        """
        ending = self._state.tombstones.ending_of(row.reservation_id, answer.came_at)
        if ending is None:
            return "alive"
        if row.router_id != self.router_id:
            return "ended"
        if ending.by == self.router_id and ending.at < answer.asked_at:
            return "alive"  # ended by the peer before: the reservation has moved, or is new
        # The two clocks drift apart over the life of the reservation.
        slack = AGE_SLACK_S + CLOCK_DRIFT * row.age_seconds
        if ending.at < answer.asked_at - row.age_seconds - slack:
            return "alive"
        return "ended" if ending.at > answer.came_at - row.age_seconds + slack else "unsure"

    def _peer_decides(
        self, row: ReservationRow, booking: ReservationView, answer: ReservationPageAnswer
    ) -> bool:
        """Return whether the replicas disagree about the admitting replica and the peer's row
        wins.
        """
        own, peer, origin = self._state.router_id, self.router_id, row.router_id
        if origin == peer:
            # The peer claims the reservation. This process may claim the reservation too, or have
            # it from a replica that is gone.
            if booking.origin is None or booking.origin == peer:
                return booking.origin is None and peer < own
            return self._state.liveness.is_orphan(booking.origin, answer.came_at)
        if booking.origin != peer:
            return False
        # We attributed the reservation to the peer, which names another replica, perhaps us.
        return origin != own or own < peer

    def _is_last_word(
        self, row: ReservationRow, booking: ReservationView, answer: ReservationPageAnswer
    ) -> bool:
        """Return whether the peer's row wins for a reservation orphaned on both sides.

        Unless the rows agree already, the result is True at exactly one of the two replicas.
        """
        theirs, ours, origins = row.router_id, booking.origin, self._state.liveness
        if ours is None or not all(origins.is_orphan(o, answer.came_at) for o in (ours, theirs)):
            return False
        if theirs != ours:
            # Any total order works, as long as both replicas use the same order.
            return theirs < ours
        if _has_same_load(row, booking):
            return False
        # The list was written at an unknown moment in between; the middle halves the error.
        now = (answer.asked_at + answer.came_at) / 2
        later_s = now - booking.booked_at - row.age_seconds
        if abs(later_s) > SAME_AGE_S:
            return later_s > 0  # moved, and the event of the move was lost here
        return _has_lower_load(row, booking)

    def _apply_verdict(self, verdict: RowVerdict, row: ReservationRow, now: float) -> None:
        booking = self._state.reservations.find_reservation(row.reservation_id)
        # Verdicts were computed from the state of this turn, so no other task ran in between.
        if verdict == "book":
            self._book_row(row, now)
        elif verdict == "repeat_freed":
            self._resend_event(ReservationFreed, row)
        elif verdict == "repeat_prefill":
            self._resend_event(PrefillCompleted, row)
        elif verdict == "assign":
            assert booking is not None
            self._state.ledger.assign_origin(booking, self._origin_of(row))
            self.result.changed += 1
        elif verdict == "complete_prefill":
            assert booking is not None
            self._state.ledger.complete_prefill(booking, "replica", now)
            self.result.changed += 1
        elif verdict == "trust":
            # The tombstone belongs to an earlier reservation with this id.
            self._state.tombstones.remove_tombstone(row.reservation_id)
            del self._state.unconfirmed[row.reservation_id]
        elif verdict == "revoke":
            assert booking is not None
            self._state.ledger.release(booking, "replica", now)
            self._resend_event(ReservationFreed, row)
            self.result.changed += 1

    def _book_row(self, row: ReservationRow, now: float) -> None:
        """Book the peer's version in place of an existing booking."""
        state, place = self._state, self._find_slot(row)
        if place is None:
            self.result.refused += 1
            return
        if row.sequence_hashes is UNSET:
            return  # the page had too few hashes; the next repair retries
        # A prefill-completed event may have overtaken the admission that this row replaces.
        is_over = row.state == "decode" or state.tombstones.was_prefilled(row.reservation_id, now)
        hashes = np.array(row.sequence_hashes[:BOOKED_BLOCKS_MAX], np.uint64)
        booking = NewReservation(
            reservation_id=row.reservation_id,
            account=place[0],
            rank=_rank_of(row),
            slot=place[1],
            sequence_hashes=bound_hashes(hashes),
            isl_tokens=row.isl_tokens,
            prefill_tokens=0 if is_over else row.prefill_tokens,
            # Copying the age, not the time of the repair: otherwise two replicas would extend each
            # other's leases forever.
            booked_at=now - row.age_seconds,
            origin=self._origin_of(row),
            is_prefilling=not is_over,
            untracked_blocks=count_untracked_blocks(row.prompt_blocks),
            tracks_prefill=row.work != 0,
            own_work=None if row.work is UNSET else row.work,
        )
        is_known = state.reservations.find_reservation(row.reservation_id) is not None
        if not state.book_reservation(booking, now, row.expires_in_seconds):
            self.result.refused += 1
            return
        if row.session_id is not UNSET:
            state.lease_session(row.reservation_id, row.session_id, now)
        if row.pair is not UNSET:
            self._enter_pair(row, row.pair)
        state.tombstones.remove_tombstone(row.reservation_id)
        self.result.changed += is_known
        self.result.added += not is_known

    def _enter_pair(self, row: ReservationRow, pair: PairRecord) -> None:
        partition = self._state.partition_of(_key_of(row))
        assert partition is not None
        # Lists have no block hashes: a moved leg then counts nothing as cached.
        self._state.receive_pair(partition, row.reservation_id, pair, NO_PROMPT)

    def _find_slot(self, row: ReservationRow) -> tuple[LoadAccount, int] | None:
        """Return account and slot of the row's rank; None if this process has no such rank.

        A partition with another block size does not match, since the load has other units. A peer
        that sends no block size (older versions) is assumed to use ours.
        """
        partition = self._state.partition_of(_key_of(row))
        if partition is None or row.block_size not in (UNSET, partition.block_size):
            return None
        slot = partition.table.find_slot(_rank_of(row))
        return None if slot is None else (partition.account, slot)

    def _origin_of(self, row: ReservationRow) -> int | None:
        return None if row.router_id == self._state.router_id else row.router_id

    def _resend_event(
        self, kind: type[PrefillCompleted] | type[ReservationFreed], row: ReservationRow
    ) -> None:
        partition = self._state.partition_of(_key_of(row))
        if partition is not None:
            event = kind(
                model_name=row.model_name,
                tenant_id=row.tenant_id,
                block_size=partition.block_size,
                reservation_id=row.reservation_id,
                rank=_rank_of(row),
                router_id=self._state.router_id,
            )
            self._state.send_event(event)
            self.result.repeated += 1


def _key_of(row: ReservationRow) -> PartitionKey:
    return PartitionKey(row.model_name, row.tenant_id)


def _rank_of(row: ReservationRow) -> Rank:
    return Rank(row.worker_id, row.dp_rank)


def _has_same_load(row: ReservationRow, booking: ReservationView) -> bool:
    """Return whether both have the same load on the same rank, apart from prefill progress."""
    is_over = row.state == "decode" or not booking.is_prefilling
    return (
        (booking.key, booking.rank) == (_key_of(row), _rank_of(row))
        and min(booking.prompt_blocks, BOOKED_BLOCKS_MAX)
        == min(row.prompt_blocks, BOOKED_BLOCKS_MAX)
        and (is_over or booking.prefill_tokens == row.prefill_tokens)
        and (is_over or row.work in (UNSET, booking.prefill_work))
    )


def _has_lower_load(row: ReservationRow, booking: ReservationView) -> bool:
    """Order all differences in the sense of `_has_same_load`, equally on every replica."""
    work = booking.prefill_work if row.work is UNSET else row.work
    theirs = _key_of(row), _rank_of(row), min(row.prompt_blocks, BOOKED_BLOCKS_MAX)
    ours = booking.key, booking.rank, min(booking.prompt_blocks, BOOKED_BLOCKS_MAX)
    return (theirs, row.prefill_tokens, work) < (ours, booking.prefill_tokens, booking.prefill_work)


def _request_page(page_filter: ReservationFilter) -> RepairSteps[ReservationPageAnswer]:
    answer = yield page_filter
    assert answer is not None
    for row in answer.page.reservations:
        if row.leg == "prefill":
            row.reservation_id, row.leg = prefill_leg_of(row.reservation_id), UNSET
    return answer


def validate_row(row: ReservationRow) -> ReservationRow:
    """Return the peer's row if all numbers are in range. Raises ValueError."""
    hashes = [] if row.sequence_hashes is UNSET else row.sequence_hashes
    fits = 0 <= row.worker_id <= U64_MAX and 0 <= row.router_id <= U64_MAX
    fits = fits and 0 <= row.prefill_tokens <= ISL_TOKENS_MAX
    # The ledger packs this number into 64 bits, so a larger number would end the repair.
    fits = fits and 0 <= row.isl_tokens <= ISL_TOKENS_MAX
    fits = fits and (row.work is UNSET or 0 <= row.work <= ISL_TOKENS_MAX)
    fits = fits and 0.0 <= row.age_seconds <= AGE_S_MAX
    fits = fits and 0 <= row.prompt_blocks <= RESERVED_BLOCKS_MAX
    fits = fits and (not hashes or (min(hashes) >= 0 and max(hashes) <= U64_MAX))
    of_pair = (0,) if row.pair is UNSET else (row.pair.isl_tokens, row.pair.move_tokens)
    fits = fits and max(of_pair) <= ISL_TOKENS_MAX
    fits = fits and (row.session_id is UNSET or is_session_id(row.session_id))
    if not fits or len(row.reservation_id) > ID_CHARS_MAX:
        raise ValueError("the peer's list has a reservation with a number out of range")
    return row
