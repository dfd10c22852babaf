"""Execution of migrations: reservations move to other ranks, or are released.

A job empties one rank. It handles a bounded number of reservations per turn; each move is one
ledger operation and one event. Only reservations admitted by this process are moved here, and pairs
of replicas that are gone: the admitting replica moves the others, and both replicas receive the
moves as bookings.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from select_service.base.errors import NotFound
from select_service.core.array_types import Floats, Mask
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.duration_histogram import DurationHistogram
from select_service.core.health.health_effects import (
    HealthEffect,
    MigrationRequested,
    RankReset,
    ReleaseRequested,
)
from select_service.core.health.health_kinds import CACHE_READABLE_CAUSES, CheckKind
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.migration.booking_observer import BookingObserver
from select_service.core.health.migration.migration_plan import (
    MigrationPlan,
    MovableReservation,
    PlannedMove,
    move_order,
)
from select_service.core.health.migration.movable_reservations import (
    TargetSlots,
    allowed_targets,
    make_movable,
    match_overlap,
)
from select_service.core.health.migration.move_cost import (
    CacheLayout,
    MigrationLimits,
    MoveMethod,
    MoveTerms,
)
from select_service.core.health.migration.move_log import MoveConfirmation, MoveEvent, MoveLog
from select_service.core.health.migration.move_targets import MoveTargets
from select_service.core.health.migration.pair_leg_moves import MovableLeg, PairLegMoves
from select_service.core.health.migration.rank_snapshot import (
    RankSnapshot,
    look_up_speeds,
    make_plan_targets,
    take_rank_snapshot,
)
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.ledger import Ledger
from select_service.core.load.prefill_legs import prefill_leg_of
from select_service.core.load.reservation_view import ReservationView
from select_service.core.pairs.pair_decisions import LegName, PairDecisions
from select_service.core.registry.fleet.partition import Partition

PER_TURN = 200
"""Reservations examined or released per turn."""
MOVED_PER_TURN = 40
"""Reservations moved per turn: two bookings each, about 50 us with cold CPU caches."""
PAIRS_MAX = 512
"""Maximum number of worker pairs with separate counters: the first pairs."""
TARGETS_USUAL = 2048
"""Number of targets above which fewer reservations move per turn, as each move examines all
targets.
"""
PLANNED_MAX = 4096
"""Maximum number of reservations in a plan; further plans follow."""
LOOKS_MAX = 4
"""Maximum number of snapshots of the rank table for a plan, in case ranks keep changing."""

BookingPlaces = npt.NDArray[np.int64]
"""[n, 2], row and order of bookings as in `Reservations.slot_positions`."""
MOVING = MoveMethod.TRANSFER, MoveMethod.REPREFILL
DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

LayoutOf = Callable[[PartitionKey, int], CacheLayout | None]
"""Function from partition and worker to the KV cache layout; None means unknown, so no transfer."""


class MigrationSource(NamedTuple):
    """Rank to be emptied.

    slot: row of the rank in this partition
    """

    partition: Partition
    rank: Rank
    slot: int
    cause: CheckKind

    @property
    def is_over(self) -> bool:
        """Whether the rank serves again, so that its reservations may stay, or has left."""
        table = self.partition.table
        return table.find_slot(self.rank) != self.slot or bool(table.open_slots[self.slot])


MovedBetween: TypeAlias = tuple[int | None, int | None, MoveMethod]


class MigrationCounters(NamedTuple):
    """Migration counters since start-up.

    moves: by source worker (None for unlisted), target worker (None if aborted) and method
    given_up: reservations released because their rank did not return
    durations: confirmed durations in s, by method
    """

    moves: Counter[MovedBetween]
    released: int
    durations: Mapping[MoveMethod, DurationHistogram]

    def make_copy(self) -> "MigrationCounters":
        """Return a copy for another thread."""
        durations = {method: held.copy() for method, held in self.durations.items()}
        return MigrationCounters(self.moves.copy(), self.released, durations)


class MovableBookings(NamedTuple):
    """Bookings that migrations change, and where they count.

    touched: partitions with changed load
    tracks_prefill: whether repeated prefills count as load
    pairs: moves the legs of pairs; None means that there are no pairs
    """

    partitions: Mapping[PartitionKey, Partition]
    ledger: Ledger
    touched: DirtyPartitions
    tracks_prefill: bool = True
    pairs: PairDecisions | None = None


class Migrator:
    """Executor of migrations; used by the event loop only."""

    def __init__(
        self,
        monitor: HealthMonitor,
        bookings: MovableBookings,
        observer: BookingObserver,
        layout_of: LayoutOf,
        *,
        first_number: int = 0,
        limits: MigrationLimits | None = None,
    ) -> None:
        """Create the executor; first_number: lower bound of event numbers, see MoveLog."""
        self._limits = limits or MigrationLimits()
        self.move_log = MoveLog(first_number)
        self._monitor = monitor
        self._partitions = bookings.partitions
        self._ledger = bookings.ledger
        self.observer = observer
        self._layout_of = layout_of
        self._touched = bookings.touched
        self._targets = MoveTargets(observer.constraints, bookings.tracks_prefill)
        self._pair_legs = None if bookings.pairs is None else PairLegMoves(bookings.pairs)
        self._jobs: dict[Rank, Iterator[None]] = {}
        self._snapshot: RankSnapshot | None = None
        """Rank snapshot of the latest plan."""
        self._release_queue: deque[BookingPlaces] = deque()
        self._counts: Counter[MovedBetween] = Counter()
        self._n_given_up = 0
        self._durations = {method: DurationHistogram(DURATION_BOUNDS_S) for method in MOVING}
        self._now = 0.0
        self.is_ending = False
        self._watchers: set[Callable[[], None]] = set()

    def on_effect(self, effect: HealthEffect, now: float) -> None:
        """Record the work an effect requests; ranks that have left are ignored."""
        if isinstance(effect, RankReset):
            self.observer.speeds.forget_rank(effect.rank)
        if isinstance(effect, MigrationRequested | ReleaseRequested):
            found = self._find_source(effect.rank)
            if found is not None and isinstance(effect, MigrationRequested):
                self.start_migration(*found)
            elif found is not None:
                self.release_reservations(found[0], effect.rank)

    def _find_source(self, rank: Rank) -> tuple[PartitionKey, Rank, CheckKind] | None:
        try:
            key, cause = self._monitor.check_state_of(rank).key, self._monitor.record_of(rank).cause
        except KeyError:
            return None
        return key, rank, cause or CheckKind.OPERATOR

    def start_migration(self, key: PartitionKey, rank: Rank, cause: CheckKind) -> None:
        """Start the migration of a rank's reservations; a repeated call has no effect."""
        leaving = self._make_source(key, rank, cause)
        if leaving is not None and rank not in self._jobs:
            self._jobs[rank] = self._migrate_all(leaving)
            self._touched.request_turn_if(self._jobs)

    def release_reservations(self, key: PartitionKey, rank: Rank) -> None:
        """Release the rank's current reservations, in the following turns."""
        leaving = self._make_source(key, rank, CheckKind.FATAL)
        if leaving is not None:
            held = self._ledger.reservations
            self._release_queue.append(held.slot_positions(leaving.partition.account, leaving.slot))
            self._touched.request_turn_if(self._release_queue)

    def _make_source(
        self, key: PartitionKey, rank: Rank, cause: CheckKind
    ) -> MigrationSource | None:
        partition = self._partitions.get(key)
        slot = None if partition is None else partition.table.find_slot(rank)
        if partition is None or slot is None:
            return None
        return MigrationSource(partition, rank, slot, cause)

    @property
    def is_busy(self) -> bool:
        """Whether work is left."""
        return bool(self._jobs or self._release_queue)

    def run_turn(self, now: float) -> None:
        """Work for one turn; request another turn while work is left."""
        self._now = now
        before = self.move_log.next_number
        if self._release_queue:
            self._release_batch()
        elif self._jobs:
            rank, job = next(iter(self._jobs.items()))
            if next(job, _FINISHED) is _FINISHED:
                del self._jobs[rank]
        if self.move_log.next_number != before:
            self._notify_watchers()
        self._touched.request_turn_if(self._jobs)
        self._touched.request_turn_if(self._release_queue)

    def _notify_watchers(self) -> None:
        for tell in list(self._watchers):
            tell()

    def _release_batch(self) -> None:
        # Releases go before moves: they are cheap and free capacity for the moves.
        places = self._release_queue.popleft()
        if len(places) > PER_TURN:
            self._release_queue.appendleft(places[PER_TURN:])
        for booking in self._own_bookings(places[:PER_TURN]):
            if (leg := self._pair_leg_of(booking)) is not None and leg.name == "prefill":
                # The decode leg stays, and its caller has to be told.
                self._log_leg(leg.abort(), booking.rank, CheckKind.FATAL, booking.key)
            self._ledger.release(booking, "given_up", self._now)
            self._n_given_up += 1

    def _own_bookings(self, places: BookingPlaces) -> Iterator[ReservationView]:
        """Yield the bookings that still exist and for which this process answers."""
        for row, order in places.tolist():
            # Rows are reused; the order number tells whether it is still the same reservation.
            booking = self._ledger.reservations.find_unchanged(row, order)
            # Bookings of other replicas are moved by the replica that admitted them.  Of a replica
            # that is gone only pairs are known well enough for moves.
            if booking is not None and (booking.origin is None or self._takes_over(booking)):
                yield booking

    def _takes_over(self, booking: ReservationView) -> bool:
        return self._pair_legs is not None and self._pair_legs.take_over(booking, self._now)

    def _migrate_all(self, leaving: MigrationSource) -> Iterator[None]:
        """Migrate all reservations; every yield returns control to the event loop."""
        places = self._ledger.reservations.slot_positions(leaving.partition.account, leaving.slot)
        for begin in range(0, len(places), PLANNED_MAX):
            yield from self._migrate_batch(leaving, places[begin : begin + PLANNED_MAX])

    def _migrate_batch(self, leaving: MigrationSource, places: BookingPlaces) -> Iterator[None]:
        """Execute one plan, and another for reservations with targets that have left."""
        partition = leaving.partition
        snapshot, speeds = yield from self._snapshot_with_speeds(leaving)
        suspicious = self._monitor.suspicious_ranks(partition.key)
        there = make_plan_targets(partition, snapshot, leaving.rank, speeds, suspicious)
        planning = MigrationPlan(there, self._move_terms(leaving))
        found: list[tuple[MovableReservation, ReservationView]] = []
        legs: list[tuple[MovableLeg, ReservationView]] = []
        for begin in range(0, len(places), PER_TURN):
            for booking in self._own_bookings(places[begin : begin + PER_TURN]):
                if (leg := self._pair_leg_of(booking)) is not None:
                    legs.append((leg, booking))
                    continue
                movable, allowed = self._make_movable(booking, partition, snapshot.slots)
                planning.consider_reservation(movable, allowed)
                found.append((movable, booking))
            yield
        yield from self._move_legs(leaving, legs)
        found.sort(key=lambda each: move_order(each[0]))
        # Each move is O(targets): with more targets fewer moves fit into a turn.
        a_turn = max(1, MOVED_PER_TURN * TARGETS_USUAL // max(TARGETS_USUAL, len(snapshot.ranks)))
        stranded = []
        for number, (movable, booking) in enumerate(found, 1):
            # The ledger grows its tables in the background; a booking before that would block the
            # loop.
            while not self._ledger.may_book(partition.account.load, booking.n_hashed):
                yield
            if leaving.is_over:
                return
            # The client may have freed the reservation since the plan was made.
            if self._ledger.reservations.is_live(booking):
                move = self._plan_move(movable, planning, partition, snapshot.slots)
                is_done = self._execute_move(leaving, booking, movable.tokens, move)
                # The target left after the plan was made; a new plan finds another target.
                stranded += [] if is_done else [(booking.row, booking.order)]
            if number % a_turn == 0:
                yield
        if stranded:
            yield from self._migrate_batch(leaving, np.array(stranded, np.int64))

    def _pair_leg_of(self, booking: ReservationView) -> MovableLeg | None:
        return None if self._pair_legs is None else self._pair_legs.leg_of(booking)

    def _move_legs(
        self, leaving: MigrationSource, legs: list[tuple[MovableLeg, ReservationView]]
    ) -> Iterator[None]:
        """Move the legs of pairs by the rule of pairs, which knows roles and links."""
        assert self._pair_legs is not None or not legs
        partition = leaving.partition
        for number, (leg, booking) in enumerate(legs, 1):
            while not self._ledger.may_book(partition.account.load, booking.n_hashed):
                yield
            if leaving.is_over:
                return
            if self._pair_legs is not None and self._ledger.reservations.is_live(booking):
                suspicious = self._monitor.suspicious_ranks(partition.key)
                move = self._pair_legs.move_leg(leg, suspicious, self._now)
                self._log_leg(move, leaving.rank, leaving.cause, partition.key)
            if number % MOVED_PER_TURN == 0:
                yield

    def _log_leg(
        self, move: PlannedMove, source: Rank, cause: CheckKind, key: PartitionKey
    ) -> None:
        self.move_log.append_move(move, source, cause, key.tenant_id, self._now)
        self._count_move(source, move)

    def _snapshot_with_speeds(
        self, leaving: MigrationSource
    ) -> Generator[None, None, tuple[RankSnapshot, Floats]]:
        """Return a rank snapshot and the speeds of its ranks, in steps."""
        for _ in range(LOOKS_MAX):
            snapshot = yield from self._current_snapshot(leaving)
            speeds = yield from look_up_speeds(snapshot.ranks, self.observer.speeds.rate_of)
            if snapshot.is_current(leaving.partition.table, leaving.rank):
                break
        return snapshot, speeds

    def _current_snapshot(self, leaving: MigrationSource) -> Generator[None, None, RankSnapshot]:
        """Return a rank snapshot, in steps; ranks of one worker share the snapshot."""
        table = leaving.partition.table
        for _ in range(LOOKS_MAX):
            if self._snapshot is not None and self._snapshot.is_current(table, leaving.rank):
                break
            self._snapshot = yield from take_rank_snapshot(table, leaving.rank, self._limits.links)
        assert self._snapshot is not None
        return self._snapshot

    def _make_movable(
        self, booking: ReservationView, partition: Partition, slots: TargetSlots
    ) -> tuple[MovableReservation, Mask | None]:
        """Return plan input and allowed targets; the mask is not stored, as all masks would need
        much memory.
        """
        name = booking.reservation_id
        wishes = self.observer.constraints.constraints_of(name)
        movable = make_movable(name, booking, wishes, partition.block_size)
        return movable, allowed_targets(wishes, partition, slots)

    def _plan_move(
        self,
        movable: MovableReservation,
        planning: MigrationPlan,
        partition: Partition,
        slots: TargetSlots,
    ) -> PlannedMove:
        """Plan the move with current overlaps and constraints."""
        wishes = self.observer.constraints.constraints_of(movable.id)
        overlap = match_overlap(wishes, partition, slots)
        return planning.plan_move(movable, overlap, allowed_targets(wishes, partition, slots))

    def _move_terms(self, leaving: MigrationSource) -> MoveTerms:
        layout = self._layout_of(leaving.partition.key, leaving.rank.worker_id)
        size = None if layout is None else layout.block_bytes_per_shard
        is_readable = leaving.cause in CACHE_READABLE_CAUSES
        limit_ms = self._limits.transfer_ms_max
        return MoveTerms(leaving.partition.block_size, size, is_readable, limit_ms)

    def _execute_move(
        self, leaving: MigrationSource, booking: ReservationView, tokens: int, move: PlannedMove
    ) -> bool:
        """Execute a move: booking and event. Return False if the target no longer serves well."""
        if move.target is not None:
            table = leaving.partition.table
            slot = table.find_slot(move.target)
            is_open = slot is not None and bool(table.open_slots[slot])
            if slot is None or not is_open or self._monitor.is_suspicious(move.target):
                return False
            to = self._targets.target_of(leaving.partition, move, tokens, slot)
            self._ledger.move(booking, to, self._now)
        tenant_id = leaving.partition.key.tenant_id
        self.move_log.append_move(move, leaving.rank, leaving.cause, tenant_id, self._now)
        self._count_move(leaving.rank, move)
        return True

    def _count_move(self, source: Rank, move: PlannedMove) -> None:
        target = None if move.target is None else move.target.worker_id
        between: MovedBetween = (source.worker_id, target, move.method)
        # Bounds the number of metric series.
        is_known = between in self._counts or len(self._counts) < PAIRS_MAX
        self._counts[between if is_known else (None, None, move.method)] += 1

    def add_watcher(self, callback: Callable[[], None]) -> None:
        """Register a function to call after each turn with moves; it must not block or call
        back.
        """
        self._watchers.add(callback)

    def remove_watcher(self, callback: Callable[[], None]) -> None:
        """Unregister the function."""
        self._watchers.discard(callback)

    def find_unconfirmed_move(self, reservation_id: str) -> MoveEvent | None:
        """Return the unconfirmed move of a reservation, or None."""
        event = self.move_log.latest_move_of(reservation_id)
        if event is None or event.target is None:
            return None
        reservations = self._ledger.reservations
        booking = reservations.find_reservation(reservation_id)
        if event.leg == "prefill" and reservation_id in reservations.legs:
            booking = reservations.find_reservation(prefill_leg_of(reservation_id))
        # A reservation booked after the event reuses the id; its client must not see the old move.
        is_it = booking is not None and booking.booked_at <= event.at
        return event if is_it and booking is not None and booking.rank == event.target else None

    def take_moved_leg(self, reservation_id: str, leg: LegName) -> bool:
        """Confirm the move of a leg of a pair; return False without such a move."""
        event = self.find_unconfirmed_move(reservation_id)
        if event is None or event.leg != leg:
            return False
        self.move_log.confirm_move(reservation_id, True)
        return True

    @property
    def has_moved(self) -> bool:
        """Whether clients may have to be notified of a move."""
        return bool(self.move_log)

    def notify_shutdown(self) -> None:
        """Notify all watchers at shutdown."""
        self.is_ending = True
        self._notify_watchers()

    def confirm_move(
        self, reservation_id: str, ok: bool, took_ms: float | None, now: float
    ) -> MoveConfirmation:
        """Confirm a move on behalf of the client. Raises NotFound.

        After a failed transfer the prompt is computed again on the same target. After a repeated
        prefill the prefill load is removed.
        """
        booking = self._ledger.reservations.get_reservation(reservation_id)
        confirmed = self.move_log.confirm_move(reservation_id, ok)
        if confirmed is None:
            raise NotFound(f"reservation {reservation_id} has no unconfirmed move")
        if ok and took_ms is not None:
            self._durations[confirmed.method].add(took_ms / 1000.0)
        # The confirmation shows that the client is alive, so the lease starts again.
        self._ledger.renew_lease(reservation_id, now)
        if ok and confirmed.method is MoveMethod.REPREFILL:
            self._ledger.complete_by_id(reservation_id, "client", now)
        elif not ok and confirmed.event.method is MoveMethod.TRANSFER:
            again = self._targets.repeated_prefill(self._partitions[booking.key], booking)
            self._ledger.move(booking, again, now)
        return confirmed

    def read_counters(self) -> MigrationCounters:
        """Return the counters, read-only."""
        return MigrationCounters(self._counts, self._n_given_up, self._durations)

    def run_every_second(self, now: float) -> None:
        """Drop expired events and data of models that left; call once a second."""
        self.move_log.drop_expired(now)
        self.observer.speeds.keep_only({key.model_name for key in self._partitions})

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        self.move_log.check_invariants()
        self.observer.check_invariants(b.reservation_id for b in self._ledger.reservations)


_FINISHED = object()
