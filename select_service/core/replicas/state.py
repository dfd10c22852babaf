"""What the events of other replicas change here.

The contract, in the order in which an event is judged:

* An event of our own that comes back, of an unknown partition, or of a partition with another block
  size changes nothing.  No event creates a worker, a rank or a partition.
* `Admitted` books the reservation on its rank, marked with the replica that admitted it.  It is
  ignored when the rank is unknown, when the id is booked on that rank already, when the
  reservation was freed before (`endings`), or when there is no room.  When the id is booked on
  another rank the booking moves: the later word counts, and load is never booked twice.
* `PrefillCompleted` and `Freed` find a reservation by its id, whoever admitted it.  For an unknown
  id they are remembered, so that they win over an admission that comes late.

An id that one replica freed and another admits again is either used again, which is allowed, or its
first admission came twice.  It is booked, and doubted: doubt counts as a difference from the peer
that admitted it, whose list then tells (`replica_repair`).

Nothing is answered and nothing is passed on: each replica speaks for itself to all others.  What
our own clients book, complete and free is told to them once `tell` has been called; output blocks
are not told (they are too many), and neither are expiry and the leaving of a rank: each replica has
leases and a catalog of its own, and comes to the same end by itself.
Every booking is a lease of this process, so what no event ends, time does.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypedDict

from select_service.core.fleet.fleet import Fleet
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.booking import NewBooking, bounded, nameless
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger import Cause, Ledger
from select_service.core.replicas.agreement import Agreement
from select_service.core.replicas.digest import (
    Difference,
    Digest,
    Receipt,
    differences,
    lines_of,
)
from select_service.core.replicas.endings import Endings
from select_service.core.replicas.events import Admitted, Freed, LoadEvent, PrefillCompleted
from select_service.core.replicas.origins import Origins
from select_service.core.replicas.progress import ProgressExchange
from select_service.core.replicas.shares import Shares
from select_service.errors import CapacityExceeded

TOLD = frozenset(("client", "moved", "given_up"))
"""Causes of changes that peers are told of."""
DOUBTED_MAX = 1024
"""Beyond it an id that is admitted again is believed at once."""

Reason: TypeAlias = Literal[
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
"""Why an event or digest changed nothing.  not_booked: its reservation is not here, which is
remembered; stale: a later digest came before."""


class _Common(TypedDict):
    """The fields that all events have."""

    model_name: str
    tenant_id: str
    block_size: int
    reservation_id: str
    rank: Rank
    router_id: int


class ReplicaState:
    """Books and ends reservations on behalf of other replicas."""

    def __init__(self, fleet: Fleet, ledger: Ledger, router_id: int) -> None:
        self.router_id = router_id
        self.held = ledger.held
        self.ledger = ledger
        self.endings = Endings()
        self.origins = Origins(router_id)
        self.shares = Shares(fleet.partitions, self.origins, router_id)
        self.progress = ProgressExchange(fleet.partitions, self.held, self.origins, router_id)
        self.doubted: dict[str, Booking] = {}
        self._emit: Callable[[LoadEvent], None] | None = None
        self._fleet = fleet

    def tell(self, emit: Callable[[LoadEvent], None]) -> None:
        """Follow the ledger, and tell other replicas of what our clients do from now on.

        emit: must not block, raise or call back
        """
        if self._emit is None:
            self.ledger.follow(self)
        self._emit = emit

    def may_apply(self, event: LoadEvent) -> bool:
        """Is following an event of a peer a bounded step now?  If not, ask in the next turn."""
        partition = self._fleet.partitions.get(event.key)
        if partition is None or not isinstance(event, Admitted):
            return True
        return self.ledger.may_book(partition.account.load, len(event.sequence_hashes))

    def apply(self, event: LoadEvent, now: float) -> Reason | None:
        """Follow an event of a peer.  None when it was followed, else why nothing changed."""
        if event.router_id == self.router_id:
            return "own"
        self.origins.heard_event(event.router_id, now)
        partition = self._fleet.partitions.get(event.key)
        if partition is None:
            return "unknown_partition"
        if partition.block_size != event.block_size:
            return "block_size"
        if isinstance(event, Admitted):
            return self._admitted(partition, event, now)
        if isinstance(event, PrefillCompleted):
            return self._prefill_completed(event, now)
        return self._freed(event, now)

    def digest(
        self, number: int, sent: int, port: int, url: str | None, heard: Sequence[Receipt] = ()
    ) -> Digest:
        """What we hold now, to be sent behind the events that led to it."""
        lines, own_only = lines_of(self.held.sums, self.router_id)
        return Digest(
            router_id=self.router_id,
            number=number,
            sent=sent,
            port=port,
            url=url,
            heard=list(heard),
            own_only=own_only,
            lines=lines,
        )

    def compare(self, digest: Digest, agreement: Agreement, now: float) -> Reason | None:
        """Note in `agreement` how far the sender and we are apart; changes no load."""
        if digest.router_id == self.router_id:
            return "own"
        if not agreement.is_new(digest):
            return "stale"
        self.origins.heard_digest(digest.router_id, now)
        found = differences(
            digest,
            self.held.sums,
            self.router_id,
            lambda origin: self.origins.is_orphan(origin, now),
        )
        for booking in self._still_doubted():
            if booking.origin == digest.router_id:
                old = found.get(booking.key, Difference())
                found[booking.key] = old._replace(reservations=old.reservations + 1)
        agreement.digest_came(digest, found)
        return None

    def _still_doubted(self) -> list[Booking]:
        """Doubted bookings that are still held."""
        self.doubted = {
            name: booking
            for name, booking in self.doubted.items()
            if self.held.find(name) == booking
        }
        return list(self.doubted.values())

    def _admitted(self, partition: Partition, event: Admitted, now: float) -> Reason | None:
        slot = partition.table.find(event.rank)
        if slot is None:
            return "unknown_rank"
        old = self.held.find(event.reservation_id)
        if old is not None and (old.account, old.slot) == (partition.account, slot):
            return "known"
        early = self.endings.met_by_admission(event.reservation_id, now)
        if early == "freed_early":
            return "freed_before"
        booking = NewBooking(
            reservation_id=event.reservation_id,
            account=partition.account,
            rank=partition.table.row(slot).rank,
            slot=slot,
            sequence_hashes=bounded(event.sequence_hashes),
            isl_tokens=len(event.sequence_hashes) * event.block_size,
            prefill_tokens=0 if early else event.prefill_tokens,
            booked_at=now,
            origin=event.router_id,
            tracks_prefill=event.track_prefill_tokens,
            prefilling=early is None,
            nameless=nameless(len(event.sequence_hashes)),
            own_work=event.work,
        )
        if not self.book(booking, now):
            return "capacity"
        ending = self.endings.ending_of(event.reservation_id, now)
        overtaken = ending is not None and ending.by != event.router_id
        if overtaken and len(self.doubted) < DOUBTED_MAX:
            self.doubted[event.reservation_id] = self.held.get(event.reservation_id)
        else:
            self.endings.forget(event.reservation_id)
        return None

    def _prefill_completed(self, event: PrefillCompleted, now: float) -> Reason | None:
        booking = self.held.find(event.reservation_id)
        if booking is None or booking.key != event.key:
            self.endings.prefilled_unknown(event.reservation_id, event.router_id, now)
            return "not_booked"
        self.ledger.complete(event.reservation_id, "replica", now)
        return None

    def _freed(self, event: Freed, now: float) -> Reason | None:
        booking = self.held.find(event.reservation_id)
        if booking is None or booking.key != event.key:
            self.endings.freed_unknown(event.reservation_id, event.router_id, now)
            return "not_booked"
        self.ledger.release(booking, "replica", now, is_report=event.by_caller)
        self.endings.freed(event.reservation_id, event.router_id, now)
        return None

    # --- changes that repair makes too

    def book(self, booking: NewBooking, now: float, lease_s: float | None = None) -> bool:
        """Book it in the place of whatever has its id.  False, and no change, without room."""
        old = self.held.find(booking.reservation_id)
        freed = 0 if old is None else old.prompt_blocks
        try:
            self.held.refuse_unless_room(max(0, len(booking.sequence_hashes) - freed))
            self.ledger.book(booking, "replica", now, lease_s)
        except (CapacityExceeded, MemoryError):
            return False
        return True

    def n_ranks(self) -> int:
        """Ranks that reservations may be booked on."""
        return sum(len(partition.table) for partition in self._fleet.partitions.values())

    def partition_of(self, key: PartitionKey) -> Partition | None:
        return self._fleet.partitions.get(key)

    # --- what our clients do, as a follower of the ledger

    def booked(self, booking: NewBooking, cause: Cause, now: float) -> None:
        if not self._is_told(booking.origin, cause):
            return
        self.endings.forget(booking.reservation_id)
        tokens = booking.prefill_tokens if booking.tracks_prefill else None
        self.say(
            Admitted(
                **self._common(booking),
                lora_name=booking.lora_name,
                sequence_hashes=booking.sequence_hashes,
                prefill_tokens_hint=tokens,
                track_prefill_tokens=booking.tracks_prefill,
                expected_output_tokens=booking.expected_output_tokens,
                work=_work_to_tell(booking),
            )
        )

    def prefill_completed(self, booking: Booking, cause: Cause, now: float) -> None:
        if self._is_told(booking.origin, cause):
            self.say(PrefillCompleted(**self._common(booking)))

    def released(self, booking: Booking, cause: Cause, now: float) -> None:
        if self._is_told(booking.origin, cause):
            self.endings.freed(booking.reservation_id, self.router_id, now)
            self.say(Freed(**self._common(booking), by_caller=cause == "client"))

    @staticmethod
    def _is_told(origin: int | None, cause: Cause) -> bool:
        return cause == "client" or (cause in TOLD and origin is None)

    def _common(self, booking: Booking | NewBooking) -> _Common:
        return {
            "model_name": booking.key.model_name,
            "tenant_id": booking.key.tenant_id,
            "block_size": booking.account.block_size,
            "reservation_id": booking.reservation_id,
            "rank": booking.rank,
            "router_id": self.router_id,
        }

    def say(self, event: LoadEvent) -> None:
        """Tell the peers, if anybody is to be told."""
        if self._emit is not None:
            self._emit(event)

    def check_invariants(self) -> None:
        """For tests."""
        self.endings.check_invariants()
        self.origins.check_invariants()


def _work_to_tell(booking: NewBooking) -> int | None:
    """None: others think of the same work without being told."""
    tells = booking.tracks_prefill and booking.work != max(1, booking.prefill_tokens)
    return booking.work if tells else None
