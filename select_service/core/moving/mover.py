"""Carries out what health asks for: reservations move to other ranks, or are given up.

A job is one rank to be left.  It goes on a bounded number of reservations a turn, one after the
other; each move is one step in the ledger and one event.  Only what this process has admitted is
moved here: whose it is moves the rest, and both hear of it as of every booking.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import Floats, Mask
from select_service.core.fleet.partition import Partition
from select_service.core.health.effects import Effect, MovesAsked, ReleaseAsked, Reset
from select_service.core.health.kinds import READABLE, Kind
from select_service.core.health.migration import Movable, Move, Planning, turn_of
from select_service.core.health.monitor import HealthMonitor
from select_service.core.health.move_cost import KvLayout, Method, MoveTerms
from select_service.core.health.moves import Confirmed, MoveEvent, Moves
from select_service.core.histogram import Histogram
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger import Ledger
from select_service.core.load.moving import MoveTo
from select_service.core.moving.learnt import Learnt
from select_service.core.moving.movables import Slots, allowed_of, movable_of, overlap_of
from select_service.core.moving.targets import Standing, speeds_of, standing, targets_of
from select_service.core.touched import Touched
from select_service.errors import NotFound

PER_TURN = 200
"""Reservations that are looked at, or given up, before others get their turn."""
MOVED_PER_TURN = 40
"""Those that are moved: two bookings each, some 50 us where nothing of it is in the caches."""
PAIRS_MAX = 512
"""Pairs of workers whose moves are counted by themselves: the first ones."""
TARGETS_USUAL = 2048
"""Where there are more, fewer are moved in a turn: all of them are looked at for each."""
PLANNED_MAX = 4096
"""Reservations in one plan; more are moved by a second one behind it."""
LOOKS_MAX = 4
"""At who stands where, for one plan; after that somebody comes or goes all the time."""

Places = npt.NDArray[np.int64]
"""[n, 2], of `Reservations.places_on`."""
MOVING = Method.TRANSFER, Method.REPREFILL
DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

LayoutOf = Callable[[PartitionKey, int], KvLayout | None]
"""Of the cache of a worker; None: unknown, and nothing is carried over."""


class Leaving(NamedTuple):
    """A rank that is to be left, and why.  slot: its own, as long as the partition is this one"""

    partition: Partition
    rank: Rank
    slot: int
    cause: Kind

    @property
    def is_over(self) -> bool:
        """Does it serve again, so that the rest may stay, or has it gone?"""
        table = self.partition.table
        return table.find(self.rank) != self.slot or bool(table.open[self.slot])


MovedBetween: TypeAlias = tuple[int | None, int | None, Method]


class MoveCounts(NamedTuple):
    """Since the start.

    moves:    by worker that was left (None: many), worker that took it (None: nobody) and method
    given_up: reservations that were released, since their rank did not come back
    durations: in seconds, of those that callers have confirmed, by method
    """

    moves: Counter[MovedBetween]
    given_up: int
    durations: Mapping[Method, Histogram]

    def copied(self) -> "MoveCounts":
        """So that another thread may read it."""
        durations = {method: held.copy() for method, held in self.durations.items()}
        return MoveCounts(self.moves.copy(), self.given_up, durations)


class Mover:
    """Belongs to the event loop."""

    def __init__(
        self,
        monitor: HealthMonitor,
        partitions: Mapping[PartitionKey, Partition],
        ledger: Ledger,
        learnt: Learnt,
        layout_of: LayoutOf,
        touched: Touched,
        *,
        tracks_prefill: bool = True,
        begin: int = 0,
    ) -> None:
        """tracks_prefill: do prompts that have to be computed again count as load?
        begin: of the numbers of events, see Moves
        """
        self.moves = Moves(begin)
        self._monitor = monitor
        self._partitions = partitions
        self._ledger = ledger
        self.learnt = learnt
        self._layout_of = layout_of
        self._touched = touched
        self._tracks_prefill = tracks_prefill
        self._jobs: dict[Rank, Iterator[None]] = {}
        self._stands: Standing | None = None
        """What the last plan saw."""
        self._given_up: deque[Places] = deque()
        self._counts: Counter[MovedBetween] = Counter()
        self._n_given_up = 0
        self._durations = {method: Histogram(DURATION_BOUNDS_S) for method in MOVING}
        self._now = 0.0
        self.is_ending = False
        self._watchers: set[Callable[[], None]] = set()

    # --- what health asks for

    def follow(self, effect: Effect, now: float) -> None:
        """Note what an effect asks for; of a rank that has gone, nothing."""
        if isinstance(effect, Reset):
            self.learnt.pace.forget(effect.rank)
        if isinstance(effect, MovesAsked | ReleaseAsked):
            found = self._known(effect.rank)
            if found is not None and isinstance(effect, MovesAsked):
                self.ask(*found)
            elif found is not None:
                self.give_up(found[0], effect.rank)

    def _known(self, rank: Rank) -> tuple[PartitionKey, Rank, Kind] | None:
        try:
            key, cause = self._monitor.checked(rank).key, self._monitor.record(rank).cause
        except KeyError:
            return None
        return key, rank, cause or Kind.OPERATOR

    def ask(self, key: PartitionKey, rank: Rank, cause: Kind) -> None:
        """Move what is booked on a rank; again while that is being done changes nothing."""
        leaving = self._leaving(key, rank, cause)
        if leaving is not None and rank not in self._jobs:
            self._jobs[rank] = self._move_all(leaving)
            self._touched.wake_if(self._jobs)

    def give_up(self, key: PartitionKey, rank: Rank) -> None:
        """Release what is booked on a rank at this moment, in the next turns."""
        leaving = self._leaving(key, rank, Kind.FATAL)
        if leaving is not None:
            held = self._ledger.held
            self._given_up.append(held.places_on(leaving.partition.account, leaving.slot))
            self._touched.wake_if(self._given_up)

    def _leaving(self, key: PartitionKey, rank: Rank, cause: Kind) -> Leaving | None:
        partition = self._partitions.get(key)
        slot = None if partition is None else partition.table.find(rank)
        if partition is None or slot is None:
            return None
        return Leaving(partition, rank, slot, cause)

    # --- turns

    @property
    def is_busy(self) -> bool:
        """Is there something left to do?"""
        return bool(self._jobs or self._given_up)

    def settle(self, now: float) -> None:
        """One turn; wakes whoever calls it while there is more to do."""
        self._now = now
        before = self.moves.next
        if self._given_up:
            self._release_some()
        elif self._jobs:
            rank, job = next(iter(self._jobs.items()))
            if next(job, _OVER) is _OVER:
                del self._jobs[rank]
        if self.moves.next != before:
            self._tell()
        self._touched.wake_if(self._jobs)
        self._touched.wake_if(self._given_up)

    def _tell(self) -> None:
        for tell in list(self._watchers):
            tell()

    def _release_some(self) -> None:
        places = self._given_up.popleft()
        if len(places) > PER_TURN:
            self._given_up.appendleft(places[PER_TURN:])
        for booking in self._ours(places[:PER_TURN]):
            self._ledger.release(booking, "given_up", self._now)
            self._n_given_up += 1

    def _ours(self, places: Places) -> Iterator[Booking]:
        """Those that are still there, and ours to decide about."""
        for row, order in places.tolist():
            booking = self._ledger.held.still(row, order)
            if booking is not None and booking.origin is None:
                yield booking

    # --- one rank

    def _move_all(self, leaving: Leaving) -> Iterator[None]:
        """Gives the event loop back at each yield."""
        places = self._ledger.held.places_on(leaving.partition.account, leaving.slot)
        for begin in range(0, len(places), PLANNED_MAX):
            yield from self._move_some(leaving, places[begin : begin + PLANNED_MAX])

    def _move_some(self, leaving: Leaving, places: Places) -> Iterator[None]:
        """One plan, and another one for those whose targets have gone meanwhile."""
        partition = leaving.partition
        known, speeds = yield from self._looked(leaving)
        there = targets_of(partition, known, leaving.rank, speeds)
        planning = Planning(there, self._terms(leaving))
        found: list[tuple[Movable, Booking]] = []
        for begin in range(0, len(places), PER_TURN):
            for booking in self._ours(places[begin : begin + PER_TURN]):
                movable, allowed = self._movable(booking, partition, known.slots)
                planning.consider(movable, allowed)
                found.append((movable, booking))
            yield
        found.sort(key=lambda each: turn_of(each[0]))
        a_turn = max(1, MOVED_PER_TURN * TARGETS_USUAL // max(TARGETS_USUAL, len(known.ranks)))
        stranded = []
        for number, (movable, booking) in enumerate(found, 1):
            while not self._ledger.may_book(partition.account.load, booking.n_named):
                yield
            if leaving.is_over:
                return
            if self._ledger.held.is_live(booking):
                move = self._move_of(movable, planning, partition, known.slots)
                is_done = self._carry_out(leaving, booking, movable.tokens, move)
                stranded += [] if is_done else [(booking.row, booking.order)]
            if number % a_turn == 0:
                yield
        if stranded:
            yield from self._move_some(leaving, np.array(stranded, np.int64))

    def _looked(self, leaving: Leaving) -> Generator[None, None, tuple[Standing, Floats]]:
        """In steps.  Where the ranks are and how fast each is."""
        for _ in range(LOOKS_MAX):
            known = yield from self._standing(leaving)
            speeds = yield from speeds_of(known.ranks, self.learnt.pace.rate_of)
            if known.holds(leaving.partition.table, leaving.rank):
                break
        return known, speeds

    def _standing(self, leaving: Leaving) -> Generator[None, None, Standing]:
        """In steps.  Ranks of one worker that leave together see the same."""
        table = leaving.partition.table
        for _ in range(LOOKS_MAX):
            if self._stands is not None and self._stands.holds(table, leaving.rank):
                break
            self._stands = yield from standing(table, leaving.rank)
        assert self._stands is not None
        return self._stands

    def _movable(
        self, booking: Booking, partition: Partition, slots: Slots
    ) -> tuple[Movable, Mask | None]:
        """And where it may go, which is not kept: for all at once it would be much."""
        name = booking.reservation_id
        wishes = self.learnt.wishes.of(name)
        movable = movable_of(name, booking, wishes, partition.block_size)
        return movable, allowed_of(wishes, partition, slots)

    def _move_of(
        self, movable: Movable, planning: Planning, partition: Partition, slots: Slots
    ) -> Move:
        """By what it may and has at the targets now."""
        wishes = self.learnt.wishes.of(movable.id)
        overlap = overlap_of(wishes, partition, slots)
        return planning.move(movable, overlap, allowed_of(wishes, partition, slots))

    def _terms(self, leaving: Leaving) -> MoveTerms:
        layout = self._layout_of(leaving.partition.key, leaving.rank.worker_id)
        size = None if layout is None else layout.block_bytes_per_shard
        return MoveTerms(leaving.partition.block_size, size, leaving.cause in READABLE)

    def _carry_out(self, leaving: Leaving, booking: Booking, tokens: int, move: Move) -> bool:
        """One move: the booking, and its event.  False if its target does not serve any more."""
        if move.target is not None:
            table = leaving.partition.table
            slot = table.find(move.target)
            if slot is None or not table.open[slot]:
                return False
            to = self._move_to(leaving.partition, move, tokens, slot)
            self._ledger.move(booking, to, self._now)
        tenant_id = leaving.partition.key.tenant_id
        self.moves.add(move, leaving.rank, leaving.cause, tenant_id, self._now)
        target = None if move.target is None else move.target.worker_id
        between: MovedBetween = (leaving.rank.worker_id, target, move.method)
        is_known = between in self._counts or len(self._counts) < PAIRS_MAX
        self._counts[between if is_known else (None, None, move.method)] += 1
        return True

    def _move_to(self, partition: Partition, move: Move, tokens: int, slot: int) -> MoveTo:
        assert move.target is not None
        overlap = move.overlap_blocks
        if move.method is Method.TRANSFER:
            return MoveTo(move.target, slot, cached_blocks=overlap)
        tokens = max(0, tokens - overlap * partition.block_size)
        return self._recomputed(partition, move.id, move.target, slot, tokens, overlap)

    def _recomputed(
        self,
        partition: Partition,
        reservation_id: str,
        target: Rank,
        slot: int,
        tokens: int,
        overlap: int,
    ) -> MoveTo:
        """Its prefill begins anew there."""
        if not self._tracks_prefill:
            return MoveTo(target, slot)
        follows = partition.placing.policy.follows
        prompt = self.learnt.wishes.of(reservation_id).block_hashes if follows else None
        return MoveTo(target, slot, tokens, overlap, prompt)

    # --- callers

    def watch(self, tell: Callable[[], None]) -> None:
        """Call it after each turn that has moved something; it must not block or call back."""
        self._watchers.add(tell)

    def unwatch(self, tell: Callable[[], None]) -> None:
        """Call it no more."""
        self._watchers.discard(tell)

    def moved(self, reservation_id: str) -> MoveEvent | None:
        """Where a reservation is that has moved and whose move has not been confirmed."""
        event = self.moves.of(reservation_id)
        if event is None or event.target is None:
            return None
        booking = self._ledger.held.find(reservation_id)
        is_it = booking is not None and booking.booked_at <= event.at
        return event if is_it and booking is not None and booking.rank == event.target else None

    @property
    def has_moved(self) -> bool:
        """Is there a move that a caller may have to be told of?"""
        return bool(self.moves)

    def end(self) -> None:
        """The service ends: whoever waits is told."""
        self.is_ending = True
        self._tell()

    def confirmed(
        self, reservation_id: str, ok: bool, took_ms: float | None, now: float
    ) -> Confirmed:
        """Its caller says how the move went.

        After a transfer that failed the prompt is computed again on the same target; a prompt that
        was computed again is no load any more.  Raises NotFound.
        """
        booking = self._ledger.held.get(reservation_id)
        confirmed = self.moves.confirmed(reservation_id, ok)
        if confirmed is None:
            raise NotFound(f"reservation {reservation_id} has no move that is to be confirmed")
        if ok and took_ms is not None:
            self._durations[confirmed.method].add(took_ms / 1000.0)
        self._ledger.renew(reservation_id, now)
        if ok and confirmed.method is Method.REPREFILL:
            self._ledger.complete(reservation_id, "client", now)
        elif not ok and confirmed.event.method is Method.TRANSFER:
            self._compute_again(booking, now)
        return confirmed

    def _compute_again(self, booking: Booking, now: float) -> None:
        partition = self._partitions[booking.key]
        tokens = booking.isl_tokens + partition.block_size * booking.output_blocks
        name, overlap = booking.reservation_id, 0
        hashes = self.learnt.wishes.of(name).block_hashes
        if len(hashes):
            overlap = int(partition.index.match(hashes)[booking.slot, -1])
        tokens = max(0, tokens - overlap * partition.block_size)
        to = self._recomputed(partition, name, booking.rank, booking.slot, tokens, overlap)
        self._ledger.move(booking, to, now)

    def counts(self) -> MoveCounts:
        """To be read only."""
        return MoveCounts(self._counts, self._n_given_up, self._durations)

    def tick(self, now: float) -> None:
        """Once a second: events that are too old go, and what is known of models that have gone."""
        self.moves.forget(now)
        self.learnt.pace.keep_only({key.model_name for key in self._partitions})

    def check_invariants(self) -> None:
        """For tests."""
        self.moves.check_invariants()
        self.learnt.check_invariants(b.reservation_id for b in self._ledger.held)


_OVER = object()
