"""Pending changes of workers, applied to a few ranks per turn."""

from collections.abc import Callable, Iterator
from typing import NamedTuple


class PendingWorkerChange(NamedTuple):
    """Pending change of a worker.

    changed: the worker was registered, changed or deleted
    is_registration: the worker registered again
    drains: True to drain, False to return to service, None for neither
    """

    changed: bool = False
    is_registration: bool = False
    drains: bool | None = None


_NO_CHANGE = PendingWorkerChange()


class BatchedWorkerUpdates:
    """Queue of workers with pending changes, one merged change per worker, oldest first."""

    def __init__(self, apply_change: Callable[[int, PendingWorkerChange], Iterator[int]]) -> None:
        """Create the queue.

        apply_change: applies a change and yields the number of processed ranks after each step
        """
        self._carried_out = apply_change
        self._wishes: dict[int, PendingWorkerChange] = {}
        self._in_hand: tuple[int, Iterator[int]] | None = None

    def __len__(self) -> int:
        """Return the number of workers with pending changes."""
        return len(self._wishes) + (self._in_hand is not None)

    def is_behind(self, worker_id: int) -> bool:
        """Return whether the worker has pending changes."""
        in_hand = self._in_hand is not None and self._in_hand[0] == worker_id
        return in_hand or worker_id in self._wishes

    def add_change(self, worker_id: int, is_registration: bool) -> None:
        """Add a registration, change or deletion; a registration cancels a drain."""
        old = self._wishes.get(worker_id, _NO_CHANGE)
        # An operator's drain belongs to the registration that it was requested for.
        drains = None if is_registration else old.drains
        self._wishes[worker_id] = PendingWorkerChange(
            True, old.is_registration or is_registration, drains
        )

    def set_drain(self, worker_id: int, drains: bool) -> None:
        """Add a drain, or a return to service."""
        old = self._wishes.get(worker_id, _NO_CHANGE)
        self._wishes[worker_id] = old._replace(drains=drains)

    def process_ranks(self, ranks_max: int) -> None:
        """Process up to `ranks_max` ranks, rounded up to a step; a worker without ranks counts as
        one.
        """
        while ranks_max > 0 and len(self):
            if self._in_hand is None:
                worker_id = next(iter(self._wishes))
                wish = self._wishes.pop(worker_id)
                self._in_hand = worker_id, self._carried_out(worker_id, wish)
            n_ranks = next(self._in_hand[1], None)
            if n_ranks is None:
                self._in_hand = None
            ranks_max -= n_ranks or 1
