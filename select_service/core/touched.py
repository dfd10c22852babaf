"""What verbs have touched and somebody has yet to look at.

Verbs only note here what they did; nobody is called while they run.  The queues of partitions are
looked at by `Gate.serve`, the catalog by whoever keeps listeners (`Fleet.take_changes`).  The
outlet, `wake`, asks the owner of the event loop for a call of `Selector.settle` soon.
"""

from collections.abc import Callable, Container, Sized

from select_service.core.identity import PartitionKey


class Touched:
    """Written by every part of the core that frees capacity, read in one place."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """wake: must not block, raise or call back"""
        self._watched: Container[PartitionKey] = ()
        self.partitions: dict[PartitionKey, None] = {}
        self._wake = wake
        self._asked = False

    def watch(self, partitions: Container[PartitionKey]) -> None:
        """From now on note those in `partitions`, in which somebody waits, and no others."""
        self._watched = partitions

    @property
    def is_watching(self) -> bool:
        """Does `capacity` note anything at all?"""
        return bool(self._watched)

    def turn_begins(self) -> None:
        """`Selector.settle` was called: who finds more to do from now on asks again."""
        self._asked = False

    def capacity(self, key: PartitionKey) -> None:
        """Load has gone from a partition, or its ranks have come, gone or changed."""
        if self._watched and key in self._watched and key not in self.partitions:
            self.partitions[key] = None
            self._ask()

    def wake_if(self, something: Sized) -> None:
        """Is there something left to do, in another turn?"""
        if something:
            self._ask()

    def _ask(self) -> None:
        """Once for every turn."""
        if not self._asked:
            self._asked = True
            self._wake()
