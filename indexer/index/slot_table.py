"""Assignment of slots to writers."""

from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar


class SlotOwner(Protocol):
    """Owner of a slot."""

    slot: int

    def assign_slot(self, slot: int) -> None: ...


W = TypeVar("W", bound=SlotOwner)


class SlotTable(Generic[W]):
    """Slots of an index and the owners.  Changed only with the index locked."""

    def __init__(self) -> None:
        self.writers: list[W | None] = []
        """Owner by slot, up to the highest slot ever used; None for a free slot."""
        self._free: list[int] = []  # a heap

    def lowest_free(self) -> int:
        return self._free[0] if self._free else len(self.writers)

    def count_with(self, more: int) -> int:
        """Return the number of slots once `more` are taken."""
        return len(self.writers) + max(0, more - len(self._free))

    def assign_lowest(self, writer: W) -> None:
        """Give the lowest free slot to a writer."""
        writer.assign_slot(self.lowest_free())
        if self._free:
            heappop(self._free)
        self.writers[writer.slot : writer.slot + 1] = [writer]

    def replace_owner(self, writer: W) -> None:
        """Put a writer in the place of the present owner of the writer's slot."""
        self.writers[writer.slot] = writer

    def release_slot(self, writer: W) -> None:
        """Free the slot of a writer, unless another writer has taken over."""
        if self.writers[writer.slot] is writer:
            self.writers[writer.slot] = None
            heappush(self._free, writer.slot)
