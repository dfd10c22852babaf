"""Pending work left behind by the operations of the core.

Operations only record their effects here and call no other part.  `AdmissionGate.serve_waiting`
handles the queues of recorded partitions, and the owner of listeners handles catalog changes
(`WorkerFleet.take_changes`). The callback `wake` requests a call of `SelectorCore.run_pending` soon
from the owner of the event loop.
"""

from collections.abc import Callable, Container, Sized

from select_service.core.identity import PartitionKey


class DirtyPartitions:
    """Partitions with changed capacity, written wherever capacity is freed and read in one
    place.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Start without pending work.

        wake: must not block, raise or call back
        """
        self._watched_partitions: Container[PartitionKey] = ()
        self.partitions: dict[PartitionKey, None] = {}
        self._wake = wake
        self._is_turn_requested = False

    def watch_partitions(self, partitions: Container[PartitionKey]) -> None:
        """Record only changes of partitions in `partitions`, those with waiting requests, from
        now on.
        """
        self._watched_partitions = partitions

    @property
    def is_watching(self) -> bool:
        """Whether `mark_capacity` records anything."""
        return bool(self._watched_partitions)

    def begin_turn(self) -> None:
        """Note a call of `SelectorCore.run_pending`; later work requests another turn."""
        self._is_turn_requested = False

    def mark_capacity(self, key: PartitionKey) -> None:
        """Record that a partition has less load, or changed ranks."""
        # Most changes happen without waiting requests, and then cost only this check.
        if (
            self._watched_partitions
            and key in self._watched_partitions
            and key not in self.partitions
        ):
            self.partitions[key] = None
            self._request_turn()

    def request_turn_if(self, something: Sized) -> None:
        """Request another turn if anything is left to do."""
        if something:
            self._request_turn()

    def _request_turn(self) -> None:
        """Request a turn, at most once per turn."""
        if not self._is_turn_requested:
            # Set before the call, which may run the turn soon after.
            self._is_turn_requested = True
            self._wake()
