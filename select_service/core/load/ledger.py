"""The only writer of load: what is booked, completed, released and expired, for whatever reason.

Clients, other replicas, time and ranks that leave all change load through the same few methods, so
that the tables behind it (ids and leases in `Reservations`, block references in the `ActiveLoad` of
each account, sums by origin) cannot disagree.  Those who want to know are `followers`; they are
told after each change, must not change load themselves, and cost nothing while there are none.

Whatever may be long has a budget in *work*: releasing a reservation is RELEASE_WORK and one more
for every prompt block, about a microsecond each.
"""

from collections.abc import Callable
from functools import cache
from math import inf, nan
from typing import Literal, NamedTuple, Protocol, TypeAlias
from weakref import WeakSet

from select_service.core.load import ledger_call_kernels as verbs
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.booking import BOOKED_BLOCKS_MAX, Account, NewBooking
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger_kernels import NO_ROOM, TAKEN, assign
from select_service.core.load.ledger_layout import (
    CALL_LOAD,
    FOLLOWERS,
    LEFT_BEFORE,
    LIVED_NUMBERS,
    MANY_BLOCKS,
    WAS_MOVED,
)
from select_service.core.load.moving import MoveTo, as_new, moved
from select_service.core.load.reservations import Reservations, not_found
from select_service.core.touched import Touched
from select_service.errors import CapacityExceeded, Conflict

TURN_WORK_MAX = 1024
"""What one turn of the event loop releases; some one to two milliseconds."""
RELEASE_WORK = 8

Cause: TypeAlias = Literal["client", "replica", "expiry", "rank_left", "moved", "given_up"]
"""Who made a change.  client: one of ours; moved: to another rank; given_up: its rank is dead."""
NOT_REPORTED = frozenset(("rank_left", "moved", "given_up"))
"""Ends that say nothing of whether callers report the ends of prefills."""


class LoadFollower(Protocol):
    """Somebody who is told of every change of load, but for output blocks: those are too many."""

    def booked(self, booking: NewBooking, cause: Cause, now: float) -> None: ...
    def prefill_completed(self, booking: Booking, cause: Cause, now: float) -> None: ...
    def released(self, booking: Booking, cause: Cause, now: float) -> None: ...


class Expired(NamedTuple):
    """The ids of what one turn of expiry released, and whether more is due."""

    ended: list[str]
    more: bool


class Ledger:
    """All reservations of one process and the load they stand for.

    What a client asks for by id is one compiled call, open to other kernels: `ledger_call_kernels`.
    """

    def __init__(self, held: Reservations, touched: Touched) -> None:
        self.held = held
        self._memory = held.memory
        self.followers: list[LoadFollower] = []
        self._of_bookings: list[LoadFollower] = []
        self._of_moves: list[LoadFollower] = []
        self.tells_bookings = False
        """Does a follower want to know of bookings?"""
        self.expired = 0
        self.dropped_with_rank = 0
        self._touched = touched
        self._expecting: WeakSet[ActiveLoad] = WeakSet()
        """Bookings of many blocks were seen there: it is prepared for those to come."""
        self._preparing: dict[ActiveLoad, None] = {}

    def follow(
        self, follower: LoadFollower, tells_bookings: bool = True, tells_moves: bool = True
    ) -> None:
        """Tell it of every change from now on; who changes load by kernels calls `tell_*` then.

        tells_bookings: it must hear of bookings, which cost most to tell of
        tells_moves:    it must hear of a move, as of an end and a booking
        """
        self.followers.append(follower)
        if tells_bookings:
            self._of_bookings.append(follower)
        if tells_moves:
            self._of_moves.append(follower)
        self.tells_bookings = bool(self._of_bookings)
        self._memory.numbers[FOLLOWERS] = len(self.followers)

    def unfollow(self, follower: LoadFollower) -> None:
        self.followers.remove(follower)
        if follower in self._of_bookings:
            self._of_bookings.remove(follower)
        if follower in self._of_moves:
            self._of_moves.remove(follower)
        self.tells_bookings = bool(self._of_bookings)
        self._memory.numbers[FOLLOWERS] = len(self.followers)

    # --- refusals, before anything is written

    def refuse_unless_free(self, reservation_id: str) -> None:
        """Raises Conflict when the id is in use, in whatever partition."""
        held = self.standing(reservation_id)
        if held is not None:
            raise in_use(held)

    def standing(self, reservation_id: str) -> Booking | None:
        """What is booked under an id, unless it is about to be released with its rank."""
        held = self.held.find(reservation_id)
        return None if held is None or held.is_leaving else held

    # --- bookings of many blocks

    def may_book(self, load: ActiveLoad, blocks: int) -> bool:
        """Is a booking of so many blocks a bounded step now?

        If not, the load is prepared for it from the next turn on; ask again in each.
        """
        if blocks < MANY_BLOCKS or load.is_prepared(min(blocks, BOOKED_BLOCKS_MAX)):
            return True
        self._expecting.add(load)
        self._prepare_again(load)
        return False

    def keeps_up(self, load: ActiveLoad) -> bool:
        """`may_book` as many blocks as a booking may have, where such bookings were seen."""
        return load not in self._expecting or self.may_book(load, BOOKED_BLOCKS_MAX)

    def keeps_up_everywhere(self) -> bool:
        """`keeps_up` of every load."""
        return all(self.keeps_up(load) for load in list(self._expecting))

    def _prepare_again(self, load: ActiveLoad) -> None:
        if load in self._expecting:
            self._preparing[load] = None
            self._touched.wake_if(self._preparing)

    def prepare(self) -> None:
        """One step for bookings of many blocks, on loads that have seen one."""
        load = next(iter(self._preparing), None)
        if load is not None and not load.prepare(BOOKED_BLOCKS_MAX):
            del self._preparing[load]
        self._touched.wake_if(self._preparing)

    # --- changes

    def book(
        self, booking: NewBooking, cause: Cause, now: float, lease_s: float | None = None
    ) -> int:
        """Book it in the place of whatever has its id.  lease_s: a first lease that is shorter.

        Returns its row.  Raises MemoryError and CapacityExceeded, and then has changed nothing.
        """
        assert booking.slot not in booking.account.leaving
        self.held.rows.know(booking.account)
        lease_s = min(self.held.ttl_s or inf, inf if lease_s is None else lease_s)
        while (row := self._put(booking, now, lease_s)) < 0:
            self._make_way(row, booking, cause, now)
        if self._memory.numbers[CALL_LOAD]:
            self.give_back()
        if booking.n_named >= MANY_BLOCKS:
            self._expecting.add(booking.account.load)
            self._prepare_again(booking.account.load)
        self.tell_booked(booking, cause, now)
        return row

    def tell_booked(self, booking: NewBooking, cause: Cause, now: float) -> None:
        """Tell the followers."""
        for follower in self._of_bookings:
            follower.booked(booking, cause, now)

    def _put(self, booking: NewBooking, now: float, lease_s: float) -> int:
        """The row of it, or why there is none."""
        rank, account = booking.rank, booking.account
        row: int = verbs.book(
            self._memory.header,
            account.load.header,
            booking.reservation_id.encode(),
            booking.slot,
            booking.sequence_hashes,
            booking.n_named,
            booking.nameless,
            booking.isl_tokens,
            booking.prefill_tokens,
            booking.prefilling,
            rank.worker_id,
            rank.dp_rank,
            self.held.sums.number_of(account.key, booking.origin),
            booking.booked_at,
            now,
            lease_s,
            booking.work,
            booking.cached_blocks,
            booking.prompt,
        )
        return row

    def give_back(self) -> None:
        """One step for the load that a booking called for; each booking on it calls again."""
        address, self._memory.numbers[CALL_LOAD] = self._memory.numbers[CALL_LOAD], 0
        account = self.held.rows.accounts.get(address)
        if account is not None:
            account.load.give_back()

    def _make_way(self, refusal: int, booking: NewBooking, cause: Cause, now: float) -> None:
        """Raises MemoryError, CapacityExceeded."""
        if refusal == NO_ROOM:
            booking.account.load.reserve_room(booking.n_named)
            self._prepare_again(booking.account.load)
        elif refusal == TAKEN:
            booking.account.load.reserve_room(booking.n_named)
            old = self.held.get(booking.reservation_id)
            self._release(old, "rank_left" if old.is_leaving else cause, now, tells=False)
        else:
            self.held.refuse_unless_room(len(booking.sequence_hashes))
            raise CapacityExceeded("the ids of all reservations take as much as they may")

    def renew(self, reservation_id: str, now: float) -> None:
        """Start the lease anew; every lifecycle call does.  Raises NotFound."""
        if not verbs.renew(self._memory.header, reservation_id.encode(), now):
            raise not_found(reservation_id)

    def complete(self, reservation_id: str, cause: Cause, now: float) -> None:
        """Renew, and give back the booked prefill tokens; repeating that changes nothing here.

        Followers hear of every call: other replicas are told each time, as the reference does, so
        that one which missed the first hears the second.  Raises NotFound.
        """
        row = verbs.complete(self._memory.header, reservation_id.encode(), now)
        if not row:
            raise not_found(reservation_id)
        self._completed(abs(row), row > 0, cause, now, reservation_id)

    def complete_prefill(self, booking: Booking, cause: Cause, now: float) -> None:
        """As `complete`, but the lease goes on as it was."""
        tokens = verbs.complete_row(self._memory.header, booking.row)
        self._completed(booking.row, tokens > 0, cause, now)

    def _completed(
        self, row: int, has_freed: bool, cause: Cause, now: float, name: str | None = None
    ) -> None:
        if has_freed:
            self._touch(row)
        self.tell_completed(row, cause, now, name)

    def tell_completed(self, row: int, cause: Cause, now: float, name: str | None = None) -> None:
        """Tell the followers.  name: the id of the reservation, where it is at hand"""
        if self.followers:
            booking = self.held.at(row, name)
            for follower in self.followers:
                follower.prefill_completed(booking, cause, now)

    def add_output_block(
        self, reservation_id: str, decay_fraction: float | None, now: float
    ) -> None:
        """Renew, and one more output block, then the decay if one is given.  Raises NotFound."""
        weight = nan if decay_fraction is None else decay_fraction
        header = self._memory.header
        row = verbs.add_output_block(header, reservation_id.encode(), weight, now)
        if not row:
            raise not_found(reservation_id)
        assert row > 0, "a block of a live reservation is not booked"
        if decay_fraction is not None:
            self._touch(row)

    def assign(self, booking: Booking, origin: int | None) -> None:
        """Another replica answers for the booking from now on."""
        number = self.held.sums.number_of(booking.key, origin)
        assign(self._memory.header, booking.row, number)

    def free(self, reservation_id: str, cause: Cause, now: float) -> None:
        """Take the whole load of a reservation back.  Raises NotFound."""
        row = verbs.release(self._memory.header, reservation_id.encode())
        if not row:
            raise not_found(reservation_id)
        self._released(row, cause, now, reservation_id)

    def release(
        self, booking: Booking, cause: Cause, now: float, *, is_report: bool = True
    ) -> None:
        """As `free`, of one that is held.  is_report: does a caller say so, if only to a peer?"""
        self._release(booking, cause, now, tells=is_report and cause not in NOT_REPORTED)

    def _release(self, booking: Booking, cause: Cause, now: float, *, tells: bool) -> None:
        """tells: is an end before that of the prefill one that nobody reported?  Not where the
        reservation goes on elsewhere
        """
        row = verbs.release_row(self._memory.header, booking.row, tells)
        self._released(row, cause, now)

    def move(self, booking: Booking, to: MoveTo, now: float) -> Booking:
        """Book it on another rank and free it here, in one step.

        Followers hear of the end and of the booking.  Raises MemoryError, and then has changed
        nothing.
        """
        is_roomy, move_row = _move_kernels()
        load, name = booking.account.load, booking.reservation_id.encode()
        if not is_roomy(load.header, blocks := booking.n_named):
            load.reserve_room(blocks)
        new, rank = moved(self._memory, booking, to), to.rank
        for follower in self._of_moves:
            follower.released(booking, "moved", now)
        row = move_row(
            *(self._memory.header, booking.row, name, to.slot, rank.worker_id, rank.dp_rank),
            *(new.prefill_tokens, new.prefilling, new.own_work, new.cached_blocks, new.prompt),
        )
        assert row > 0, "what has moved was not booked"
        if self._memory.numbers[CALL_LOAD]:
            self.give_back()
        self._touch(row)
        self._memory.lived[row * LIVED_NUMBERS + LEFT_BEFORE] = WAS_MOVED
        there = self.held.at(row)
        if self._of_moves:
            self._tell_moved(there, now)
        return there

    def _tell_moved(self, booking: Booking, now: float) -> None:
        """Tell those who hear of it as of another booking."""
        for follower in self._of_moves:
            if follower in self._of_bookings:
                follower.booked(as_new(booking), "moved", now)
            if not booking.prefilling:
                follower.prefill_completed(booking, "moved", now)

    def _released(self, row: int, cause: Cause, now: float, name: str | None = None) -> None:
        assert row > 0, "more was released than had been booked"
        self.expired += cause == "expiry"
        self.dropped_with_rank += cause == "rank_left"
        self._touch(row)
        self.tell_released(row, cause, now, name)

    def tell_released(self, row: int, cause: Cause, now: float, name: str | None = None) -> None:
        """Tell the followers, before something new is booked.  name: as in `tell_completed`"""
        if self.followers:
            booking = self.held.at(row, name)
            for follower in self.followers:
                follower.released(booking, cause, now)

    def _touch(self, row: int) -> None:
        if self._touched.is_watching:
            self._touched.capacity(self.held.at(row).key)

    # --- changes of many, a budget at a time

    def expire(self, now: float, work_max: int) -> Expired:
        """Release what nobody renewed in time, the oldest first."""
        ended: list[str] = []
        work = 0
        releases_max = -(-work_max // RELEASE_WORK)
        overdue = self.held.overdue(now, releases_max + 1)
        for booking in overdue:
            if work >= work_max:
                break
            work += RELEASE_WORK + booking.n_named
            ended.append(booking.reservation_id)
            self.release(booking, "expiry", now)
        return Expired(ended, len(ended) < len(overdue))

    def empty_slot(self, account: Account, slot: int, now: float, work_max: int) -> int:
        """Release what is booked on a slot whose rank has left.  Returns the work that it took;
        the slot is not empty when that is all there was.
        """
        work = 0
        for booking in self.held.on_slot(account, slot):
            if work >= work_max:
                break
            work += RELEASE_WORK + booking.n_named
            self.release(booking, "rank_left", now)
        return work

    def check_invariants(self) -> None:
        """For tests."""
        self.held.check_invariants()
        accounts = {id(b.account): b.account for b in self.held}
        for account in accounts.values():
            account.check_invariants()


def in_use(held: Booking) -> Conflict:
    """The refusal of its id."""
    text = f"reservation {held.reservation_id} already exists"
    refusal = Conflict(f"{text} (worker {held.rank.worker_id} dp_rank {held.rank.dp_rank})")
    refusal.bound_text = text
    return refusal


@cache
def _move_kernels() -> tuple[Callable[..., bool], Callable[..., int]]:
    """Only where something moves they are loaded."""
    from select_service.core.load.move_kernels import is_roomy, move_row

    return is_roomy, move_row
