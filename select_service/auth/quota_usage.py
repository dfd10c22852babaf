"""Usage of each key, counted against its quotas and shares.

Usage is kept by key name: re-reading the file, or replacing a key under the same name, resets
nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import NamedTuple

from select_service.auth.api_key import Quotas
from select_service.auth.limit_shares import Holder, SharedLimit
from select_service.base.errors import QuotaExceeded
from select_service.core.load.ledger_memory import LedgerMemory
from select_service.core.load.live_counter import LiveCounter
from select_service.core.load.origin_sums import OriginSums
from select_service.core.placement.prompt import LOOKED_UP_BLOCKS_MAX


class TokenBucket:
    """Rate limiter with a burst.  `now`: seconds of a monotonic clock"""

    def __init__(self, quotas: Quotas, now: float) -> None:
        assert quotas.requests_per_s is not None
        self.quotas = quotas
        self._per_s = quotas.requests_per_s
        self._burst = float(quotas.burst or max(1, ceil(self._per_s)))
        self._left, self._at = self._burst, now

    def take_token(self, now: float) -> bool:
        """Return whether a request is allowed, and count the request."""
        left = self._left + (now - self._at) * self._per_s
        if left > self._burst:
            left = self._burst
        has_room = left >= 1.0
        self._left, self._at = left - has_room, now
        return has_room

    def return_token(self) -> None:
        """Uncount the last request."""
        self._left += 1.0

    def seconds_to_wait(self) -> int:
        """Return the whole seconds until a request is allowed."""
        return max(1, ceil((1.0 - self._left) / self._per_s))


class KeyUsage:
    """Usage of a key.

    live:    reservations booked with the key, and their blocks
    booking: reservations being booked now, or queued
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._bucket: TokenBucket | None = None
        self.live = LiveCounter()
        self.n_pending = 0
        self._workers: dict[int, None] = {}

    def take_request(self, quotas: Quotas, now: float) -> bool:
        """Return whether the request rate allows a request, and count the request."""
        if quotas.requests_per_s is None:
            return True
        # A changed quota starts with a full burst.
        if self._bucket is None or self._bucket.quotas != quotas:
            self._bucket = TokenBucket(quotas, now)
        return self._bucket.take_token(now)

    def return_request(self, quotas: Quotas) -> None:
        """Uncount the last request made under these quotas."""
        if quotas.requests_per_s is not None and self._bucket is not None:
            self._bucket.return_token()

    def charge_request(self, quotas: Quotas, now: float) -> None:
        """Count a request.  Raises QuotaExceeded."""
        if not self.take_request(quotas, now):
            assert self._bucket is not None
            most = f"{quotas.requests_per_s:g} requests/s"
            refusal = QuotaExceeded(f"the key `{self._name}` exceeds its quota of {most}")
            refusal.retry_after_s = self._bucket.seconds_to_wait()
            raise refusal

    def registered_worker_ids(self, is_here: Callable[[int], bool]) -> Collection[int]:
        """Return the ids of the workers registered with the key.

        is_here: returns whether an id is still registered
        """
        self._workers = {known: None for known in self._workers if is_here(known)}
        return self._workers.keys()

    def note_worker(self, worker_id: int) -> None:
        """Note that a worker was registered with the key."""
        self._workers[worker_id] = None


class BookingLimits(NamedTuple):
    """Limits of the ledger, and its counts by tenant, which include bookings by everyone."""

    reservations: SharedLimit
    blocks: SharedLimit
    memory: LedgerMemory
    sums: OriginSums


class TenantBookings:
    """Booking limit of a tenant, over all its keys.

    Counting is expensive, so it is repeated only after half of the remaining capacity could have
    been used, assuming the longest prompts.

    left: bookings until the next count
    """

    def __init__(self, tenant: str, limits: BookingLimits, most: int, most_blocks: int) -> None:
        self._of = frozenset((tenant,))
        self._limits, self._most, self._most_blocks = limits, most, most_blocks
        self.bookings_left, self._seen = 0, -1
        self._within = limits.sums.tenants_mask(self._of)

    def may_book(self) -> bool:
        """Return whether the tenant may book once more."""
        if self.bookings_left <= 0:
            reservations, blocks = self.count_used()
            # Each booking may hold at most LOOKED_UP_BLOCKS_MAX blocks, so this many are certainly
            # safe.
            of_blocks = ceil((self._most_blocks - blocks) / LOOKED_UP_BLOCKS_MAX)
            room = min(of_blocks, self._most - reservations)
            # Half of it, since bookings by unbound keys and by replicas are not reported here.
            self.bookings_left = (room + 1) // 2
        return self.bookings_left > 0

    def count_booking(self) -> None:
        """Note a booking by a key of the tenant."""
        self.bookings_left -= 1

    def count_used(self) -> tuple[int, int]:
        """Return the tenant's reservations and their blocks.  O(sums)"""
        sums = self._limits.sums
        # Sums are per partition and origin: which belong to the tenant changes only with that set.
        if self._seen != sums.changes[0]:
            self._within, self._seen = sums.tenants_mask(self._of), int(sums.changes[0])
        return sums.count_reservations(self._within)


class KeyBookings:
    """Booking limits and bookings of a key.

    A booking made below the share of blocks may exceed the share by its own blocks.
    """

    def __init__(
        self,
        use: KeyUsage,
        holder: Holder,
        limits: BookingLimits,
        tenants: Mapping[str, TenantBookings],
    ) -> None:
        """tenants: tenants of a bound key; empty means unbound"""
        self._use, self._holder, self._limits, self._tenants = use, holder, limits, tenants
        self._live, self._each = use.live.numbers, tuple(tenants.values())
        self._most = holder.share_of(limits.reservations)
        self._most_blocks = holder.share_of(limits.blocks)

    def may_book(self) -> bool:
        """Return whether one more reservation of any tenant is allowed."""
        live = self._live
        if live[0] + self._use.n_pending >= self._most or live[1] >= self._most_blocks:
            return False
        for each in self._each:  # noqa: SIM110  a generator costs more than all the rest
            if each.bookings_left <= 0 and not each.may_book():
                return False
        return True

    @contextmanager
    def hold_capacity(self, tenant: str) -> Iterator[None]:
        """Hold capacity for a reservation in this context, which may last.

        Raises QuotaExceeded.
        """
        of = self._tenants.get(tenant)
        used = (0, 0) if of is None or of.may_book() else of.count_used()
        limits, holder = self._limits, self._holder
        made = self._live[0] + self._use.n_pending
        limits.reservations.check_share(holder, 1, made, used[0])
        limits.blocks.check_share(holder, 1, self._live[1], used[1])
        # Counted while queued, or concurrent requests could exceed the limit together.
        self._use.n_pending += 1
        try:
            yield
        finally:
            self._use.n_pending -= 1

    def count_booking(self, row: int) -> None:
        """Count the reservation in this row of the ledger for the key."""
        self._limits.memory.count_while_live(row, self._use.live)
        for each in self._each:
            each.count_booking()
