"""Application of events from other replicas.

Rules, in the order in which an event is judged:

* An own event that comes back, an event of an unknown partition, or of a partition with another
  block size changes nothing. No event creates a worker, a rank or a partition.
* `ReservationAdmitted` books the reservation on the named rank, marked with the admitting replica.
The event is ignored if the rank is unknown, the id is already booked on that rank, the reservation
was freed before (tombstones), or there is no room. If the id is booked on another rank, the
booking moves: the later event counts, and load is never booked twice.
* `PrefillCompleted` and `ReservationFreed` find a reservation by id, whichever replica admitted the
request. Events about unknown ids are remembered and override an admission that arrives late.

If one replica frees an id and another admits the same id, either the id is reused, which is
allowed, or the first admission arrived twice. The reservation is booked but marked unconfirmed.
Unconfirmed bookings count as a digest difference, so a repair against the admitting peer settles
them.

Events are neither answered nor forwarded: each replica sends own events to all others.
Bookings, completions and releases by our own clients are sent after `start_sending` was called.
Output blocks are not sent (too many), nor are expiry and departures of ranks: each replica has
leases and a catalog, and reaches the same state alone. Every booking is a lease of this process, so
a booking that no event ends expires.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal, TypeAlias, TypedDict

from indexer.hashing.block_hashing import Hashes
from select_service.base.errors import CapacityExceeded
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.ledger import Cause, Ledger
from select_service.core.load.new_reservation import (
    NewReservation,
    bound_hashes,
    count_untracked_blocks,
)
from select_service.core.load.prefill_legs import is_prefill_leg, owner_of
from select_service.core.load.reservation_view import ReservationView
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.partition import Partition
from select_service.core.replication.cleared_caches import ClearedCaches
from select_service.core.replication.digest import (
    Digest,
    LoadDifference,
    Receipt,
    find_differences,
    make_lines,
)
from select_service.core.replication.load_events import (
    LoadEvent,
    PrefillCompleted,
    ReservationAdmitted,
    ReservationFreed,
)
from select_service.core.replication.peer_agreement import PeerAgreement
from select_service.core.replication.prefill_progress import ProgressExchange
from select_service.core.replication.rank_shares import RankShares
from select_service.core.replication.replica_liveness import ReplicaLiveness
from select_service.core.replication.tombstones import Tombstones
from select_service.core.sessions.session_directory import SessionDirectory
from select_service.schemas.pairs import PairRecord

SENT_CAUSES = frozenset(("client", "moved", "given_up", "pair_ended"))
"""Causes of changes that are sent to peers."""
UNCONFIRMED_MAX = 1024
"""Most unconfirmed bookings; beyond this limit a repeated admission is trusted at once."""

IgnoreReason: TypeAlias = Literal[
    "own",
    "unknown_partition",
    "unknown_rank",
    "block_size",
    "known",
    "freed_before",
    "not_booked",
    "capacity",
    "stale",
]
"""Reason why an event or digest had no effect.

not_booked: the reservation is unknown here, and the id is remembered; stale: a later digest came
first
"""


class _Common(TypedDict):
    """Common fields of all events."""

    model_name: str
    tenant_id: str
    block_size: int
    reservation_id: str
    rank: Rank
    router_id: int


class ReplicaState:
    """Bookings on behalf of other replicas."""

    def __init__(self, fleet: WorkerFleet, ledger: Ledger, router_id: int) -> None:
        self.router_id = router_id
        self.reservations = ledger.reservations
        self.ledger = ledger
        self.tombstones = Tombstones()
        self.liveness = ReplicaLiveness(router_id)
        self.shares = RankShares(fleet.partitions, self.liveness, router_id)
        self.progress = ProgressExchange(
            fleet.partitions, self.reservations, self.liveness, router_id
        )
        self.cleared_caches = ClearedCaches(router_id)
        self.sessions: SessionDirectory | None = None
        """Sessions, which reservations of peers hold too; None without any."""
        self.on_leg_booked: Callable[[str, str], None] | None = None
        """Receiver of the prefill legs of peers: id of the reservation, and tenant."""
        self.on_pair_booked: Callable[[Partition, str, PairRecord, Hashes], None] | None = None
        """Receiver of the pairs of peers: id of the reservation, request and block hashes."""
        self.unconfirmed: dict[str, ReservationView] = {}
        self._emit: Callable[[LoadEvent], None] | None = None
        self._fleet = fleet

    def start_sending(self, emit: Callable[[LoadEvent], None]) -> None:
        """Follow the ledger, and send changes by our clients to other replicas from now on.

        emit: must not block, raise or call back
        """
        if self._emit is None:
            self.ledger.add_listener(self)
        self._emit = emit

    def may_apply(self, event: LoadEvent) -> bool:
        """Return whether applying the event is a bounded step now; if not, retry in the next
        turn.
        """
        partition = self._fleet.partitions.get(event.key)
        if partition is None or not isinstance(event, ReservationAdmitted):
            return True
        return self.ledger.may_book(partition.account.load, len(event.sequence_hashes))

    def apply_event(self, event: LoadEvent, now: float) -> IgnoreReason | None:
        """Apply an event of a peer. Return None if applied, else the reason why not."""
        if event.router_id == self.router_id:
            return "own"
        self.liveness.record_event(event.router_id, now)
        partition = self._fleet.partitions.get(event.key)
        if partition is None:
            return "unknown_partition"
        # Block counts of another size would be load in other units.
        if partition.block_size != event.block_size:
            return "block_size"
        if isinstance(event, ReservationAdmitted):
            return self._apply_admitted(partition, event, now)
        if isinstance(event, PrefillCompleted):
            return self._apply_prefill_completed(event, now)
        return self._apply_freed(event, now)

    def make_digest(
        self, number: int, sent: int, port: int, url: str | None, receipts: Sequence[Receipt] = ()
    ) -> Digest:
        """Return the digest of the current state, to be sent after all earlier events."""
        lines, own_only = make_lines(self.reservations.sums, self.router_id)
        return Digest(
            router_id=self.router_id,
            number=number,
            sent=sent,
            port=port,
            url=url,
            heard=list(receipts),
            own_only=own_only,
            lines=lines,
        )

    def compare_digest(
        self, digest: Digest, agreement: PeerAgreement, now: float
    ) -> IgnoreReason | None:
        """Record the differences from the sender in `agreement`; changes no load."""
        if digest.router_id == self.router_id:
            return "own"
        if not agreement.is_new(digest):
            return "stale"
        self.liveness.record_digest(digest.router_id, now)
        found = find_differences(
            digest,
            self.reservations.sums,
            self.router_id,
            lambda origin: self.liveness.is_orphan(origin, now),
        )
        for booking in self._remaining_unconfirmed():
            if booking.origin == digest.router_id:
                old = found.get(booking.key, LoadDifference())
                found[booking.key] = old._replace(reservations=old.reservations + 1)
        agreement.record_digest(digest, found)
        return None

    def _remaining_unconfirmed(self) -> list[ReservationView]:
        """Return unconfirmed bookings that still exist."""
        self.unconfirmed = {
            name: booking
            for name, booking in self.unconfirmed.items()
            if self.reservations.find_reservation(name) == booking
        }
        return list(self.unconfirmed.values())

    def _apply_admitted(
        self, partition: Partition, event: ReservationAdmitted, now: float
    ) -> IgnoreReason | None:
        slot = partition.table.find_slot(event.rank)
        if slot is None:
            return "unknown_rank"
        old = self.reservations.find_reservation(event.reservation_id)
        # A duplicate, or our own repair was faster than the event.
        if old is not None and (old.account, old.slot) == (partition.account, slot):
            return "known"
        early = self.tombstones.early_ending_of(event.reservation_id, now)
        if early == "freed_early":
            return "freed_before"
        if old is not None and event.move_tokens:
            self._yield_to(old, event.router_id)
        booking = NewReservation(
            reservation_id=event.reservation_id,
            account=partition.account,
            rank=partition.table.row_at(slot).rank,
            slot=slot,
            sequence_hashes=bound_hashes(event.sequence_hashes),
            # Only events of pairs have the length of the prompt; else whole blocks are an estimate.
            isl_tokens=len(event.sequence_hashes) * event.block_size
            if event.pair is None
            else event.pair.isl_tokens,
            prefill_tokens=0 if early else event.prefill_tokens,
            booked_at=now,
            origin=event.router_id,
            tracks_prefill=event.track_prefill_tokens,
            is_prefilling=early is None,
            untracked_blocks=count_untracked_blocks(len(event.sequence_hashes)),
            own_work=event.work,
            block_hashes=event.block_hashes,
        )
        if not self.book_reservation(booking, now):
            return "capacity"
        self.lease_session(event.reservation_id, event.session_id, now)
        if event.pair is not None:
            self.receive_pair(partition, event.reservation_id, event.pair, event.block_hashes)
        ending = self.tombstones.ending_of(event.reservation_id, now)
        overtaken = ending is not None and ending.by != event.router_id
        # Freed by one replica and admitted by another: either a reused id or a late duplicate.
        if overtaken and len(self.unconfirmed) < UNCONFIRMED_MAX:
            self.unconfirmed[event.reservation_id] = self.reservations.get_reservation(
                event.reservation_id
            )
        else:
            self.tombstones.remove_tombstone(event.reservation_id)
        return None

    def _apply_prefill_completed(self, event: PrefillCompleted, now: float) -> IgnoreReason | None:
        booking = self.reservations.find_reservation(event.reservation_id)
        if booking is None or booking.key != event.key:
            self.tombstones.record_prefilled_early(event.reservation_id, event.router_id, now)
            return "not_booked"
        self.ledger.complete_by_id(event.reservation_id, "replica", now)
        return None

    def _apply_freed(self, event: ReservationFreed, now: float) -> IgnoreReason | None:
        booking = self.reservations.find_reservation(event.reservation_id)
        if booking is None or booking.key != event.key:
            self.tombstones.record_freed_early(event.reservation_id, event.router_id, now)
            return "not_booked"
        if not event.by_caller:
            self._yield_to(booking, event.router_id)
        self.ledger.release(booking, "replica", now, is_report=event.by_caller)
        # A copy of the admission may still arrive, by the network or by a repair.
        self.tombstones.record_freed(event.reservation_id, event.router_id, now)
        return None

    def _yield_to(self, booking: ReservationView, router_id: int) -> None:
        """Let a peer that moves a reservation of this process answer for the reservation.

        The prefill leg of a pair continues there.
        """
        if booking.origin is None:
            self.ledger.assign_origin(booking, router_id)

    def receive_pair(
        self, partition: Partition, reservation_id: str, pair: PairRecord, blocks: Hashes
    ) -> None:
        """Enter the request behind a pair that a peer booked.

        blocks: uint64[n], block hashes of the prompt; empty if the peer did not send them
        """
        # The record of a leg would never be removed, since only the end of a pair does that.
        if self.on_pair_booked is not None and not is_prefill_leg(reservation_id):
            self.on_pair_booked(partition, reservation_id, pair, blocks)

    def is_successor_of(self, router_id: int, now: float) -> bool:
        """Return whether this process acts for a replica that is gone."""
        live = self.liveness.live_replicas(now)
        return self.liveness.is_orphan(router_id, now) and self.router_id < min(live, default=inf)

    def book_reservation(
        self, booking: NewReservation, now: float, lease_s: float | None = None
    ) -> bool:
        """Book, replacing a booking with the same id. Return False without changes if there is no
        room.
        """
        old = self.reservations.find_reservation(booking.reservation_id)
        # The replaced booking releases its blocks, so only the difference needs room.
        freed = 0 if old is None else old.prompt_blocks
        try:
            self.reservations.check_room(max(0, len(booking.sequence_hashes) - freed))
            self.ledger.book(booking, "replica", now, lease_s)
        except (CapacityExceeded, MemoryError):
            return False
        name = booking.reservation_id
        if is_prefill_leg(name) and self.on_leg_booked is not None:
            self.on_leg_booked(owner_of(name), booking.key.tenant_id)
        return True

    def lease_session(self, reservation_id: str, session_id: str | None, now: float) -> None:
        """Give a reservation that a peer admitted a lease of the session, if any."""
        if session_id is not None and self.sessions is not None:
            booking = self.reservations.get_reservation(reservation_id)
            self.sessions.lease_received(booking, session_id, now)

    def count_ranks(self) -> int:
        """Return the number of ranks that accept reservations."""
        return sum(len(partition.table) for partition in self._fleet.partitions.values())

    def partition_of(self, key: PartitionKey) -> Partition | None:
        return self._fleet.partitions.get(key)

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        if not self._is_sent(booking.origin, cause):
            return
        self.tombstones.remove_tombstone(booking.reservation_id)
        # As in Dynamo, a missing number means that nothing is to be prefilled.
        tokens = (booking.prefill_tokens or None) if booking.tracks_prefill else None
        self.send_event(
            ReservationAdmitted(
                **self._common_fields(booking),
                lora_name=booking.lora_name,
                sequence_hashes=booking.sequence_hashes,
                prefill_tokens_hint=tokens,
                track_prefill_tokens=booking.tracks_prefill,
                expected_output_tokens=booking.expected_output_tokens,
                work=_work_to_send(booking),
                session_id=self._session_of(booking, cause),
                block_hashes=booking.block_hashes,
                move_tokens=0 if booking.pair is None else booking.pair.move_tokens,
                pair=booking.pair,
            )
        )

    def _session_of(self, booking: NewReservation, cause: Cause) -> str | None:
        """Return the session of a booking, also of a move, where the booking names none."""
        if cause != "moved" or self.sessions is None:
            return booking.session_id
        moved = self.reservations.find_reservation(booking.reservation_id)
        return None if moved is None else self.sessions.session_id_of(moved)

    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None:
        if self._is_sent(booking.origin, cause):
            self.send_event(PrefillCompleted(**self._common_fields(booking)))

    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None:
        if self._is_sent(booking.origin, cause):
            self.tombstones.record_freed(booking.reservation_id, self.router_id, now)
            self.send_event(
                ReservationFreed(**self._common_fields(booking), by_caller=cause == "client")
            )

    @staticmethod
    def _is_sent(origin: int | None, cause: Cause) -> bool:
        # Clients may free at any replica, but moves are reported by the admitting replica alone.
        return cause == "client" or (cause in SENT_CAUSES and origin is None)

    def _common_fields(self, booking: ReservationView | NewReservation) -> _Common:
        return {
            "model_name": booking.key.model_name,
            "tenant_id": booking.key.tenant_id,
            "block_size": booking.account.block_size,
            "reservation_id": booking.reservation_id,
            "rank": booking.rank,
            "router_id": self.router_id,
        }

    def send_event(self, event: LoadEvent) -> None:
        """Send an event to the peers, if sending is enabled."""
        if self._emit is not None:
            self._emit(event)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        self.tombstones.check_invariants()
        self.liveness.check_invariants()


def _work_to_send(booking: NewReservation) -> int | None:
    """Return the work to send; None if receivers derive the same number themselves."""
    tells = booking.tracks_prefill and booking.prefill_work != max(1, booking.prefill_tokens)
    return booking.prefill_work if tells else None
