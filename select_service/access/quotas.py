"""What keys with quotas have used of them.

A key is known by its name, so a file that is read again, or a key that is replaced under its name,
gives nobody anything back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

import numpy as np
import numpy.typing as npt

from select_service.access.api_key import Quotas
from select_service.errors import QuotaExceeded

RETRY_AFTER_S = 1
"""Where nobody knows when there is room again."""

_NOTHING = np.zeros((0, 2), np.int64)


class TokenBucket:
    """Requests per second, and so many at once.  `now` in seconds of a clock that never falls."""

    def __init__(self, quotas: Quotas, now: float) -> None:
        assert quotas.requests_per_s is not None
        self.quotas = quotas
        self._per_s = quotas.requests_per_s
        self._burst = float(quotas.burst or max(1, ceil(self._per_s)))
        self._left, self._at = self._burst, now

    def has(self, now: float) -> bool:
        """May one request come now?"""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        return self._left >= 1.0

    def take(self) -> None:
        """One has come, for which there was room."""
        self._left -= 1.0

    def wait_s(self) -> int:
        """Whole seconds until there is room for one."""
        return max(1, ceil((1.0 - self._left) / self._per_s))


class KeyUse:
    """What one key has used.

    _booked: int64[n, 2], row and number of order of reservations that were booked with the key, of
    which those live that still have that number
    _booking: that are being booked now, or wait
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._bucket: TokenBucket | None = None
        self._booked, self._n_booked, self._booking = _NOTHING, 0, 0
        self._workers: dict[int, None] = {}

    def may_ask(self, quotas: Quotas, now: float) -> bool:
        """Is there room for one more request now?"""
        if quotas.requests_per_s is None:
            return True
        if self._bucket is None or self._bucket.quotas != quotas:
            self._bucket = TokenBucket(quotas, now)
        return self._bucket.has(now)

    def asked(self) -> None:
        """A request was let in, after `may_ask`."""
        if self._bucket is not None:
            self._bucket.take()

    def ask(self, quotas: Quotas, now: float) -> None:
        """One request.  Raises QuotaExceeded."""
        if not self.may_ask(quotas, now):
            assert self._bucket is not None
            raise self._exceeded(f"{quotas.requests_per_s:g} requests/s", self._bucket.wait_s())
        self.asked()

    def may_book(self, quotas: Quotas, orders: npt.NDArray[np.int64]) -> bool:
        """Is there room for one more reservation?  orders: of the ledger, by row

        O(1) until as many were booked as may live, then O(quota) once.
        """
        if quotas.reservations is None:
            return True
        if self._n_booked + self._booking >= quotas.reservations:
            self._forget_ended(orders)
        return self._n_booked + self._booking < quotas.reservations

    @contextmanager
    def booking(self, quotas: Quotas, orders: npt.NDArray[np.int64]) -> Iterator[None]:
        """Inside, one more reservation is made, which may take its time.  Raises QuotaExceeded."""
        if not self.may_book(quotas, orders):
            raise self._exceeded(f"{quotas.reservations} live reservations")
        self._booking += 1
        try:
            yield
        finally:
            self._booking -= 1

    def booked(self, row: int, order: int) -> None:
        """A reservation was made with the key."""
        if self._n_booked == len(self._booked):
            self._booked = np.concatenate(
                [self._booked, np.zeros((max(16, self._n_booked), 2), np.int64)]
            )
        self._booked[self._n_booked] = row, order
        self._n_booked += 1

    def _forget_ended(self, orders: npt.NDArray[np.int64]) -> None:
        booked = self._booked[: self._n_booked]
        live = booked[orders[booked[:, 0]] == booked[:, 1]]
        self._n_booked = len(live)
        self._booked[: len(live)] = live

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
