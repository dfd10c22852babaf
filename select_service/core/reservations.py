"""Reservations: id -> booking, over all partitions; their states, their leases, their order.

A reservation is a lease: every lifecycle call renews it, and one that nobody renews for the time to
live expires, so that a client that died cannot hold load for ever.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import OutputBlocks
from select_service.errors import BadRequest, CapacityExceeded, Conflict, NotFound
from select_service.schema import ReservationPage, ReservationRow

RESERVATIONS_MAX = 200_000
RESERVED_BLOCKS_MAX = 16_777_216
"""Prompt blocks of all live reservations: 8 bytes each here, about 40 in the load tables."""
PAGE_SCAN_MAX = 10_000
"""Reservations looked at for one page of a filtered list; a page may be shorter than asked for."""


@dataclass(slots=True)
class Booking:
    """Load of one live reservation.  `slot` belongs to the partition of `key`."""

    reservation_id: str
    key: PartitionKey
    rank: Rank
    slot: int
    sequence_hashes: npt.NDArray[np.uint64]
    isl_tokens: int
    prefill_tokens: int
    booked_at: float
    output: OutputBlocks = field(default_factory=OutputBlocks)
    prefilling: bool = True
    order: int = -1
    renewed_at: float = 0.0


class ReservationFilter(NamedTuple):
    """What GET /reservations asks for.  `after` is the `next` of the page before."""

    model_name: str | None = None
    tenant_id: str | None = None
    worker_id: int | None = None
    limit: int = 100
    after: str | None = None

    def admits(self, booking: Booking) -> bool:
        in_scope = booking.key.within(self.model_name, self.tenant_id)
        return in_scope and self.worker_id in (None, booking.rank.worker_id)


class Reservations:
    """All live bookings.  The load they stand for is kept by their partitions."""

    def __init__(self, ttl_s: float) -> None:
        """ttl_s: seconds without renewal after which a booking expires; 0 = never."""
        self._ttl_s = ttl_s
        self._by_id: OrderedDict[str, Booking] = OrderedDict()  # least recently renewed first
        self._by_order: SortedDict[int, Booking] = SortedDict()
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

    def refuse_unless_free(self, reservation_id: str) -> None:
        """Raises Conflict when the id is in use, in whatever partition."""
        held = self._by_id.get(reservation_id)
        if held is not None:
            raise Conflict(
                f"reservation {reservation_id} already exists "
                f"(worker {held.rank.worker_id} dp_rank {held.rank.dp_rank})"
            )

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

    def add(self, booking: Booking) -> None:
        """Cannot fail after the two refusals above."""
        assert booking.reservation_id not in self._by_id
        booking.order = next(self._orders)
        booking.renewed_at = booking.booked_at
        self._by_id[booking.reservation_id] = booking
        self._by_order[booking.order] = booking
        self._blocks += len(booking.sequence_hashes)
        self._prefilling += booking.prefilling

    def renew(self, reservation_id: str, now: float) -> Booking:
        """Every lifecycle call passes here.  Raises NotFound."""
        booking = self._by_id.get(reservation_id)
        if booking is None:
            raise NotFound(f"reservation {reservation_id} not found")
        booking.renewed_at = now
        self._by_id.move_to_end(reservation_id)
        return booking

    def prefill_complete(self, booking: Booking) -> int:
        """The prefill tokens that the booking gives back; 0 when it is repeated."""
        tokens, booking.prefill_tokens = booking.prefill_tokens, 0
        self._prefilling -= booking.prefilling
        booking.prefilling = False
        return tokens

    def remove(self, reservation_id: str) -> Booking:
        """Raises NotFound."""
        booking = self._by_id.pop(reservation_id, None)
        if booking is None:
            raise NotFound(f"reservation {reservation_id} not found")
        del self._by_order[booking.order]
        self._blocks -= len(booking.sequence_hashes)
        self._prefilling -= booking.prefilling
        return booking

    def overdue(self, now: float) -> list[str]:
        """Ids whose lease has ended, least recently renewed first."""
        if self._ttl_s == 0:
            return []
        ended = []
        for reservation_id, booking in self._by_id.items():
            if booking.renewed_at + self._ttl_s > now:
                break
            ended.append(reservation_id)
        return ended

    def on_ranks(self, ranks: set[Rank]) -> list[str]:
        """Ids booked on any of the ranks.  O(reservations): ranks leave seldom."""
        return [booking.reservation_id for booking in self if booking.rank in ranks]

    def __iter__(self) -> Iterator[Booking]:
        return iter(self._by_id.values())

    def page(self, wanted: ReservationFilter, now: float) -> ReservationPage:
        """Oldest first.  Raises BadRequest for a cursor that no page has given."""
        first = _position(wanted.after)
        rows: list[ReservationRow] = []
        last = None
        for scanned, (order, booking) in enumerate(self._from(first)):
            if len(rows) == wanted.limit or scanned == PAGE_SCAN_MAX:
                last = str(order - 1)
                break
            if wanted.admits(booking):
                rows.append(self._row(booking, now))
        return ReservationPage(reservations=rows, total=len(self), next=last)

    def _from(self, order: int) -> Iterator[tuple[int, Booking]]:
        for key in self._by_order.irange(minimum=order):
            yield key, self._by_order[key]

    def _row(self, booking: Booking, now: float) -> ReservationRow:
        left = booking.renewed_at + self._ttl_s - now
        return ReservationRow(
            reservation_id=booking.reservation_id,
            model_name=booking.key.model_name,
            tenant_id=booking.key.tenant_id,
            worker_id=booking.rank.worker_id,
            dp_rank=booking.rank.dp_rank,
            state="prefill" if booking.prefilling else "decode",
            isl_tokens=booking.isl_tokens,
            prompt_blocks=len(booking.sequence_hashes),
            output_blocks=booking.output.whole + booking.output.faded,
            prefill_tokens=booking.prefill_tokens,
            age_seconds=round(now - booking.booked_at, 3),
            expires_in_seconds=round(max(0.0, left), 3) if self._ttl_s else None,
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


def _position(after: str | None) -> int:
    if after is None:
        return 0
    if not after.isascii() or not after.isdigit() or len(after) > 18:
        raise BadRequest(f"after: `{after}` is not the `next` of a page")
    return int(after) + 1
