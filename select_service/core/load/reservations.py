"""The table of reservations: id -> booking, over all partitions; leases, order, sums by origin.

A reservation is a lease: every lifecycle call renews it, and one that nobody renews for the time to
live expires, so that a client that died cannot hold load for ever.  That holds for the reservations
of other replicas too; `origin` says whose they are.  Only the ledger writes here.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import NamedTuple

from sortedcontainers import SortedDict

from select_service.bodies.reservations import ReservationPage, ReservationRow
from select_service.core.load.booking import Booking
from select_service.core.load.origin_sums import OriginSums, mark_of
from select_service.errors import BadRequest, CapacityExceeded, NotFound

RESERVATIONS_MAX = 200_000
RESERVED_BLOCKS_MAX = 16_777_216
"""Prompt blocks of all live reservations: 8 bytes each here, and 88 in the load tables, of
whose rows up to two thirds are free."""
PAGE_SCAN_MAX = 10_000
"""Reservations looked at for one page of a filtered list; a page may be shorter than asked for."""
SHORT_LEASES_SPARE = 1024
STALE_LEASES_PER_LOOK_MAX = 1024
"""Short leases of reservations that have ended, dropped while one that is overdue is looked for."""
PAGE_HASHES_MAX = 32_768
"""Sequence hashes on one page that shows them; its last reservation may exceed it."""
ROW_HASHES_MAX = 131_072
"""Sequence hashes of one reservation, the first of its prompt."""


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
        self._ttl_s = ttl_s
        self._router_id = router_id
        self.sums = OriginSums()
        self._by_id: OrderedDict[str, Booking] = OrderedDict()  # least recently renewed first
        self._by_order: SortedDict[int, Booking] = SortedDict()
        self._short_leases: list[tuple[float, int, str]] = []  # heap; may name ended ones
        self._orders = count()
        self._blocks = 0
        self._prefilling = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def prefilling(self) -> int:
        return self._prefilling

    @property
    def blocks(self) -> int:
        return self._blocks

    def find(self, reservation_id: str) -> Booking | None:
        return self._by_id.get(reservation_id)

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
        assert booking.reservation_id not in self._by_id
        booking.order = next(self._orders)
        booking.renewed_at = now
        booking.mark = mark_of(booking.reservation_id, booking.rank)
        if lease_s is not None and lease_s < self._ttl_s:
            booking.lease_ends_at = now + lease_s
            self._note_short_lease(booking)
        self._by_id[booking.reservation_id] = booking
        self._by_order[booking.order] = booking
        self._blocks += len(booking.sequence_hashes)
        self._prefilling += booking.prefilling
        self.sums.add(booking.key, booking.origin, booking.prefill_tokens, booking.mark)

    def _note_short_lease(self, booking: Booking) -> None:
        """Ended reservations stay in the heap; it is made anew before they outnumber the others."""
        assert booking.lease_ends_at is not None
        entry = (booking.lease_ends_at, booking.order, booking.reservation_id)
        heappush(self._short_leases, entry)
        if len(self._short_leases) > 2 * len(self) + SHORT_LEASES_SPARE:
            self._short_leases = [
                (b.lease_ends_at, b.order, b.reservation_id)
                for b in [*self, booking]
                if b.lease_ends_at is not None
            ]
            heapify(self._short_leases)

    def renew(self, reservation_id: str, now: float) -> Booking:
        """Every lifecycle call passes here.  Raises NotFound."""
        booking = self.get(reservation_id)
        booking.renewed_at = now
        booking.lease_ends_at = None
        self._by_id.move_to_end(reservation_id)
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
        del self._by_id[booking.reservation_id]
        del self._by_order[booking.order]
        self._blocks -= len(booking.sequence_hashes)
        self._prefilling -= booking.prefilling
        self.sums.remove(booking.key, booking.origin, booking.prefill_tokens, booking.mark)

    def get(self, reservation_id: str) -> Booking:
        """Raises NotFound."""
        booking = self._by_id.get(reservation_id)
        if booking is None:
            raise NotFound(f"reservation {reservation_id} not found")
        return booking

    def overdue(self, now: float) -> Booking | None:
        """One whose lease has ended; it stays until it is removed."""
        if self._ttl_s == 0:
            return None
        for _ in range(min(len(self._short_leases), STALE_LEASES_PER_LOOK_MAX)):
            end, order, reservation_id = self._short_leases[0]
            if end > now:
                break
            booking = self._by_id.get(reservation_id)
            if booking is not None and booking.order == order and booking.lease_ends_at is not None:
                return booking
            heappop(self._short_leases)
        booking = next(iter(self._by_id.values()), None)
        if booking is None or booking.renewed_at + self._ttl_s > now:
            return None
        return booking

    def some(self, order: int, n: int) -> list[Booking]:
        """Up to `n` bookings from the one with that number of order on, oldest first."""
        return [booking for _, booking in islice(self._from(order), n)]

    def __iter__(self) -> Iterator[Booking]:
        return iter(self._by_id.values())

    def row(self, reservation_id: str, now: float) -> ReservationRow:
        """One of them, for people.  Raises NotFound."""
        return self._row(self.get(reservation_id), now)

    def page(self, wanted: ReservationFilter, now: float) -> ReservationPage:
        """Oldest first.  Raises BadRequest for a cursor that no page has given."""
        first = _position(wanted.after)
        rows: list[ReservationRow] = []
        last, hashes = None, 0
        for scanned, (order, booking) in enumerate(self._from(first)):
            full = len(rows) == wanted.limit or hashes >= PAGE_HASHES_MAX
            if full or scanned == PAGE_SCAN_MAX:
                last = str(order - 1)
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

    def _from(self, order: int) -> Iterator[tuple[int, Booking]]:
        for key in self._by_order.irange(minimum=order):
            yield key, self._by_order[key]

    def _row(self, booking: Booking, now: float) -> ReservationRow:
        end = booking.lease_ends_at
        left = (booking.renewed_at + self._ttl_s if end is None else end) - now
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
            output_blocks=booking.output.whole + booking.output.faded,
            prefill_tokens=booking.prefill_tokens,
            age_seconds=round(now - booking.booked_at, 3),
            expires_in_seconds=round(max(0.0, left), 3) if self._ttl_s else None,
            origin="local" if booking.origin is None else "peer",
            router_id=self._router_id if booking.origin is None else booking.origin,
        )

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._by_id) == len(self._by_order)
        assert self._blocks == sum(len(b.sequence_hashes) for b in self)
        assert self._prefilling == sum(b.prefilling for b in self)
        renewals = [b.renewed_at for b in self]
        assert renewals == sorted(renewals)
        for order, booking in self._by_order.items():
            assert booking.order == order
            assert self._by_id[booking.reservation_id] is booking
            assert booking.prefilling or booking.prefill_tokens == 0
            assert booking.mark == mark_of(booking.reservation_id, booking.rank)
        self._check_sums()
        leases = {(order, end) for end, order, _ in self._short_leases}
        assert all(b.lease_ends_at is None or (b.order, b.lease_ends_at) in leases for b in self)

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
