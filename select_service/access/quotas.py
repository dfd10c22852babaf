"""What keys with quotas have used of them.

A key is known by its name, so a file that is read again, or a key that is replaced under its name,
gives nobody anything back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from select_service.access.api_key import Quotas
from select_service.core.load.ledger_memory import LedgerMemory
from select_service.core.load.live_count import LiveCount
from select_service.errors import QuotaExceeded

RETRY_AFTER_S = 1
"""Where nobody knows when there is room again."""


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

    _live:    reservations that were booked with the key
    _booking: that are being booked now, or wait
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._bucket: TokenBucket | None = None
        self._live = LiveCount()
        self._booking = 0
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
            raise self._exceeded(f"{quotas.requests_per_s:g} requests/s", self._bucket.wait_s())

    def may_book(self, quotas: Quotas) -> bool:
        """Is there room for one more reservation?"""
        most = quotas.reservations
        return most is None or self._live.numbers[0] + self._booking < most

    @contextmanager
    def booking(self, quotas: Quotas) -> Iterator[None]:
        """Inside, one more reservation is made, which may take its time.  Raises QuotaExceeded."""
        if not self.may_book(quotas):
            raise self._exceeded(f"{quotas.reservations} live reservations")
        self._booking += 1
        try:
            yield
        finally:
            self._booking -= 1

    def booked(self, memory: LedgerMemory, row: int) -> None:
        """A reservation was made with the key, and stands in this row of the ledger."""
        memory.count(row, self._live)

    def register(self, quotas: Quotas, worker_id: int, is_here: Callable[[int], bool]) -> None:
        """A worker is to be registered with the key.  Raises QuotaExceeded, and changes nothing.

        is_here: of a worker that was registered with the key, is it still?
        """
        if quotas.workers is None:
            return
        self._workers = {known: None for known in self._workers if is_here(known)}
        if worker_id not in self._workers and len(self._workers) >= quotas.workers:
            raise self._exceeded(f"{quotas.workers} workers")
        self._workers[worker_id] = None

    def _exceeded(self, what: str, wait_s: int = RETRY_AFTER_S) -> QuotaExceeded:
        refusal = QuotaExceeded(f"the key `{self._name}` may have {what}, and not more")
        refusal.retry_after_s = wait_s
        return refusal
