"""Which slots of an index are taken, and by whom."""

from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar


class HasSlot(Protocol):
    """Somebody who takes one slot."""

    slot: int

    def begin(self, slot: int) -> None: ...


W = TypeVar("W", bound=HasSlot)


class Slots(Generic[W]):
    """Changed with the index locked."""

    def __init__(self) -> None:
        self.writers: list[W | None] = []
        """By slot, as far as they were ever in use; None: free."""
        self._free: list[int] = []  # a heap

    def lowest_free(self) -> int:
        return self._free[0] if self._free else len(self.writers)

    def number_with(self, more: int) -> int:
        """How many there are once so many more are taken."""
        return len(self.writers) + max(0, more - len(self._free))

    def enter(self, writer: W) -> None:
        """It takes the lowest free slot."""
        writer.begin(self.lowest_free())
        if self._free:
            heappop(self._free)
        self.writers[writer.slot : writer.slot + 1] = [writer]

    def replace(self, writer: W) -> None:
        """It takes its slot over from another."""
        self.writers[writer.slot] = writer

    def leave(self, writer: W) -> None:
        """Its slot is free, unless another has taken it over."""
        if self.writers[writer.slot] is writer:
            self.writers[writer.slot] = None
            heappush(self._free, writer.slot)
