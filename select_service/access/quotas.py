"""What keys have used of their quotas and shares.

A key is known by its name, so a file that is read again, or a key that is replaced under its name,
gives nobody anything back.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import NamedTuple

from select_service.access.api_key import Quotas
from select_service.access.shares import Holder, SharedLimit
from select_service.core.decide.prompt import LOOKED_UP_BLOCKS_MAX
from select_service.core.load.ledger_memory import LedgerMemory
from select_service.core.load.live_count import LiveCount
from select_service.core.load.origin_sums import OriginSums
from select_service.errors import QuotaExceeded


class TokenBucket:
    """Requests per second, and so many at once.  `now` in seconds of a clock that never falls."""

    def __init__(self, quotas: Quotas, now: float) -> None:
        assert quotas.requests_per_s is not None
        self.quotas = quotas
        self._per_s = quotas.requests_per_s
        self._burst = float(quotas.burst or max(1, ceil(self._per_s)))
        self._left, self._at = self._burst, now

    def take(self, now: float) -> bool:
        """One request comes, if there is room for it."""
        left = self._left + (now - self._at) * self._per_s
        if left > self._burst:
            left = self._burst
        has_room = left >= 1.0
        self._left, self._at = left - has_room, now
        return has_room

    def give_back(self) -> None:
        """The last one that came is not to be counted."""
        self._left += 1.0

    def wait_s(self) -> int:
        """Whole seconds until there is room for one."""
        return max(1, ceil((1.0 - self._left) / self._per_s))


class KeyUse:
    """What one key has used.

    live:    reservations that were booked with the key, and their blocks
    booking: reservations that are being booked now, or wait
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._bucket: TokenBucket | None = None
        self.live = LiveCount()
        self.booking = 0
        self._workers: dict[int, None] = {}

    def take(self, quotas: Quotas, now: float) -> bool:
        """One request comes, if there is room for it."""
        if quotas.requests_per_s is None:
            return True
        if self._bucket is None or self._bucket.quotas != quotas:
            self._bucket = TokenBucket(quotas, now)
        return self._bucket.take(now)

    def give_back(self, quotas: Quotas) -> None:
        """The last one that came, with these quotas, is not to be counted."""
        if quotas.requests_per_s is not None and self._bucket is not None:
            self._bucket.give_back()

    def ask(self, quotas: Quotas, now: float) -> None:
        """One request.  Raises QuotaExceeded."""
        if not self.take(quotas, now):
            assert self._bucket is not None
            most = f"{quotas.requests_per_s:g} requests/s"
            refusal = QuotaExceeded(f"the key `{self._name}` may have {most}, and not more")
            refusal.retry_after_s = self._bucket.wait_s()
            raise refusal

    def workers(self, is_here: Callable[[int], bool]) -> Collection[int]:
        """Return the ids of the workers that were registered with the key.

        is_here: of one of them, is it still registered?
        """
        self._workers = {known: None for known in self._workers if is_here(known)}
        return self._workers.keys()

    def registered(self, worker_id: int) -> None:
        """A worker was registered with the key."""
        self._workers[worker_id] = None


class BookingLimits(NamedTuple):
    """The limits of the ledger, and what is counted there of tenants, whoever has booked it."""

    reservations: SharedLimit
    blocks: SharedLimit
    memory: LedgerMemory
    sums: OriginSums


class TenantBookings:
    """Whether the keys of one tenant may book more.

    Counting is dear, so it is done anew only when as many bookings were made as half of the room
    that was left, if all had the longest prompts.

    left: bookings until it is counted anew
    """

    def __init__(self, tenant: str, limits: BookingLimits, most: int, most_blocks: int) -> None:
        self._of = frozenset((tenant,))
        self._limits, self._most, self._most_blocks = limits, most, most_blocks
        self.left, self._seen = 0, -1
        self._within = limits.sums.within(self._of)

    def may_book(self) -> bool:
        if self.left <= 0:
            reservations, blocks = self.used()
            of_blocks = ceil((self._most_blocks - blocks) / LOOKED_UP_BLOCKS_MAX)
            room = min(of_blocks, self._most - reservations)
            self.left = (room + 1) // 2
        return self.left > 0

    def booked(self) -> None:
        """A key of the tenant has booked once more."""
        self.left -= 1

    def used(self) -> tuple[int, int]:
        """Return the reservations of the tenant, and their blocks.  O(sums)"""
        sums = self._limits.sums
        if self._seen != sums.changes[0]:
            self._within, self._seen = sums.within(self._of), int(sums.changes[0])
        return sums.counted(self._within)


class KeyBookings:
    """Whether one key may book more, and what it has booked.

    A booking that is made below the share of blocks may pass it by its own.
    """

    def __init__(
        self,
        use: KeyUse,
        holder: Holder,
        limits: BookingLimits,
        tenants: Mapping[str, TenantBookings],
    ) -> None:
        """tenants: those to which the key is bound; empty: it is bound to none"""
        self._use, self._holder, self._limits, self._tenants = use, holder, limits, tenants
        self._live, self._each = use.live.numbers, tuple(tenants.values())
        self._most = holder.share(limits.reservations)
        self._most_blocks = holder.share(limits.blocks)

    def may_book(self) -> bool:
        """Return whether there is room for one more reservation of whatever tenant."""
        live = self._live
        if live[0] + self._use.booking >= self._most or live[1] >= self._most_blocks:
            return False
        for each in self._each:  # noqa: SIM110  a generator costs more than all the rest
            if each.left <= 0 and not each.may_book():
                return False
        return True

    @contextmanager
    def booking(self, tenant: str) -> Iterator[None]:
        """Inside, one more reservation is made, which may take its time.  Raises QuotaExceeded."""
        of = self._tenants.get(tenant)
        used = (0, 0) if of is None or of.may_book() else of.used()
        limits, holder = self._limits, self._holder
        made = self._live[0] + self._use.booking
        limits.reservations.refuse_beyond_share(holder, 1, made, used[0])
        limits.blocks.refuse_beyond_share(holder, 1, self._live[1], used[1])
        self._use.booking += 1
        try:
            yield
        finally:
            self._use.booking -= 1

    def booked(self, row: int) -> None:
        """A reservation was made with the key, and stands in this row of the ledger."""
        self._limits.memory.count(row, self._use.live)
        for each in self._each:
            each.booked()
