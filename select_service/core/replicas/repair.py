"""Repair: making our view of a peer's reservations equal to the list that the peer gives.

The list comes in pages while events go on.  What keeps that safe:

* A reservation that ended here after the peer booked it is not booked again (`endings`, compared
  with its age).  Since the peer still has it, our `Freed` was lost: it is said once more.  The
  same holds for a prefill that is over here.
* Only what was booked here before the list was begun, and is on no page of it, is dropped.
* A reservation keeps its age, and its lease ends when it ends at the peer, so that two replicas
  cannot keep one alive by copying it from each other.
* When two replicas admitted the same id, the one with the smaller router id keeps it and the other
  one follows; everybody can tell without asking.
* Where two differ on a reservation that nobody answers for any more, because they have heard
  different last words of a process that died, the later booking counts, and both can tell which.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from msgspec import UNSET

from select_service.bodies.common import ID_CHARS_MAX, U64_MAX
from select_service.bodies.reservations import ReservationPage, ReservationRow
from select_service.core.decide.prompt import ISL_TOKENS_MAX
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.booking import (
    BOOKED_BLOCKS_MAX,
    Account,
    NewBooking,
    bounded,
    nameless,
)
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger_memory import RESERVATIONS_MAX, RESERVED_BLOCKS_MAX
from select_service.core.load.reservations import ReservationFilter
from select_service.core.replicas.events import Freed, PrefillCompleted
from select_service.core.replicas.state import ReplicaState

AGE_SLACK_S = 0.002
CLOCK_DRIFT = 1e-4
"""Ages are rounded, and two clocks do not run equally fast."""
AGE_S_MAX = 1e9
SAME_AGE_S = 1.0
"""Bookings whose ages differ by less are taken for equally old: the age that is known of one is
off by the time that an event or a list was on its way."""
PAGE_ROWS = 1000
ROW_WORK = 8
SCAN_ROWS = 256
TURN_WORK_MAX = 2048
"""Work between two turns of others, in microseconds more or less: ROW_WORK for a row, and one for
every block that is booked or released; the last row may exceed it."""
PAGES_MAX = 2 * RESERVATIONS_MAX
"""Each page has at least one row, unless the peer makes fun of us."""


@dataclass(slots=True)
class Repaired:
    """What a repair did.  `repeated`: events that were said again; `refused`: not bookable here."""

    added: int = 0
    dropped: int = 0
    changed: int = 0
    repeated: int = 0
    refused: int = 0

    @property
    def progress(self) -> bool:
        return self.added + self.dropped + self.changed > 0


Verdict: TypeAlias = Literal[
    "nothing",
    "book",
    "assign",
    "complete_prefill",
    "repeat_freed",
    "repeat_prefill",
    "revoke",
    "trust",
]


class PageAnswer(NamedTuple):
    """A page of the list; somewhere between the two times it was written."""

    page: ReservationPage
    asked_at: float
    came_at: float


T = TypeVar("T")
Steps: TypeAlias = Generator[ReservationFilter | None, PageAnswer | None, T]

Life: TypeAlias = Literal["alive", "ended", "unsure"]

_VERDICT_ON_DOUBTED: Mapping[Life, Verdict] = {
    "alive": "trust",
    "ended": "revoke",
    "unsure": "nothing",
}


class AnotherProcess(Exception):
    """The list came from another process than the one that was asked, after a restart perhaps."""


class Repair:
    """One pass over the list of one peer.  `walk` says what to ask for, and follows the answers."""

    def __init__(self, state: ReplicaState, router_id: int, now: float) -> None:
        """router_id: the process whose list it is; any other's must not be taken."""
        self.done = Repaired()
        self.router_id = router_id
        self._state = state
        self._began = now
        self._listed: set[str] = set()
        self._work = 0

    def walk(self) -> Steps[None]:
        """Yields what to ask the peer for and wants the answer, or None to let others have a turn.

        Hashes are many, so they are asked for only where something has to be booked.  Raises
        AnotherProcess; what was done until then stays, and is right.
        """
        after = None
        for _ in range(PAGES_MAX):
            answer = yield from _asked(ReservationFilter(limit=PAGE_ROWS, after=after))
            if (yield from self._lacks(answer)):
                wanted = ReservationFilter(limit=PAGE_ROWS, after=after, sequence_hashes=True)
                answer = yield from _asked(wanted)
            yield from self._take(answer)
            after = answer.page.next
            if after is None:
                yield from self._finish(answer.came_at)
                return

    def _worked(self, work: int) -> Steps[None]:
        """Let others have a turn when there was enough work since the last one."""
        self._work += work
        while self._work >= TURN_WORK_MAX or not self._state.ledger.keeps_up_everywhere():
            self._work = 0
            yield None

    def _lacks(self, answer: PageAnswer) -> Steps[bool]:
        """Is there anything on the page that has to be booked, so that its hashes are needed?"""
        for row in answer.page.reservations:
            if self._verdict(row, answer) == "book" and self._place(row) is not None:
                return True
            yield from self._worked(ROW_WORK)
        return False

    def _take(self, answer: PageAnswer) -> Steps[None]:
        page = answer.page
        if page.router_id != self.router_id:
            raise AnotherProcess(f"router {self.router_id} was asked, {page.router_id} answered")
        for row in page.reservations:
            self._listed.add(row.reservation_id)
            self._follow(self._verdict(row, answer), row, answer.came_at)
            blocks = 0 if row.sequence_hashes is UNSET else len(row.sequence_hashes)
            yield from self._worked(ROW_WORK + blocks)

    def _finish(self, now: float) -> Steps[None]:
        """The list was complete: drop what the peer answers for and does not have any more."""
        order = 0
        while some := self._state.held.some(order, SCAN_ROWS):
            order = some[-1].order + 1
            yield from self._worked(SCAN_ROWS)
            for booking in some:
                if self._is_gone(booking):
                    self._state.ledger.release(booking, "replica", now)
                    self.done.dropped += 1
                    yield from self._worked(ROW_WORK + booking.n_named)

    def _is_gone(self, booking: Booking) -> bool:
        """Is it still booked here as the peer's, since before the list, and not on the list?"""
        return (
            booking.origin == self.router_id
            and booking.renewed_at < self._began
            and booking.reservation_id not in self._listed
            and self._state.held.find(booking.reservation_id) == booking
        )

    # --- what a row asks for; changes nothing

    def _verdict(self, row: ReservationRow, answer: PageAnswer) -> Verdict:
        booking = self._state.held.find(row.reservation_id)
        if booking is None:
            return self._verdict_on_missing(row, answer)
        if row.reservation_id in self._state.doubted and row.router_id == booking.origin:
            return _VERDICT_ON_DOUBTED[self._life(row, answer)]
        is_there = _is_same(row, booking)
        if self._peer_decides(row, booking, answer) or self._is_last_word(row, booking, answer):
            return "assign" if is_there else "book"
        if not is_there:
            return "book" if row.router_id == self.router_id == booking.origin else "nothing"
        if row.state == "decode":
            return "complete_prefill" if booking.prefilling else "nothing"
        is_over = not booking.prefilling and booking.renewed_at < self._began
        return "repeat_prefill" if is_over else "nothing"

    def _verdict_on_missing(self, row: ReservationRow, answer: PageAnswer) -> Verdict:
        """Only rows of the peer's own and those that nobody answers for (us, before a restart)."""
        origin = row.router_id
        is_orphan = self._state.origins.is_orphan(origin, answer.came_at)
        if origin != self.router_id and not is_orphan:
            return "nothing"
        if self._life(row, answer) == "alive":
            return "book"
        ending = self._state.endings.ending_of(row.reservation_id, answer.came_at)
        # What ended since the list was begun may well be known to the peer by now.
        return "repeat_freed" if ending is not None and ending.at < self._began else "nothing"

    def _life(self, row: ReservationRow, answer: PageAnswer) -> Life:
        """Was it seen to end, or did only an earlier one of the same name?

        Only the one that admitted it knows its age; the others know since when they know of it.
        """
        ending = self._state.endings.ending_of(row.reservation_id, answer.came_at)
        if ending is None:
            return "alive"
        if row.router_id != self.router_id:
            return "ended"
        if ending.by == self.router_id and ending.at < answer.asked_at:
            return "alive"  # the peer itself said so before: it has moved, or is admitted anew
        slack = AGE_SLACK_S + CLOCK_DRIFT * row.age_seconds
        if ending.at < answer.asked_at - row.age_seconds - slack:
            return "alive"
        return "ended" if ending.at > answer.came_at - row.age_seconds + slack else "unsure"

    def _peer_decides(self, row: ReservationRow, booking: Booking, answer: PageAnswer) -> bool:
        """Do we differ on who admitted it, so that the row is to be followed?"""
        own, peer, origin = self._state.router_id, self.router_id, row.router_id
        if origin == peer:
            # The peer says it is its own, and perhaps so do we, or had it of one who is gone.
            if booking.origin is None or booking.origin == peer:
                return booking.origin is None and peer < own
            return self._state.origins.is_orphan(booking.origin, answer.came_at)
        if booking.origin != peer:
            return False
        # We thought it was the peer's, but the peer knows of somebody else: perhaps of us.
        return origin != own or own < peer

    def _is_last_word(self, row: ReservationRow, booking: Booking, answer: PageAnswer) -> bool:
        """Is the row to be followed in what nobody answers for, neither here nor at the peer?

        Of the two replicas that ask each other one says yes and one no, or they agree already.
        """
        theirs, ours, origins = row.router_id, booking.origin, self._state.origins
        if ours is None or not all(origins.is_orphan(o, answer.came_at) for o in (ours, theirs)):
            return False
        if theirs != ours:
            return theirs < ours
        if _is_same(row, booking):
            return False
        now = (answer.asked_at + answer.came_at) / 2
        later_s = now - booking.booked_at - row.age_seconds
        if abs(later_s) > SAME_AGE_S:
            return later_s > 0  # it has moved, and that was not heard here
        return _has_lower_load(row, booking)

    # --- doing it

    def _follow(self, verdict: Verdict, row: ReservationRow, now: float) -> None:
        booking = self._state.held.find(row.reservation_id)
        if verdict == "book":
            self._book(row, now)
        elif verdict == "repeat_freed":
            self._repeat(Freed, row)
        elif verdict == "repeat_prefill":
            self._repeat(PrefillCompleted, row)
        elif verdict == "assign":
            assert booking is not None
            self._state.ledger.assign(booking, self._origin_of(row))
            self.done.changed += 1
        elif verdict == "complete_prefill":
            assert booking is not None
            self._state.ledger.complete_prefill(booking, "replica", now)
            self.done.changed += 1
        elif verdict == "trust":
            self._state.endings.forget(row.reservation_id)
            del self._state.doubted[row.reservation_id]
        elif verdict == "revoke":
            assert booking is not None
            self._state.ledger.release(booking, "replica", now)
            self._repeat(Freed, row)
            self.done.changed += 1

    def _book(self, row: ReservationRow, now: float) -> None:
        """Book it as the peer has it, in the place of what may be there."""
        state, place = self._state, self._place(row)
        if place is None:
            self.done.refused += 1
            return
        if row.sequence_hashes is UNSET:
            return  # the page was short of them; the next repair has another look
        is_over = row.state == "decode" or state.endings.was_prefilled(row.reservation_id, now)
        hashes = np.array(row.sequence_hashes[:BOOKED_BLOCKS_MAX], np.uint64)
        booking = NewBooking(
            reservation_id=row.reservation_id,
            account=place[0],
            rank=_rank_of(row),
            slot=place[1],
            sequence_hashes=bounded(hashes),
            isl_tokens=row.isl_tokens,
            prefill_tokens=0 if is_over else row.prefill_tokens,
            booked_at=now - row.age_seconds,
            origin=self._origin_of(row),
            prefilling=not is_over,
            nameless=nameless(row.prompt_blocks),
            tracks_prefill=row.work != 0,
            own_work=None if row.work is UNSET else row.work,
        )
        is_known = state.held.find(row.reservation_id) is not None
        if not state.book(booking, now, row.expires_in_seconds):
            self.done.refused += 1
            return
        state.endings.forget(row.reservation_id)
        self.done.changed += is_known
        self.done.added += not is_known

    def _place(self, row: ReservationRow) -> tuple[Account, int] | None:
        """Account and slot of the row's rank; None when there is no such rank here.

        Nor is there one with another size of blocks, whose load would be other numbers.  A peer
        that does not tell the size is believed to have ours, as it was before they told.
        """
        partition = self._state.partition_of(_key_of(row))
        if partition is None or row.block_size not in (UNSET, partition.block_size):
            return None
        slot = partition.table.find(_rank_of(row))
        return None if slot is None else (partition.account, slot)

    def _origin_of(self, row: ReservationRow) -> int | None:
        return None if row.router_id == self._state.router_id else row.router_id

    def _repeat(self, kind: type[PrefillCompleted] | type[Freed], row: ReservationRow) -> None:
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
            self._state.say(event)
            self.done.repeated += 1


def _key_of(row: ReservationRow) -> PartitionKey:
    return PartitionKey(row.model_name, row.tenant_id)


def _rank_of(row: ReservationRow) -> Rank:
    return Rank(row.worker_id, row.dp_rank)


def _is_same(row: ReservationRow, booking: Booking) -> bool:
    """Do both have the same load on the same rank, but for the course of the prefill?"""
    is_over = row.state == "decode" or not booking.prefilling
    return (
        (booking.key, booking.rank) == (_key_of(row), _rank_of(row))
        and min(booking.prompt_blocks, BOOKED_BLOCKS_MAX)
        == min(row.prompt_blocks, BOOKED_BLOCKS_MAX)
        and (is_over or booking.prefill_tokens == row.prefill_tokens)
        and (is_over or row.work in (UNSET, booking.work))
    )


def _has_lower_load(row: ReservationRow, booking: Booking) -> bool:
    """An order of all that differs in the sense of `_is_same`, the same for everybody."""
    work = booking.work if row.work is UNSET else row.work
    theirs = _key_of(row), _rank_of(row), min(row.prompt_blocks, BOOKED_BLOCKS_MAX)
    ours = booking.key, booking.rank, min(booking.prompt_blocks, BOOKED_BLOCKS_MAX)
    return (theirs, row.prefill_tokens, work) < (ours, booking.prefill_tokens, booking.work)


def _asked(wanted: ReservationFilter) -> Steps[PageAnswer]:
    answer = yield wanted
    assert answer is not None
    return answer


def checked(row: ReservationRow) -> ReservationRow:
    """The row as it came from a peer, if its numbers can be.  Raises ValueError."""
    hashes = [] if row.sequence_hashes is UNSET else row.sequence_hashes
    fits = 0 <= row.worker_id <= U64_MAX and 0 <= row.router_id <= U64_MAX
    fits = fits and 0 <= row.prefill_tokens <= ISL_TOKENS_MAX and row.isl_tokens >= 0
    fits = fits and (row.work is UNSET or 0 <= row.work <= ISL_TOKENS_MAX)
    fits = fits and 0.0 <= row.age_seconds <= AGE_S_MAX
    fits = fits and 0 <= row.prompt_blocks <= RESERVED_BLOCKS_MAX
    fits = fits and (not hashes or (min(hashes) >= 0 and max(hashes) <= U64_MAX))
    if not fits or len(row.reservation_id) > ID_CHARS_MAX:
        raise ValueError("a reservation in the list of the peer has a number out of range")
    return row
