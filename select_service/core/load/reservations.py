"""The table of reservations: id -> booking, over all partitions; leases, order, sums by origin.

A reservation is a lease: every lifecycle call renews it, and one that nobody renews for the time to
live expires, so that a client that died cannot hold load for ever.  That holds for the reservations
of other replicas too; `origin` says whose they are.  Only the ledger writes here.
"""

from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

from select_service.bodies.reservations import ReservationPage, ReservationRow
from select_service.core.load.booking import Booking
from select_service.core.load.leases import Leases
from select_service.core.load.origin_sums import OriginSums, mark_of
from select_service.core.load.shelves import Shelves
from select_service.errors import BadRequest, CapacityExceeded, NotFound

RESERVATIONS_MAX = 200_000
RESERVED_BLOCKS_MAX = 16_777_216
"""Prompt blocks of all live reservations: 8 bytes each here, and 88 in the load tables, of
whose rows up to two thirds are free."""
PAGE_SCAN_MAX = 10_000
"""Reservations looked at for one page of a filtered list; a page may be shorter than asked for."""
PAGE_HASHES_MAX = 32_768
"""Sequence hashes on one page that shows them; its last reservation may exceed it."""
ROW_HASHES_MAX = 131_072
"""Sequence hashes of one reservation, the first of its prompt."""
_SHARDS = 64
"""Dictionaries for the ids; each is small enough to grow at once."""
_SHELF_ORDERS = 1024


class ReservationFilter(NamedTuple):
    """What GET /reservations asks for.  `after` is the `next` of the page before."""

    model_name: str | None = None
    tenant_id: str | None = None
    worker_id: int | None = None
    limit: int = 100
    after: str | None = None
    sequence_hashes: bool = False

    def admits(self, booking: Booking) -> bool:
        in_scope = booking.key.within(self.model_name, self.tenant_id)
        return in_scope and self.worker_id in (None, booking.rank.worker_id)


class Reservations:
    """All live bookings.  The load they stand for is kept by their accounts."""

    def __init__(self, ttl_s: float, router_id: int = 0) -> None:
        """ttl_s: seconds without renewal after which a booking expires; 0 = never."""
        self._router_id = router_id
        self.sums = OriginSums()
        self._by_id: list[dict[str, Booking]] = [{} for _ in range(_SHARDS)]
        self._by_order = Shelves()
        self._leases = Leases(ttl_s)
        self._orders = count()
        self._count = 0
        self._blocks = 0
        self._prefilling = 0

    def __len__(self) -> int:
        return self._count

    @property
    def prefilling(self) -> int:
        return self._prefilling

    @property
    def blocks(self) -> int:
        return self._blocks

    def _shard(self, reservation_id: str) -> dict[str, Booking]:
        return self._by_id[hash(reservation_id) % _SHARDS]

    def find(self, reservation_id: str) -> Booking | None:
        return self._shard(reservation_id).get(reservation_id)

    def refuse_unless_room(self, blocks: int) -> None:
        """Raises CapacityExceeded when one more reservation of so many blocks does not fit."""
        if len(self) >= RESERVATIONS_MAX:
            raise CapacityExceeded(
                f"{RESERVATIONS_MAX} reservations are live, the most there may be"
            )
        if self._blocks + blocks > RESERVED_BLOCKS_MAX:
            raise CapacityExceeded(
                f"{self._blocks} prompt blocks are reserved, {blocks} more "
                f"would exceed the bound of {RESERVED_BLOCKS_MAX}"
            )

    def add(self, booking: Booking, now: float, lease_s: float | None = None) -> None:
        """Nobody has its id.  lease_s: a first lease that is shorter."""
        shard = self._shard(booking.reservation_id)
        assert booking.reservation_id not in shard
        booking.order = next(self._orders)
        booking.mark = mark_of(booking.reservation_id, booking.rank)
        shard[booking.reservation_id] = booking
        self._by_order.put(booking.order // _SHELF_ORDERS, booking)
        self._leases.begin(booking, now, lease_s)
        self._count += 1
        self._blocks += len(booking.sequence_hashes)
        self._prefilling += booking.prefilling
        self.sums.add(booking.key, booking.origin, booking.prefill_tokens, booking.mark)

    def renew(self, reservation_id: str, now: float) -> Booking:
        """Every lifecycle call passes here.  Raises NotFound."""
        booking = self.get(reservation_id)
        self._leases.renew(booking, now)
        return booking

    def prefill_complete(self, booking: Booking) -> int:
        """The prefill tokens that the booking gives back; 0 when it is repeated."""
        tokens, booking.prefill_tokens = booking.prefill_tokens, 0
        self._prefilling -= booking.prefilling
        booking.prefilling = False
        self.sums.complete_prefill(booking.key, booking.origin, tokens)
        return tokens

    def assign(self, booking: Booking, origin: int | None) -> None:
        """Another replica answers for the booking from now on."""
        self.sums.remove(booking.key, booking.origin, booking.prefill_tokens, booking.mark)
        booking.origin = origin
        self.sums.add(booking.key, booking.origin, booking.prefill_tokens, booking.mark)

    def remove(self, booking: Booking) -> None:
        del self._shard(booking.reservation_id)[booking.reservation_id]
        self._by_order.take(booking.order // _SHELF_ORDERS, booking)
        self._leases.forget(booking)
        self._count -= 1
        self._blocks -= len(booking.sequence_hashes)
        self._prefilling -= booking.prefilling
        self.sums.remove(booking.key, booking.origin, booking.prefill_tokens, booking.mark)

    def get(self, reservation_id: str) -> Booking:
        """Raises NotFound."""
        booking = self.find(reservation_id)
        if booking is None:
            raise NotFound(f"reservation {reservation_id} not found")
        return booking

    def overdue(self, now: float, at_most: int) -> list[Booking]:
        """Some whose lease has ended, the oldest first; they stay until they are removed."""
        return self._leases.overdue(now, at_most)

    def some(self, order: int, n: int) -> list[Booking]:
        """Up to `n` bookings from the one with that number of order on, oldest first."""
        return list(islice(self._from(order), n))

    def __iter__(self) -> Iterator[Booking]:
        """Oldest first."""
        return self._by_order.between()

    def row(self, reservation_id: str, now: float) -> ReservationRow:
        """One of them, for people.  Raises NotFound."""
        return self._row(self.get(reservation_id), now)

    def page(self, wanted: ReservationFilter, now: float) -> ReservationPage:
        """Oldest first.  Raises BadRequest for a cursor that no page has given."""
        first = _position(wanted.after)
        rows: list[ReservationRow] = []
        last, hashes = None, 0
        for scanned, booking in enumerate(self._from(first)):
            full = len(rows) == wanted.limit or hashes >= PAGE_HASHES_MAX
            if full or scanned == PAGE_SCAN_MAX:
                last = str(booking.order - 1)
                break
            if wanted.admits(booking):
                rows.append(self._row(booking, now))
                if wanted.sequence_hashes:
                    shown = booking.sequence_hashes[:ROW_HASHES_MAX].tolist()
                    rows[-1].sequence_hashes = shown
                    hashes += len(shown)
        return ReservationPage(
            reservations=rows, total=len(self), next=last, router_id=self._router_id
        )

    def _from(self, order: int) -> Iterator[Booking]:
        shelves = self._by_order.between(first=order // _SHELF_ORDERS)
        return (booking for booking in shelves if booking.order >= order)

    def _row(self, booking: Booking, now: float) -> ReservationRow:
        left = self._leases.end_of(booking) - now
        return ReservationRow(
            reservation_id=booking.reservation_id,
            model_name=booking.key.model_name,
            tenant_id=booking.key.tenant_id,
            worker_id=booking.rank.worker_id,
            dp_rank=booking.rank.dp_rank,
            block_size=booking.account.block_size,
            state="prefill" if booking.prefilling else "decode",
            isl_tokens=booking.isl_tokens,
            prompt_blocks=len(booking.sequence_hashes),
            output_blocks=booking.output_blocks,
            prefill_tokens=booking.prefill_tokens,
            age_seconds=round(now - booking.booked_at, 3),
            expires_in_seconds=round(max(0.0, left), 3) if self._leases.ttl_s else None,
            origin="local" if booking.origin is None else "peer",
            router_id=self._router_id if booking.origin is None else booking.origin,
        )

    def check_invariants(self) -> None:
        """For tests."""
        held = list(self)
        assert len(held) == self._count == sum(map(len, self._by_id))
        assert self._blocks == sum(len(b.sequence_hashes) for b in held)
        assert self._prefilling == sum(b.prefilling for b in held)
        assert [b.order for b in held] == sorted({b.order for b in held})
        for booking in held:
            assert self.find(booking.reservation_id) is booking
            assert booking.prefilling or booking.prefill_tokens == 0
            assert booking.mark == mark_of(booking.reservation_id, booking.rank)
        self._check_sums()
        self._leases.check_invariants(held)

    def _check_sums(self) -> None:
        sums = OriginSums()
        for b in self:
            sums.add(b.key, b.origin, b.prefill_tokens, b.mark)
        assert dict(sums.items()) == dict(self.sums.items())


def _position(after: str | None) -> int:
    if after is None:
        return 0
    if not after.isascii() or not after.isdigit() or len(after) > 18:
        raise BadRequest(f"after: `{after}` is not the `next` of a page")
    return int(after) + 1
