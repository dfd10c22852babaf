"""The ledger, the only writer of load: bookings, completions, releases and expiries.

Clients, other replicas, expiry and leaving ranks all change load through the same few methods.  The
tables behind (ids and leases in `Reservations`, block references in each account's `ActiveLoad`,
sums by origin) therefore cannot disagree.  Followers are notified after each change and must not
change load; without followers there is no cost.

Long operations have a budget in *work*: a release costs RELEASE_WORK plus one for every prompt
block, about a microsecond each.
"""

from collections.abc import Callable
from functools import cache
from math import inf, nan
from typing import Literal, NamedTuple, Protocol, TypeAlias
from weakref import WeakSet

from select_service.base.errors import CapacityExceeded, Conflict
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.load.active_load import ActiveLoad
from select_service.core.load.compiled import ledger_entry_kernels as verbs
from select_service.core.load.compiled.ledger_kernels import ID_TAKEN, NO_ROOM, assign_origin
from select_service.core.load.compiled.ledger_layout import (
    HISTORY_NUMBERS,
    LOAD_TO_RELEASE,
    MANY_BLOCKS,
    N_LISTENERS,
    N_SESSION_LEASES,
    WAS_MOVED,
    WORK_LEFT_BEFORE,
)
from select_service.core.load.ledger_memory import pack_booking
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX, LoadAccount, NewReservation
from select_service.core.load.prefill_legs import owner_of
from select_service.core.load.reservation_move import (
    MoveTarget,
    as_new_reservation,
    values_after_move,
)
from select_service.core.load.reservation_view import ReservationView
from select_service.core.load.reservations import Reservations, reservation_not_found

TURN_WORK_MAX = 1024
"""Release work of a turn of the event loop, some one to two milliseconds."""
RELEASE_WORK = 8

Cause: TypeAlias = Literal[
    "client", "replica", "expiry", "rank_left", "moved", "given_up", "pair_ended"
]
"""Origin of a change: client (one of ours), moved (to another rank), given_up (the rank is dead),
pair_ended (the rank of the other leg has left, or is dead).
"""
UNREPORTED_CAUSES = frozenset(("rank_left", "moved", "given_up", "pair_ended"))
"""Ends that do not show whether callers report the ends of prefills."""


class LoadListener(Protocol):
    """Listener notified of every change of load except output blocks, which are too many."""

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None: ...
    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None: ...
    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None: ...


class ExpiryResult(NamedTuple):
    """Ids released in a turn of expiry, and whether more is due."""

    ended_ids: list[str]
    has_more: bool


class Ledger:
    """All reservations of a process, with their load.

    Client operations by id are one compiled call each, also usable by kernels:
    `ledger_entry_kernels`.
    """

    def __init__(self, reservations: Reservations, touched: DirtyPartitions) -> None:
        self.reservations = reservations
        self._memory = reservations.memory
        self.listeners: list[LoadListener] = []
        self._booking_listeners: list[LoadListener] = []
        self._move_listeners: list[LoadListener] = []
        self.notifies_bookings = False
        """Whether a follower receives bookings."""
        self.on_session_moved: Callable[[ReservationView, float], None] | None = None
        """Receiver of moved reservations that belong to a session."""
        self.renews_lease: Callable[[ReservationView, float], bool] | None = None
        """Renews an overdue reservation that lives as long as another, and returns whether."""
        self.expired_count = 0
        self.released_with_rank = 0
        self._dirty = touched
        self._expecting: WeakSet[ActiveLoad] = WeakSet()
        """Loads that have had a large booking and are prepared for the next."""
        self._preparing: dict[ActiveLoad, None] = {}

    def add_listener(
        self, listener: LoadListener, needs_bookings: bool = True, needs_moves: bool = True
    ) -> None:
        """Notify a follower of every change from now on.

        Code changing load through kernels must call the `tell_*` methods.

        needs_bookings: whether the follower needs bookings, the most expensive notification
        needs_moves: whether the follower receives a move, as a release followed by a booking
        """
        self.listeners.append(listener)
        if needs_bookings:
            self._booking_listeners.append(listener)
        if needs_moves:
            self._move_listeners.append(listener)
        self.notifies_bookings = bool(self._booking_listeners)
        self._memory.numbers[N_LISTENERS] = len(self.listeners)

    def remove_listener(self, listener: LoadListener) -> None:
        self.listeners.remove(listener)
        if listener in self._booking_listeners:
            self._booking_listeners.remove(listener)
        if listener in self._move_listeners:
            self._move_listeners.remove(listener)
        self.notifies_bookings = bool(self._booking_listeners)
        self._memory.numbers[N_LISTENERS] = len(self.listeners)

    # Checks, before anything is written

    def check_id_free(self, reservation_id: str) -> None:
        """Raise Conflict when any partition uses the id."""
        row = verbs.find_reservation(self._memory.header, reservation_id.encode())
        # The usual id is free, and then no view is needed.
        if row and not (held := self.reservations.view_row(row)).is_leaving:
            raise id_in_use_error(held)

    def find_active(self, reservation_id: str) -> ReservationView | None:
        """Return the reservation of an id, unless its rank has left and the release is pending."""
        held = self.reservations.find_reservation(reservation_id)
        return None if held is None or held.is_leaving else held

    # Preparation for large bookings

    def may_book(self, load: ActiveLoad, blocks: int) -> bool:
        """Return whether a booking of `blocks` blocks is a bounded step now.

        On False, preparation starts with the next turn; try again in each turn.
        """
        if blocks < MANY_BLOCKS or load.is_prepared(min(blocks, BOOKED_BLOCKS_MAX)):
            return True
        self._expecting.add(load)
        self._prepare_again(load)
        return False

    def is_ready_for_max_booking(self, load: ActiveLoad) -> bool:
        """Return whether the largest possible booking is a bounded step, where large bookings
        occurred.
        """
        return load not in self._expecting or self.may_book(load, BOOKED_BLOCKS_MAX)

    def is_ready_everywhere(self) -> bool:
        """Return whether `is_ready_for_max_booking` holds for every load."""
        return all(self.is_ready_for_max_booking(load) for load in list(self._expecting))

    def _prepare_again(self, load: ActiveLoad) -> None:
        if load in self._expecting:
            self._preparing[load] = None
            self._dirty.request_turn_if(self._preparing)

    def prepare_step(self) -> None:
        """Take a step of preparation on a load that has had a large booking."""
        load = next(iter(self._preparing), None)
        if load is not None and not load.prepare_step(BOOKED_BLOCKS_MAX):
            del self._preparing[load]
        self._dirty.request_turn_if(self._preparing)

    # Changes of a reservation

    def book(
        self, booking: NewReservation, cause: Cause, now: float, lease_s: float | None = None
    ) -> int:
        """Book a reservation in place of any previous one of the same id; return its row.

        lease_s: duration of a shorter first lease, seconds
        Raises MemoryError and CapacityExceeded without having changed anything.
        """
        account, n_hashed = booking.account, booking.n_hashed
        assert booking.slot not in account.leaving_slots
        if account.registrar is not self.reservations.rows:
            self.reservations.rows.register_account(account)
        lease_s = min(self.reservations.ttl_s or inf, inf if lease_s is None else lease_s)
        # A refusal changes nothing, so the booking is repeated once its reason is gone.
        while (row := self._try_book(booking, n_hashed, now, lease_s)) < 0:
            self._make_room(row, booking, cause, now)
        if self._memory.numbers[LOAD_TO_RELEASE]:
            self.release_memory()
        if n_hashed >= MANY_BLOCKS:
            self._expecting.add(account.load)
            self._prepare_again(account.load)
        if self._booking_listeners:
            self.notify_booked(booking, cause, now)
        return row

    def notify_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        """Notify the followers of a booking."""
        for follower in self._booking_listeners:
            follower.on_booked(booking, cause, now)

    def _try_book(self, booking: NewReservation, n_hashed: int, now: float, lease_s: float) -> int:
        """Return the row of a booking, or a negative refusal code."""
        memory, account, rank = self._memory, booking.account, booking.rank
        pack_booking(
            *(memory.booking, 0, booking.slot, n_hashed, booking.untracked_blocks),
            *(booking.isl_tokens, booking.prefill_tokens, booking.is_prefilling),
            *(rank.worker_id, rank.dp_rank),
            self.reservations.sums.number_of(account.key, booking.origin),
            *(booking.prefill_work, booking.cached_blocks, booking.booked_at, now, lease_s),
            booking.request_part,
        )
        row: int = verbs.book_reservation(
            memory.header,
            account.load.header,
            booking.reservation_id.encode(),
            booking.sequence_hashes,
            booking.prompt,
        )
        return row

    def release_memory(self) -> None:
        """Release memory of the load flagged by the last booking; every booking there flags
        again.
        """
        address, self._memory.numbers[LOAD_TO_RELEASE] = self._memory.numbers[LOAD_TO_RELEASE], 0
        account = self.reservations.rows.accounts.get(address)
        if account is not None:
            account.load.release_memory()

    def reserve_room(self, load: ActiveLoad, blocks: int) -> None:
        """Let the tables of a load grow for bookings of `blocks` blocks.  Raises MemoryError."""
        load.reserve_room(blocks)
        self._prepare_again(load)

    def _make_room(self, refusal: int, booking: NewReservation, cause: Cause, now: float) -> None:
        """Remove the reason of a refusal.  Raises MemoryError, CapacityExceeded."""
        if refusal == NO_ROOM:
            self.reserve_room(booking.account.load, booking.n_hashed)
        elif refusal == ID_TAKEN:
            booking.account.load.reserve_room(booking.n_hashed)
            old = self.reservations.get_reservation(booking.reservation_id)
            self._release(old, "rank_left" if old.is_leaving else cause, now, counts_report=False)
        else:
            self.reservations.check_room(len(booking.sequence_hashes))
            # Count and blocks are checked above, but long ids may use up all chunks before.
            raise CapacityExceeded(
                "the reservation ids fill their memory: free reservations or use shorter ids"
            )

    def renew_lease(self, reservation_id: str, now: float) -> None:
        """Restart the lease, as every lifecycle call does.  Raises NotFound."""
        if not verbs.renew_reservation(self._memory.header, reservation_id.encode(), now):
            raise reservation_not_found(reservation_id)

    def complete_by_id(self, reservation_id: str, cause: Cause, now: float) -> None:
        """Renew the lease and release the booked prefill tokens; repeating changes no load.

        Followers are notified of every call.  Peers thus receive repeated completions, like in the
        reference, and a peer that missed the first gets the second.  Raises NotFound.
        """
        row = verbs.complete_reservation(self._memory.header, reservation_id.encode(), now)
        if not row:
            raise reservation_not_found(reservation_id)
        self._finish_completion(abs(row), row > 0, cause, now, reservation_id)

    def complete_prefill(self, booking: ReservationView, cause: Cause, now: float) -> None:
        """Release the booked prefill tokens without renewing the lease."""
        tokens = verbs.complete_row(self._memory.header, booking.row)
        self._finish_completion(booking.row, tokens > 0, cause, now)

    def _finish_completion(
        self, row: int, has_freed: bool, cause: Cause, now: float, name: str | None = None
    ) -> None:
        if has_freed:
            self._mark_dirty(row)
        self.notify_completed(row, cause, now, name)

    def notify_completed(self, row: int, cause: Cause, now: float, name: str | None = None) -> None:
        """Notify the followers of a completed prefill.

        name: reservation id, if at hand
        """
        if self.listeners:
            booking = self.reservations.view_row(row, name)
            for follower in self.listeners:
                follower.on_prefill_completed(booking, cause, now)

    def add_output_block(
        self, reservation_id: str, decay_fraction: float | None, now: float
    ) -> None:
        """Renew the lease, add an output block, then apply the decay if given.  Raises NotFound."""
        weight = nan if decay_fraction is None else decay_fraction
        header = self._memory.header
        row = verbs.add_output_block(header, reservation_id.encode(), weight, now)
        if not row:
            raise reservation_not_found(reservation_id)
        assert row > 0, "a block of a live reservation is not booked"
        if decay_fraction is not None:
            self._mark_dirty(row)

    def assign_origin(self, booking: ReservationView, origin: int | None) -> None:
        """Make another replica responsible for the booking."""
        number = self.reservations.sums.number_of(booking.key, origin)
        assign_origin(self._memory.header, booking.row, number)

    def free_by_id(self, reservation_id: str, cause: Cause, now: float) -> None:
        """Remove the whole load of a reservation.  Raises NotFound."""
        self._memory.set_release_time(now)
        row = verbs.release_reservation(self._memory.header, reservation_id.encode())
        if not row:
            raise reservation_not_found(reservation_id)
        self._finish_release(row, cause, now, reservation_id)

    def release(
        self, booking: ReservationView, cause: Cause, now: float, *, is_report: bool = True
    ) -> None:
        """Remove the whole load of a booking.

        is_report: whether a caller reported the end, here or to a peer
        """
        self._release(
            booking, cause, now, counts_report=is_report and cause not in UNREPORTED_CAUSES
        )

    def _release(
        self, booking: ReservationView, cause: Cause, now: float, *, counts_report: bool
    ) -> None:
        """Remove the whole load of a booking.

        counts_report: whether an end before the end of the prefill counts as unreported; False
        where the
               reservation continues elsewhere
        """
        self._memory.set_release_time(now)
        row = verbs.release_row(self._memory.header, booking.row, counts_report)
        self._finish_release(row, cause, now)

    def move(self, booking: ReservationView, to: MoveTarget, now: float) -> ReservationView:
        """Book a reservation on another rank and free it here, in one step.

        Followers receive a release and a booking.  Raises MemoryError without having changed
        anything.
        """
        is_roomy, move_row = _move_kernels()
        load, name = booking.account.load, booking.reservation_id.encode()
        if not is_roomy(load.header, blocks := booking.n_hashed):
            load.reserve_room(blocks)
        new, rank = values_after_move(self._memory, booking, to), to.rank
        for follower in self._move_listeners:
            follower.on_released(booking, "moved", now)
        # A move leaves the fields unchanged that are 0 here.
        pack_booking(
            *(self._memory.booking, 0, to.slot, 0, 0, 0, new.prefill_tokens, new.is_prefilling),
            *(rank.worker_id, rank.dp_rank, 0, new.own_work, new.cached_blocks, 0.0, 0.0, 0.0),
            0,
        )
        row = move_row(self._memory.header, booking.row, name, new.prompt)
        assert row > 0, "a moved reservation was not booked"
        if self._memory.numbers[LOAD_TO_RELEASE]:
            self.release_memory()
        self._mark_dirty(row)
        self._memory.history[row * HISTORY_NUMBERS + WORK_LEFT_BEFORE] = WAS_MOVED
        there = self.reservations.view_row(row)
        if self._memory.numbers[N_SESSION_LEASES] and self.on_session_moved is not None:
            self.on_session_moved(there, now)
        if self._move_listeners:
            self._notify_moved(there, to, now)
        return there

    def _notify_moved(self, booking: ReservationView, to: MoveTarget, now: float) -> None:
        """Notify those followers that receive a move as a booking."""
        for follower in self._move_listeners:
            if follower in self._booking_listeners:
                follower.on_booked(as_new_reservation(booking, to), "moved", now)
            if not booking.is_prefilling:
                follower.on_prefill_completed(booking, "moved", now)

    def _finish_release(self, row: int, cause: Cause, now: float, name: str | None = None) -> None:
        assert row > 0, "more was released than had been booked"
        self.expired_count += cause == "expiry"
        self.released_with_rank += cause == "rank_left"
        self._mark_dirty(row)
        self.notify_released(row, cause, now, name)

    def notify_released(self, row: int, cause: Cause, now: float, name: str | None = None) -> None:
        """Notify the followers of a release, before the next booking reuses the row.

        name: reservation id, if at hand
        """
        if self.listeners:
            booking = self.reservations.view_row(row, name)
            for follower in self.listeners:
                follower.on_released(booking, cause, now)

    def _mark_dirty(self, row: int) -> None:
        if self._dirty.is_watching:
            self._dirty.mark_capacity(self.reservations.view_row(row).key)

    # Changes of many reservations, with a budget

    def expire_leases(self, now: float, work_max: int) -> ExpiryResult:
        """Release reservations after the end of their lease, oldest first."""
        ended: list[str] = []
        work = n_examined = 0
        releases_max = -(-work_max // RELEASE_WORK)
        overdue = self.reservations.find_overdue(now, releases_max + 1)
        for booking in overdue:
            if work >= work_max:
                break
            n_examined += 1
            if self.renews_lease is not None and self.renews_lease(booking, now):
                work += 1
                continue
            work += RELEASE_WORK + booking.n_hashed
            ended.append(owner_of(booking.reservation_id))
            self.release(booking, "expiry", now)
        return ExpiryResult(ended, n_examined < len(overdue))

    def empty_slot(self, account: LoadAccount, slot: int, now: float, work_max: int) -> int:
        """Release reservations of a slot without its former rank; return the work done.

        The slot is empty only if the result is below `work_max`.
        """
        work = 0
        for booking in self.reservations.iterate_slot(account, slot):
            if work >= work_max:
                break
            work += RELEASE_WORK + booking.n_hashed
            self.release(booking, "rank_left", now)
        return work

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        self.reservations.check_invariants()
        accounts = {id(b.account): b.account for b in self.reservations}
        for account in accounts.values():
            account.check_invariants()


def id_in_use_error(existing: ReservationView) -> Conflict:
    """Return the error for an id in use."""
    text = f"reservation {existing.reservation_id} already exists"
    refusal = Conflict(f"{text} (worker {existing.rank.worker_id} dp_rank {existing.rank.dp_rank})")
    refusal.bound_text = text
    return refusal


@cache
def _move_kernels() -> tuple[Callable[..., bool], Callable[..., int]]:
    """Return the move kernels, loaded only when something moves."""
    from select_service.core.load.compiled.move_kernels import has_room_for, move_row

    return has_room_for, move_row
