"""Booked pairs: a reservation with two legs, and the tokens still to be moved between the legs.

The decode leg is the reservation of the caller.  The prefill leg is a second reservation, under a
name that no caller can use: replication, digests and leaving ranks need no second way, and peers
without pairs count both legs.  Everything that ends a leg works by name, so a call at any replica
ends both legs everywhere.  A follower of the ledger may not change load, so the end of a prefill
leg waits for the next turn.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from select_service.core.decision_maker import PlacementRequest
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.load.compiled.ledger_entry_kernels import observe_first_token
from select_service.core.load.ledger import Cause, Ledger
from select_service.core.load.new_reservation import NewReservation
from select_service.core.load.prefill_legs import is_prefill_leg, owner_of, prefill_leg_of
from select_service.core.load.reservation_view import ReservationView
from select_service.core.pairs.pair_placer import PairPlacer, TransferRoute
from select_service.core.pairs.stored_pair import StoredPair
from select_service.core.workers.transfer_prices import TransferLevel
from select_service.schemas.pairs import PairSelection, SelectPairAndReserveRequest

UNREPORTED_MOVE_S = 2.0
"""Seconds after the end of a prefill for which a transfer counts without a first token."""
EXPIRED_PER_TURN = 256
"""Transfers forgotten per turn, about a microsecond each."""
LEGS_PER_TURN = 64
"""Prefill legs released per turn, some microseconds each."""
LOSSES = frozenset[Cause](("rank_left", "given_up"))
"""Ends of a prefill leg of which the caller has to learn."""
_CAUSES_OF_LEGS: Mapping[Cause, Cause] = {
    "replica": "client",
    "rank_left": "pair_ended",
    "given_up": "pair_ended",
}
"""Causes for a prefill leg that differ from those of its reservation: the end must reach replicas
that may not know the reservation, and the leg's own rank is alive.
"""
ORPHAN_S = 60.0
"""Seconds for which a prefill leg may be without the decode leg, above the time in which replicas
agree: the event that ended the prefill leg was lost, or the booking replica is gone.
"""
EXAMINED_S = 5.0
"""Seconds between two examinations of all legs, EXAMINED_PER_TURN in a turn."""
EXAMINED_PER_TURN = 512


class BookedTransfer(msgspec.Struct, frozen=True):
    """Tokens of a booked pair that move from the prefill to the decode rank.

    level: smallest place that both ranks share
    predicted_s: seconds of the move by the price; None where no speed is declared
    ends_at: seconds at which the transfer is forgotten; None until the prefill has ended
    """

    placer: PairPlacer
    route: TransferRoute
    tokens: float
    level: TransferLevel = "network"
    predicted_s: float | None = None
    ends_at: float | None = None


@dataclass
class TransferCounts:
    """Counters of transfers since the start.

    moved: tokens of this process's transfers, by level
    first_tokens, unreported: transfers that ended by a first token, or after UNREPORTED_MOVE_S
    measured: transfers with a prediction and a reported end of the prefill before the first token
    predicted_s, observed_s: seconds of these
    """

    moved: Counter[TransferLevel] = field(default_factory=Counter)
    first_tokens: int = 0
    unreported: int = 0
    measured: int = 0
    predicted_s: float = 0.0
    observed_s: float = 0.0


class BookedPair(NamedTuple):
    """Pair, from the booking to the end of the reservation.

    job: request behind the pair, without token lists; the prompt is kept as hashes
    answer: answer about the present ranks, some 2 KB; None if a peer has booked or moved a leg
    known_tokens: tokens that move, for pairs without an answer
    """

    job: PlacementRequest
    answer: PairSelection | None
    known_tokens: int = 0

    @property
    def move_tokens(self) -> int:
        """Tokens that move between the legs; 0 if both are on the same rank."""
        return self.known_tokens if self.answer is None else self.answer.move_tokens

    @property
    def is_migratable(self) -> bool:
        """Whether the selector may move a leg without being asked."""
        request = self.job.request
        return not isinstance(request, SelectPairAndReserveRequest) or request.migratable


class EndedLeg(NamedTuple):
    """Prefill leg to be released.

    is_computed: whether the prefill was reported, so that the prefill load ends before the leg
    """

    cause: Cause
    is_computed: bool


class PairBook:
    """Book of pairs and of all prefill legs.  Follows the ledger only while there are any."""

    def __init__(self, ledger: Ledger, dirty: DirtyPartitions) -> None:
        self._ledger = ledger
        self._dirty = dirty
        self.legs = ledger.reservations.legs
        """Reservations with a prefill leg, including the peers'."""
        self._pairs: dict[str, BookedPair | StoredPair] = {}
        """Pairs of this process and of peers; pairs of the fast path are restored when needed."""
        self._transfers: dict[str, BookedTransfer] = {}
        """Transfers that count, by reservation, including the peers'."""
        self._ending: dict[str, None] = {}
        """Reservations with an ended prefill, in this order, while the transfers count."""
        self._ended_legs: dict[str, EndedLeg] = {}
        """Prefill legs to be released, by the id of the reservation."""
        self.lost_legs: dict[str, None] = {}
        """Pairs that lost their prefill leg with a rank, until the leg moves or the pair ends."""
        self.is_successor_of: Callable[[int, float], bool] = lambda router_id, now: False
        """Returns whether this process acts for a replica that is gone."""
        self.is_replica_gone: Callable[[int, float], bool] = lambda router_id, now: False
        """Returns whether a replica has sent nothing for long."""
        self.loss_watchers: list[Callable[[], None]] = []
        """Receivers of the loss of a leg, which must not change load."""
        self._orphan_since: dict[str, float] = {}
        """Prefill legs without a decode leg, with the seconds at which this was first seen."""
        self._to_examine: list[str] = []
        self._next_examination = 0.0
        self._is_following = False
        self.counts = TransferCounts()
        ledger.renews_lease = self._renew_leg

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._pairs)

    @property
    def n_transfers(self) -> int:
        """Number of pairs that are moving blocks."""
        return len(self._transfers)

    def add_pair(
        self, reservation_id: str, pair: BookedPair, transfer: BookedTransfer | None
    ) -> None:
        """Enter a pair that was just booked, or of which a leg has moved."""
        self._follow()
        self._pairs[reservation_id] = pair
        self.lost_legs.pop(reservation_id, None)
        # After a move of a leg this ends the transfer over the previous route, too.
        self.set_transfer(reservation_id, transfer)
        if transfer is not None:
            self.counts.moved[transfer.level] += round(transfer.tokens)

    def learn_pair(self, reservation_id: str, pair: BookedPair) -> None:
        """Enter a pair that a peer has booked."""
        self._follow()
        self._pairs[reservation_id] = pair

    def waiting_tokens(self, reservation_id: str) -> int:
        """Return the tokens of a transfer before the end of its prefill."""
        transfer = self._transfers.get(reservation_id)
        return 0 if transfer is None or transfer.ends_at is not None else round(transfer.tokens)

    def add_new_pair(
        self, reservation_id: str, pair: StoredPair, transfer: BookedTransfer | None
    ) -> None:
        """Enter a pair of the fast path that was just booked, and the prefill leg.

        The same as `add_leg` and `add_pair` under an id of which nothing is left here; the kernel
        has added the tokens to the links already.
        """
        if not self._is_following:
            self._follow()
        self._pairs[reservation_id] = pair
        if transfer is not None:
            self.legs.add(reservation_id, pair.partition.key.tenant_id)
            self._transfers[reservation_id] = transfer
            self.counts.moved[transfer.level] += round(transfer.tokens)

    def set_transfer(self, reservation_id: str, transfer: BookedTransfer | None) -> None:
        """Replace the transfer of a live pair, booked here or by a peer."""
        self._end_transfer(reservation_id)
        if transfer is not None:
            self._follow()
            self._transfers[reservation_id] = transfer
            transfer.placer.add_transfer(transfer.route, transfer.tokens)

    def add_leg(self, reservation_id: str, tenant_id: str) -> None:
        """Enter a prefill leg that was just booked, here or by a peer."""
        self._follow()
        self.legs.add(reservation_id, tenant_id)
        self.lost_legs.pop(reservation_id, None)

    def _follow(self) -> None:
        if not self._is_following:
            self._ledger.add_listener(self, needs_bookings=False, needs_moves=False)
            self._is_following = True

    def find_pair(self, reservation_id: str) -> BookedPair | None:
        """Return the pair of a reservation, or None."""
        pair = self._pairs.get(reservation_id)
        if isinstance(pair, StoredPair):
            pair = BookedPair(pair.restore_job(), pair.restore_answer())
            self._pairs[reservation_id] = pair
        return pair

    def report_first_token(self, reservation_id: str, now: float) -> None:
        """End the transfer of a pair, and count the first token; repeating changes nothing."""
        booking = self._ledger.find_active(reservation_id)
        if booking is not None:
            self._observe_first_token(booking, now)
        transfer, counts = self._transfers.get(reservation_id), self.counts
        if transfer is None:
            return
        if transfer.ends_at is None and booking is not None:
            # Peers know the first token as a second end of the prefill.
            self._ledger.complete_prefill(booking, "client", now)
        counts.first_tokens += 1
        if transfer.ends_at is not None and transfer.predicted_s is not None:
            counts.measured += 1
            counts.predicted_s += transfer.predicted_s
            counts.observed_s += now - (transfer.ends_at - UNREPORTED_MOVE_S)
        self._end_transfer(reservation_id)

    def _observe_first_token(self, booking: ReservationView, now: float) -> None:
        observe_first_token(self._ledger.reservations.memory.header, booking.row, now)

    def _end_transfer(self, reservation_id: str) -> None:
        self._ending.pop(reservation_id, None)
        ended = self._transfers.pop(reservation_id, None)
        if ended is not None:
            ended.placer.add_transfer(ended.route, -ended.tokens)

    def _renew_leg(self, booking: ReservationView, now: float) -> bool:
        """Renew an overdue prefill leg of a live reservation: both legs share a lease."""
        name = booking.reservation_id
        if not is_prefill_leg(name):
            return False
        owner = self._ledger.find_active(owner_of(name))
        if owner is None or owner.lease_ends_at <= now:
            return False
        self._ledger.renew_lease(name, now)
        return True

    # Notifications of the ledger

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        """Ignore bookings: the booking code enters pairs and legs."""

    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None:
        """Release the prefill leg in the next turn; the transfer goes on until the first token."""
        name = booking.reservation_id
        self.lost_legs.pop(name, None)
        transfer = self._transfers.get(name)
        if transfer is not None and transfer.ends_at is None:
            ends_at = now + UNREPORTED_MOVE_S
            self._transfers[name] = msgspec.structs.replace(transfer, ends_at=ends_at)
            self._ending[name] = None
        elif cause == "replica":
            # Peers send the first token as another end of the prefill.
            self._observe_first_token(booking, now)
            self._end_transfer(name)
        self._end_leg_soon(booking, cause, now, is_computed=True)

    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None:
        """Forget a leg, or a pair with its transfer: the next turn releases the leg."""
        name = booking.reservation_id
        if is_prefill_leg(name):
            owner = owner_of(name)
            self.legs.discard(owner)
            self._ended_legs.pop(owner, None)
            self._orphan_since.pop(owner, None)
            if cause in LOSSES and owner in self._pairs:
                self.lost_legs[owner] = None
                for notify in self.loss_watchers:
                    notify()
            transfer = self._transfers.get(owner)
            if transfer is not None and transfer.ends_at is None and cause != "replica":
                # The rank is gone: nothing will come from there.
                self._end_transfer(owner)
            return
        self._end_transfer(name)
        self._pairs.pop(name, None)
        self.lost_legs.pop(name, None)
        self._end_leg_soon(booking, cause, now, is_computed=False)

    def _end_leg_soon(
        self, booking: ReservationView, cause: Cause, now: float, *, is_computed: bool
    ) -> None:
        """Release the prefill leg of a reservation in the next turn, if this process has to.

        A peer that receives the report about a reservation of this process forwards the change; a
        peer that knows pairs ends the leg too, and the later end finds nothing.
        """
        name = booking.reservation_id
        if name not in self.legs or self._is_ended_by_peer(booking, cause, now):
            return
        ended = EndedLeg(_CAUSES_OF_LEGS.get(cause, cause), is_computed)
        # The first end counts: a release behind a reported prefill does not make it unreported.
        self._ended_legs.setdefault(name, ended)
        self._dirty.request_turn_if(self._ended_legs)

    def _is_ended_by_peer(self, booking: ReservationView, cause: Cause, now: float) -> bool:
        """Return whether a peer's reservation ends or moves there, so that its events name the leg.

        A rank may have left here only, while the pair lives on.
        """
        origin = booking.origin
        if origin is None:
            return False
        return cause == "replica" or (
            cause == "rank_left" and not self.is_replica_gone(origin, now)
        )

    # Pending work

    def release_left_leg(self, reservation_id: str, now: float) -> None:
        """Release a leg under an id that is booked again, and is free but for the leg.

        Either the pair has ended here and the prefill leg not yet, or the decode leg is lost: with
        the rank, or with the replica that booked both legs.
        """
        self.release_ended_leg(reservation_id, now)
        leg = self._ledger.find_active(prefill_leg_of(reservation_id))
        # No report: the caller repeats the request and did not end the leg.
        if leg is not None:
            self._ledger.release(leg, "client", now, is_report=False)

    def release_ended_leg(self, reservation_id: str, now: float) -> None:
        """Release the leg of an ended pair, if any."""
        if (ended := self._ended_legs.pop(reservation_id, None)) is None:
            return
        leg = self._ledger.find_active(prefill_leg_of(reservation_id))
        if leg is None:
            return
        if ended.is_computed:
            # Otherwise the release would look like a prefill without a reported end.
            self._ledger.complete_by_id(leg.reservation_id, ended.cause, now)
        self._ledger.release(leg, ended.cause, now)

    def run_turn(self, now: float) -> None:
        """Release the prefill legs of ended prefills, up to the budget of a turn."""
        for _ in range(min(LEGS_PER_TURN, len(self._ended_legs))):
            self.release_ended_leg(next(iter(self._ended_legs)), now)
        self._dirty.request_turn_if(self._ended_legs)
        if self._is_following and not self._has_pairs():
            # Without pairs every booking would pay for notifications that change nothing.
            self._ledger.remove_listener(self)
            self._is_following = False

    def release_orphans(self, now: float) -> bool:
        """Release prefill legs that have been without a decode leg for long.

        The replica that booked a leg ends the leg everywhere; if that replica is gone, the first
        replica to notice does.  Otherwise repairs would restore the leg from other replicas.
        Returns whether another turn is needed.
        """
        if not self._to_examine and now >= self._next_examination:
            self._to_examine, self._next_examination = list(self.legs), now + EXAMINED_S
        for _ in range(min(EXAMINED_PER_TURN, len(self._to_examine))):
            self._examine_leg(self._to_examine.pop(), now)
        return bool(self._to_examine)

    def _examine_leg(self, name: str, now: float) -> None:
        if name not in self.legs:
            return
        if self._ledger.find_active(name) is not None:
            self._orphan_since.pop(name, None)
            return
        if now < self._orphan_since.setdefault(name, now) + ORPHAN_S:
            return
        leg = self._ledger.find_active(prefill_leg_of(name))
        # A live replica may know the decode leg, and ends the prefill leg itself.
        if leg is not None and (leg.origin is None or self.is_replica_gone(leg.origin, now)):
            self._ledger.release(leg, "client", now, is_report=False)

    def _has_pairs(self) -> bool:
        return bool(self._pairs or self.legs or self._transfers or self._ended_legs)

    def expire_transfers(self, now: float) -> bool:
        """Forget transfers without a first token in time, once a second.

        Returns whether more are due, so that another turn is needed.
        """
        for _ in range(EXPIRED_PER_TURN):
            name = next(iter(self._ending), None)
            if name is None or (self._transfers[name].ends_at or 0.0) > now:
                return False
            self._end_transfer(name)
            self.counts.unreported += 1
        return True

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        for name in self._pairs.keys() | self._transfers.keys():
            assert self._ledger.reservations.find_reservation(name) is not None, name
        for name, transfer in self._transfers.items():
            assert (name in self._ending) == (transfer.ends_at is not None)
        assert self._transfers.keys() >= self._ending.keys()
        assert self._is_following or not self._has_pairs()
        booked = {
            owner_of(booking.reservation_id)
            for booking in self._ledger.reservations
            if is_prefill_leg(booking.reservation_id)
        }
        assert set(self.legs) == booked
        assert self._ended_legs.keys() <= booked
        assert self.lost_legs.keys() <= self._pairs.keys() - booked
        assert self._orphan_since.keys() <= booked
