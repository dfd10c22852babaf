"""The table of reservations: id -> booking, over all partitions; leases, order, sums by origin.

A reservation is a lease: every lifecycle call renews it, and one that nobody renews for the time to
live expires, so that a client that died cannot hold load for ever.  That holds for the reservations
of other replicas too; `origin` says whose they are.  Only the ledger writes here.
"""

from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.hashing.seeds import U64_MASK
from select_service.bodies.reservations import ReservationPage, ReservationRow
from select_service.core.load import ledger_call_kernels as calls
from select_service.core.load import ledger_kernels as kernels
from select_service.core.load import ledger_layout as layout
from select_service.core.load import load_layout
from select_service.core.load.booking import Account
from select_service.core.load.held_booking import Booking, Rows
from select_service.core.load.ledger_memory import (
    RESERVATIONS_MAX,
    RESERVED_BLOCKS_MAX,
)
from select_service.core.load.origin_sums import Place
from select_service.errors import BadRequest, CapacityExceeded, NotFound

PAGE_SCAN_MAX = 10_000
"""Reservations looked at for one page of a filtered list; a page may be shorter than asked for."""
PAGE_HASHES_MAX = 32_768
"""Sequence hashes on one page that shows them; its last reservation may exceed it."""
ROW_HASHES_MAX = 131_072
"""Sequence hashes of one reservation, the first of its prompt."""


class ReservationFilter(NamedTuple):
    """What GET /reservations asks for.  `after` is the `next` of the page before.

    tenants: those whose reservations may be seen; None: all
    """

    model_name: str | None = None
    tenant_id: str | None = None
    worker_id: int | None = None
    limit: int = 100
    after: str | None = None
    sequence_hashes: bool = False
    tenants: frozenset[str] | None = None

    def admits(self, booking: Booking) -> bool:
        key = booking.key
        if self.tenants is not None and key.tenant_id not in self.tenants:
            return False
        in_scope = key.within(self.model_name, self.tenant_id)
        return in_scope and self.worker_id in (None, booking.rank.worker_id)


class Reservations:
    """All live bookings.  The load they stand for is kept by their accounts."""

    def __init__(self, ttl_s: float, router_id: int = 0) -> None:
        """ttl_s: seconds without renewal after which a booking expires; 0 = never."""
        self.ttl_s = ttl_s
        self.rows = Rows(ttl_s)
        self.memory, self.sums = self.rows.memory, self.rows.sums
        self._router_id = router_id

    def __len__(self) -> int:
        return self.memory.numbers[layout.COUNT]

    @property
    def prefilling(self) -> int:
        return self.memory.numbers[layout.PREFILLING]

    @property
    def blocks(self) -> int:
        return self.memory.numbers[layout.N_BLOCKS]

    # --- one of them

    def find(self, reservation_id: str) -> Booking | None:
        row = calls.find(self.memory.header, reservation_id.encode())
        return self.at(row) if row else None

    def get(self, reservation_id: str) -> Booking:
        """Raises NotFound."""
        booking = self.find(reservation_id)
        if booking is None:
            raise not_found(reservation_id)
        return booking

    def at(self, row: int, name: str | None = None) -> Booking:
        """name: its id, where that is at hand; else it is read when it is asked for"""
        return Booking(self.rows, row, name)

    def is_live(self, booking: Booking) -> bool:
        """Has it not been released since the view was made?"""
        return int(self.memory.orders[booking.row]) == booking.order

    def refuse_unless_room(self, blocks: int) -> None:
        """Raises CapacityExceeded when one more reservation of so many blocks does not fit."""
        if len(self) >= RESERVATIONS_MAX:
            raise CapacityExceeded(
                f"{RESERVATIONS_MAX} reservations are live, the most there may be"
            )
        if self.blocks + blocks > RESERVED_BLOCKS_MAX:
            raise CapacityExceeded(
                f"{self.blocks} prompt blocks are reserved, {blocks} more "
                f"would exceed the bound of {RESERVED_BLOCKS_MAX}"
            )

    # --- many of them

    def overdue(self, now: float, at_most: int) -> list[Booking]:
        """Some whose lease has ended, the oldest first; they stay until they are removed.

        O(1) until a lease may have ended, then O(reservations), some 0.1 ms.
        """
        memory = self.memory
        times = memory.header.view(np.float64)
        if times[layout.NEXT_END] > now:
            return []
        ends = memory.ends[: memory.numbers[layout.ROWS_USED]]
        rows = np.flatnonzero(ends <= now)
        if not len(rows):
            times[layout.NEXT_END] = ends.min()
            return []
        if len(rows) > at_most:
            rows = rows[np.argpartition(ends[rows], at_most)[:at_most]]
        rows = rows[np.lexsort((memory.orders[rows], ends[rows]))]
        return [self.at(row) for row in rows.tolist()]

    def on_slot(self, account: Account, slot: int) -> Iterator[Booking]:
        """What is booked on a slot, newest first.  One may be released when the next is taken."""
        row = int(account.load.newest[slot])
        while row:
            older = self.memory.fields[row * layout.FIELDS + layout.AFTER_ON_SLOT]
            yield self.at(row)
            row = older

    def places_on(self, account: Account, slot: int) -> npt.NDArray[np.int64]:
        """int64[n, 2], oldest first: what is booked on a slot now, for `still`.

        O(reservations), some milliseconds at most
        """
        memory, n_rows = self.memory, self.memory.numbers[layout.ROWS_USED]
        fields = np.frombuffer(memory.fields, np.int64).reshape(-1, layout.FIELDS)[:n_rows]
        orders = memory.orders[:n_rows]
        is_here = (orders != layout.FREE) & (fields[:, layout.SLOT] == slot)
        rows = np.flatnonzero(is_here)
        rows = rows[fields[rows, layout.LOAD] == account.load.header.ctypes.data]
        found = np.stack([rows, orders[rows]], axis=1)
        return found[found[:, 1].argsort()]

    def still(self, row: int, order: int) -> Booking | None:
        """One of `places_on`, if it has not ended or moved since."""
        return self.at(row) if int(self.memory.orders[row]) == order else None

    def some(self, order: int, n: int) -> list[Booking]:
        """Up to `n` bookings from the one with that number of order on, oldest first."""
        return list(islice(self._from(order), n))

    def __iter__(self) -> Iterator[Booking]:
        """Oldest first; nothing may change meanwhile."""
        return self._from(0)

    def _from(self, order: int) -> Iterator[Booking]:
        row = kernels.first_from(self.memory.header, order)
        while row:
            yield self.at(row)
            row = self.memory.fields[row * layout.FIELDS + layout.AFTER]

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
                    shown = booking.first_hashes(ROW_HASHES_MAX).tolist()
                    rows[-1].sequence_hashes = shown
                    hashes += len(shown)
        total = len(self) if wanted.tenants is None else self._total(wanted.tenants)
        return ReservationPage(reservations=rows, total=total, next=last, router_id=self._router_id)

    def _total(self, tenants: frozenset[str]) -> int:
        """Live reservations of these tenants.  O(partitions and origins)"""
        sums = self.sums.items()
        return sum(held.requests for place, held in sums if place.key.tenant_id in tenants)

    def _row(self, booking: Booking, now: float) -> ReservationRow:
        left, origin = booking.lease_ends_at - now, booking.origin
        return ReservationRow(
            reservation_id=booking.reservation_id,
            model_name=booking.key.model_name,
            tenant_id=booking.key.tenant_id,
            worker_id=booking.rank.worker_id,
            dp_rank=booking.rank.dp_rank,
            block_size=booking.account.block_size,
            state="prefill" if booking.prefilling else "decode",
            isl_tokens=booking.isl_tokens,
            prompt_blocks=booking.prompt_blocks,
            output_blocks=booking.output_blocks,
            prefill_tokens=booking.prefill_tokens,
            work=booking.work,
            age_seconds=round(now - booking.booked_at, 3),
            expires_in_seconds=round(max(0.0, left), 3) if left < inf else None,
            origin="local" if origin is None else "peer",
            router_id=self._router_id if origin is None else origin,
        )

    def check_invariants(self) -> None:
        """For tests."""
        held = list(self)
        assert len(held) == len(self)
        assert self.blocks == sum(b.prompt_blocks for b in held)
        assert self.prefilling == sum(b.prefilling for b in held)
        assert [b.order for b in held] == sorted({b.order for b in held})
        times = self.memory.header.view(np.float64)
        sums: dict[Place, list[int]] = {}
        for booking in held:
            assert self.find(booking.reservation_id) == booking
            assert booking.prefilling or booking.prefill_tokens == 0
            assert times[layout.NEXT_END] <= booking.lease_ends_at
            of = sums.setdefault(Place(booking.key, booking.origin), [0, 0, 0, 0])
            numbers = (1, booking.prefill_tokens, booking.mark, booking.prefilling)
            for at, number in enumerate(numbers):
                of[at] = (of[at] + number) & U64_MASK
        assert {place: list(held) for place, held in self.sums.items()} == sums
        self._check_slots()

    def _check_slots(self) -> None:
        for account in self.rows.accounts.values():
            totals = account.load.totals
            for slot in range(len(totals)):
                rows = [b.row for b in self.on_slot(account, slot)]
                assert len(set(rows)) == totals[slot, load_layout.REQUESTS]
                self._check_prefills(account, slot)

    def _check_prefills(self, account: Account, slot: int) -> None:
        """Its list has all unfinished prefills, in the order of booking, and their sum is kept."""
        prefills = account.load.prefills
        numbers = prefills.numbers[slot]
        row, found = int(numbers[load_layout.OLDEST]), []
        while row:
            found.append(self.at(row))
            row = self.memory.fields[row * layout.FIELDS + layout.NEWER_PREFILL]
        assert [b for b in reversed(list(self.on_slot(account, slot))) if b.work] == found
        assert numbers[load_layout.YOUNGEST] == (found[-1].row if found else 0)
        assert prefills.booked[slot] == sum(booking.work for booking in found)
        done = int(numbers[load_layout.DONE])
        assert prefills.left[slot] == prefills.booked[slot] - done
        assert 0 <= done <= (found[0].work if found else 0)


def not_found(reservation_id: str) -> NotFound:
    return NotFound(f"reservation {reservation_id} not found")


def _position(after: str | None) -> int:
    if after is None:
        return 0
    if not after.isascii() or not after.isdigit() or len(after) > 18:
        raise BadRequest(f"after: `{after}` is not the `next` of a page")
    return int(after) + 1
