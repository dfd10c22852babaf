"""The only writer of load: what is booked, completed, released and expired, for whatever reason.

Clients, other replicas, time and ranks that leave all change load through the same few methods, so
that the tables behind it (ids and leases in `Reservations`, block references in the `ActiveLoad` of
each account, sums by origin) cannot disagree.  Those who want to know are `followers`; they are
told after each change, must not change load themselves, and cost nothing while there are none.

Whatever may be long has a budget in *work*: releasing a reservation is RELEASE_WORK and one more
for every prompt block, about a microsecond each.
"""

from itertools import islice
from typing import Literal, NamedTuple, Protocol, TypeAlias

from select_service.core.load.booking import Account, Booking, Drained
from select_service.core.load.reservations import Reservations
from select_service.core.touched import Touched
from select_service.errors import Conflict

TURN_WORK_MAX = 1024
"""What one turn of the event loop releases; some one to two milliseconds."""
RELEASE_WORK = 8

Cause: TypeAlias = Literal["client", "replica", "expiry", "rank_left"]
"""Who made a change.  client: one of ours."""


class LoadFollower(Protocol):
    """Somebody who is told of every change of load, but for output blocks: those are too many."""

    def booked(self, booking: Booking, cause: Cause, now: float) -> None: ...
    def prefill_completed(self, booking: Booking, cause: Cause, now: float) -> None: ...
    def released(self, booking: Booking, cause: Cause, now: float) -> None: ...


class Expired(NamedTuple):
    """What one turn of expiry released, and whether more is due."""

    ended: list[Booking]
    more: bool


class Ledger:
    """All reservations of one process and the load they stand for."""

    def __init__(self, held: Reservations, touched: Touched) -> None:
        self.held = held
        self.followers: list[LoadFollower] = []
        self.expired = 0
        self.dropped_with_rank = 0
        self._touched = touched

    # --- refusals, before anything is written

    def refuse_unless_free(self, reservation_id: str) -> None:
        """Raises Conflict when the id is in use, in whatever partition."""
        held = self.held.find(reservation_id)
        if held is not None and not held.is_leaving:
            raise Conflict(
                f"reservation {reservation_id} already exists "
                f"(worker {held.rank.worker_id} dp_rank {held.rank.dp_rank})"
            )

    # --- changes

    def book(
        self, booking: Booking, cause: Cause, now: float, lease_s: float | None = None
    ) -> None:
        """Book it in the place of whatever has its id.  lease_s: a first lease that is shorter.

        Raises MemoryError, and has changed nothing.
        """
        account, slot = booking.account, booking.slot
        assert slot not in account.leaving
        old = self.held.find(booking.reservation_id)
        if old is not None:
            account.load.reserve_room(len(booking.named))
            self.release(old, "rank_left" if old.is_leaving else cause, now)
        account.load.add(slot, booking.named, booking.prefill_tokens, booking.output)
        self.held.add(booking, now, lease_s)
        account.bookings[slot][booking.order] = booking.reservation_id
        for follower in self.followers:
            follower.booked(booking, cause, now)

    def renew(self, reservation_id: str, now: float) -> Booking:
        """Start the lease anew; every lifecycle call passes here.  Raises NotFound."""
        return self.held.renew(reservation_id, now)

    def complete_prefill(self, booking: Booking, cause: Cause, now: float) -> None:
        """Give back the booked prefill tokens; repeating it changes nothing here.

        Followers hear of every call: other replicas are told each time, as the reference does, so
        that one which missed the first hears the second.
        """
        tokens = self.held.prefill_complete(booking)
        if tokens:
            booking.account.load.complete_prefill(booking.slot, tokens)
            self._drain(booking.account, tokens, 0)
        for follower in self.followers:
            follower.prefill_completed(booking, cause, now)

    def add_output_block(self, booking: Booking, decay_fraction: float | None) -> None:
        """One more output block, then the decay if one is given."""
        account = booking.account
        booking.output = account.load.add_output_block(
            booking.slot, booking.named, booking.output, decay_fraction
        )
        if decay_fraction is not None:
            self._touched.capacity(account.key)

    def assign(self, booking: Booking, origin: int | None) -> None:
        """Another replica answers for the booking from now on."""
        self.held.assign(booking, origin)

    def release(self, booking: Booking, cause: Cause, now: float) -> None:
        """Take the whole load of a reservation back."""
        account, slot = booking.account, booking.slot
        self.held.remove(booking)
        del account.bookings[slot][booking.order]
        account.load.remove(slot, booking.named, booking.prefill_tokens, booking.output)
        self.expired += cause == "expiry"
        self.dropped_with_rank += cause == "rank_left"
        self._drain(account, booking.prefill_tokens, len(booking.sequence_hashes))
        for follower in self.followers:
            follower.released(booking, cause, now)

    def _drain(self, account: Account, tokens: int, blocks: int) -> None:
        drained = account.drained
        account.drained = Drained(drained.tokens + tokens, drained.blocks + blocks)
        self._touched.capacity(account.key)

    # --- changes of many, a budget at a time

    def expire(self, now: float, work_max: int) -> Expired:
        """Release what nobody renewed in time, the oldest first."""
        ended: list[Booking] = []
        work = 0
        releases_max = -(-work_max // RELEASE_WORK)
        overdue = self.held.overdue(now, releases_max + 1)
        for booking in overdue:
            if work >= work_max:
                break
            work += RELEASE_WORK + len(booking.named)
            self.release(booking, "expiry", now)
            ended.append(booking)
        return Expired(ended, len(ended) < len(overdue))

    def empty_slot(self, account: Account, slot: int, now: float, work_max: int) -> int:
        """Release what is booked on a slot whose rank has left.  Returns the work that it took;
        the slot is not empty when that is all there was.
        """
        work = 0
        held = islice(account.bookings[slot].values(), 1 + work_max // RELEASE_WORK)
        for reservation_id in list(held):
            if work >= work_max:
                break
            booking = self.held.get(reservation_id)
            work += RELEASE_WORK + len(booking.named)
            self.release(booking, "rank_left", now)
        return work

    def check_invariants(self) -> None:
        """For tests."""
        self.held.check_invariants()
        accounts = {id(b.account): b.account for b in self.held}
        for account in accounts.values():
            account.check_invariants()
        assert len(self.held) == sum(len(s) for a in accounts.values() for s in a.bookings)
        for b in self.held:
            assert b.account.bookings[b.slot][b.order] == b.reservation_id
