"""Table of reservations over all partitions: ids, leases, order, and sums by origin.

A reservation is a lease.  Every lifecycle call renews the lease, and without renewal for the time
to live the reservation expires, so a dead client cannot hold load for ever.  The same holds for
reservations of other replicas, named by `origin`.  Only the ledger writes here.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from indexer.hashing.seeds import U64_MASK
from select_service.base.errors import BadRequest, CapacityExceeded, NotFound
from select_service.core.load.compiled import ledger_entry_kernels as calls
from select_service.core.load.compiled import ledger_kernels as kernels
from select_service.core.load.compiled import ledger_layout as layout
from select_service.core.load.compiled import load_layout
from select_service.core.load.ledger_memory import (
    RESERVATIONS_MAX,
    RESERVED_BLOCKS_MAX,
)
from select_service.core.load.new_reservation import LoadAccount
from select_service.core.load.origin_sums import PartitionOrigin
from select_service.core.load.prefill_legs import (
    PrefillLegs,
    is_prefill_leg,
    owner_of,
    prefill_leg_of,
)
from select_service.core.load.reservation_view import ReservationRows, ReservationView
from select_service.schemas.pairs import PairRecord
from select_service.schemas.reservations import ReservationLeg, ReservationPage, ReservationRow

PAGE_SCAN_MAX = 10_000
"""Reservations scanned for a page of a filtered list; a page may be shorter than its limit."""
PAGE_HASHES_MAX = 32_768
"""Sequence hashes on a page; the last reservation of the page may exceed this limit."""
ROW_HASHES_MAX = 131_072
"""Sequence hashes shown of a reservation, from the beginning of the prompt."""


class ReservationFilter(NamedTuple):
    """Filter of GET /reservations.

    after: `next` of the page before
    tenants: visible tenants; None means all
    separate_legs: whether prefill legs are rows of their own, as in the tables of replicas
    """

    model_name: str | None = None
    tenant_id: str | None = None
    worker_id: int | None = None
    limit: int = 100
    after: str | None = None
    sequence_hashes: bool = False
    tenants: frozenset[str] | None = None
    separate_legs: bool = False

    def matches(self, booking: ReservationView, leg: ReservationView | None = None) -> bool:
        """Return whether a reservation is shown; `leg` is its prefill leg, if any."""
        key = booking.key
        if self.tenants is not None and key.tenant_id not in self.tenants:
            return False
        if not key.matches(self.model_name, self.tenant_id):
            return False
        leg = booking if leg is None else leg
        return self.worker_id in (None, booking.rank.worker_id, leg.rank.worker_id)


class Reservations:
    """Table of all live reservations, without the load, which the accounts hold."""

    def __init__(self, ttl_s: float, router_id: int = 0) -> None:
        """Create an empty table.

        ttl_s: seconds without renewal after which a reservation expires; 0 = never
        """
        self.ttl_s = ttl_s
        self.rows = ReservationRows(ttl_s)
        self.memory, self.sums = self.rows.memory, self.rows.sums
        self._router_id = router_id
        self.find_session_id: Callable[[ReservationView], str | None] | None = None
        """Reader of the session of a reservation; None without sessions."""
        self.find_pair_record: Callable[[str], PairRecord | None] | None = None
        """Reader of the request behind a pair, by the id of its reservation."""
        self.legs = PrefillLegs()
        """Reservations with a prefill leg of their own."""

    def __len__(self) -> int:
        return self.memory.numbers[layout.COUNT]

    @property
    def n_prefilling(self) -> int:
        return self.memory.numbers[layout.PREFILLING]

    @property
    def n_blocks(self) -> int:
        return self.memory.numbers[layout.N_BLOCKS]

    # Access to a reservation

    def find_reservation(self, reservation_id: str) -> ReservationView | None:
        row = calls.find_reservation(self.memory.header, reservation_id.encode())
        return self.view_row(row) if row else None

    def get_reservation(self, reservation_id: str) -> ReservationView:
        """Return a reservation.  Raises NotFound."""
        booking = self.find_reservation(reservation_id)
        if booking is None:
            raise reservation_not_found(reservation_id)
        return booking

    def view_row(self, row: int, name: str | None = None) -> ReservationView:
        """Return a view of a row.

        name: reservation id, if at hand; otherwise read on demand
        """
        return ReservationView(self.rows, row, name)

    def is_live(self, booking: ReservationView) -> bool:
        """Return whether the reservation is still live."""
        return int(self.memory.orders[booking.row]) == booking.order

    def check_room(self, blocks: int, reservations: int = 1) -> None:
        """Raise CapacityExceeded when further reservations of `blocks` blocks in all do not fit."""
        numbers = self.memory.numbers
        if numbers[layout.COUNT] + reservations > RESERVATIONS_MAX:
            raise CapacityExceeded(
                f"reservation limit reached ({RESERVATIONS_MAX}): free some first"
            )
        if numbers[layout.N_BLOCKS] + blocks > RESERVED_BLOCKS_MAX:
            raise CapacityExceeded(
                f"too many prompt blocks: {self.n_blocks} are reserved, {blocks} more "
                f"would exceed {RESERVED_BLOCKS_MAX}; free reservations first"
            )

    # Access to many reservations

    def find_overdue(self, now: float, at_most: int) -> list[ReservationView]:
        """Return up to `at_most` reservations with an ended lease, oldest first; remove none.

        O(1) until a lease may have ended, then O(reservations), some 0.1 ms.
        """
        memory = self.memory
        times = memory.header.view(np.float64)
        if times[layout.NEXT_END] > now:
            return []
        ends = memory.ends[: memory.numbers[layout.ROWS_USED]]
        rows = np.flatnonzero(ends <= now)
        if not len(rows):
            # The bound was too low after renewals; the exact minimum avoids further scans.
            times[layout.NEXT_END] = ends.min()
            return []
        if len(rows) > at_most:
            rows = rows[np.argpartition(ends[rows], at_most)[:at_most]]
        rows = rows[np.lexsort((memory.orders[rows], ends[rows]))]
        return [self.view_row(row) for row in rows.tolist()]

    def iterate_slot(self, account: LoadAccount, slot: int) -> Iterator[ReservationView]:
        """Iterate over the reservations of a slot, newest first.  The caller may release each
        one.
        """
        row = int(account.load.newest[slot])
        while row:
            # Read before the yield, because the caller may release the row.
            older = self.memory.fields[row * layout.FIELDS + layout.AFTER_ON_SLOT]
            yield self.view_row(row)
            row = older

    def slot_positions(self, account: LoadAccount, slot: int) -> npt.NDArray[np.int64]:
        """Return the (row, order) pairs of a slot, int64[n, 2], oldest first, for `find_unchanged`.

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

    def find_unchanged(self, row: int, order: int) -> ReservationView | None:
        """Return a reservation of `slot_positions`.  None if ended or moved since."""
        return self.view_row(row) if int(self.memory.orders[row]) == order else None

    def list_from(self, order: int, n: int) -> list[ReservationView]:
        """Return up to n reservations from an order number on, oldest first."""
        return list(islice(self._iterate_from(order), n))

    def __iter__(self) -> Iterator[ReservationView]:
        """Iterate over all reservations, oldest first; nothing may change meanwhile."""
        return self._iterate_from(0)

    def _iterate_from(self, order: int) -> Iterator[ReservationView]:
        row = kernels.first_row_from(self.memory.header, order)
        while row:
            yield self.view_row(row)
            row = self.memory.fields[row * layout.FIELDS + layout.AFTER]

    def get_answer_row(self, reservation_id: str, now: float) -> ReservationRow:
        """Return a reservation as an answer row.  Raises NotFound."""
        booking = self.get_reservation(reservation_id)
        return self._make_answer_row(booking, now, self._find_leg(booking)[0])

    def _find_leg(
        self, booking: ReservationView, separate_legs: bool = False
    ) -> tuple[ReservationView | None, bool]:
        """Return the prefill leg in the row of a reservation, and whether there is such a row.

        The leg of a pair belongs to the row of the pair; without one, as events of a peer may be
        lost, the leg has a row.
        """
        if separate_legs or not self.legs:
            return None, True
        name = booking.reservation_id
        if is_prefill_leg(name):
            return None, self.find_reservation(owner_of(name)) is None
        if name not in self.legs:
            return None, True
        return self.find_reservation(prefill_leg_of(name)), True

    def list_page(self, reservation_filter: ReservationFilter, now: float) -> ReservationPage:
        """Return a page, oldest first.  Raises BadRequest for a cursor that is no `next` of a
        page.
        """
        first = _parse_cursor(reservation_filter.after)
        rows: list[ReservationRow] = []
        last, hashes = None, 0
        for scanned, booking in enumerate(self._iterate_from(first)):
            full = len(rows) == reservation_filter.limit or hashes >= PAGE_HASHES_MAX
            if full or scanned == PAGE_SCAN_MAX:
                # `after` excludes its own number, and the current row is not on this page.
                last = str(booking.order - 1)
                break
            leg, is_shown = self._find_leg(booking, reservation_filter.separate_legs)
            if is_shown and reservation_filter.matches(booking, leg):
                rows.append(self._make_answer_row(booking, now, leg))
                if reservation_filter.separate_legs and self.find_pair_record is not None:
                    rows[-1].pair = self.find_pair_record(booking.reservation_id) or UNSET
                if reservation_filter.sequence_hashes:
                    shown = booking.first_hashes(ROW_HASHES_MAX).tolist()
                    rows[-1].sequence_hashes = shown
                    hashes += len(shown)
        tenants = reservation_filter.tenants
        total = len(self) if tenants is None else self._count_of_tenants(tenants)
        if not reservation_filter.separate_legs:
            total -= len(self.legs) if tenants is None else self.legs.count_of(tenants)
        return ReservationPage(reservations=rows, total=total, next=last, router_id=self._router_id)

    def _count_of_tenants(self, tenant_ids: frozenset[str]) -> int:
        """Return the number of live reservations of these tenants.  O(partitions and origins)"""
        sums = self.sums.iterate_sums()
        return sum(held.requests for place, held in sums if place.key.tenant_id in tenant_ids)

    def _make_answer_row(
        self, booking: ReservationView, now: float, leg: ReservationView | None = None
    ) -> ReservationRow:
        """Return a row; `leg` is the prefill leg shown in it."""
        left, origin = booking.lease_ends_at - now, booking.origin
        name = booking.reservation_id
        legs = [_leg_row("prefill", leg), _leg_row("decode", booking)] if leg else UNSET
        return ReservationRow(
            reservation_id=owner_of(name),
            model_name=booking.key.model_name,
            tenant_id=booking.key.tenant_id,
            worker_id=booking.rank.worker_id,
            dp_rank=booking.rank.dp_rank,
            block_size=booking.account.block_size,
            state="prefill" if booking.is_prefilling else "decode",
            isl_tokens=booking.isl_tokens,
            prompt_blocks=booking.prompt_blocks,
            output_blocks=booking.output_blocks,
            prefill_tokens=booking.prefill_tokens,
            work=booking.prefill_work,
            age_seconds=round(now - booking.booked_at, 3),
            expires_in_seconds=round(max(0.0, left), 3) if left < inf else None,
            origin="local" if origin is None else "peer",
            router_id=self._router_id if origin is None else origin,
            session_id=self._session_of(booking),
            leg="prefill" if is_prefill_leg(name) else UNSET,
            legs=legs,
        )

    def _session_of(self, booking: ReservationView) -> str | UnsetType:
        if self.find_session_id is None or self.memory.session_of(booking.row) is None:
            return UNSET
        found = self.find_session_id(booking)
        return UNSET if found is None else found

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        held = list(self)
        assert len(held) == len(self)
        assert self.n_blocks == sum(b.prompt_blocks for b in held)
        assert self.n_prefilling == sum(b.is_prefilling for b in held)
        assert [b.order for b in held] == sorted({b.order for b in held})
        times = self.memory.header.view(np.float64)
        sums: dict[PartitionOrigin, list[int]] = {}
        for booking in held:
            assert self.find_reservation(booking.reservation_id) == booking
            assert booking.is_prefilling or booking.prefill_tokens == 0
            assert times[layout.NEXT_END] <= booking.lease_ends_at
            of = sums.setdefault(PartitionOrigin(booking.key, booking.origin), [0, 0, 0, 0])
            numbers = (1, booking.prefill_tokens, booking.fingerprint, booking.is_prefilling)
            for at, number in enumerate(numbers):
                of[at] = (of[at] + number) & U64_MASK
        assert {place: list(held) for place, held in self.sums.iterate_sums()} == sums
        self._check_slots()

    def _check_slots(self) -> None:
        for account in self.rows.accounts.values():
            totals = account.load.totals
            for slot in range(len(totals)):
                rows = [b.row for b in self.iterate_slot(account, slot)]
                assert len(set(rows)) == totals[slot, load_layout.REQUESTS]
                self._check_prefills(account, slot)

    def _check_prefills(self, account: LoadAccount, slot: int) -> None:
        """Check that the list has all unfinished prefills in booking order, and that the sums
        agree.
        """
        prefills = account.load.prefills
        numbers = prefills.numbers[slot]
        row, found = int(numbers[load_layout.OLDEST]), []
        while row:
            found.append(self.view_row(row))
            row = self.memory.fields[row * layout.FIELDS + layout.NEWER_PREFILL]
        assert [
            b for b in reversed(list(self.iterate_slot(account, slot))) if b.prefill_work
        ] == found
        assert numbers[load_layout.YOUNGEST] == (found[-1].row if found else 0)
        assert prefills.work_booked[slot] == sum(booking.prefill_work for booking in found)
        done = int(numbers[load_layout.DONE_TOKENS])
        assert prefills.work_left[slot] == prefills.work_booked[slot] - done
        assert 0 <= done <= (found[0].prefill_work if found else 0)


def _leg_row(leg: Literal["prefill", "decode"], booking: ReservationView) -> ReservationLeg:
    rank = booking.rank
    return ReservationLeg(
        leg=leg,
        worker_id=rank.worker_id,
        dp_rank=rank.dp_rank,
        prefill_tokens=booking.prefill_tokens,
        work=booking.prefill_work,
    )


def reservation_not_found(reservation_id: str) -> NotFound:
    return NotFound(f"reservation {reservation_id} not found")


def _parse_cursor(after: str | None) -> int:
    if after is None:
        return 0
    if not after.isascii() or not after.isdigit() or len(after) > 18:
        raise BadRequest(f"after: `{after}` is no cursor: give the `next` of the previous page")
    return int(after) + 1
