"""Memory of recent look-ups: results by prefix, for a short time."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")

REMEMBERED_S = 2.0
"""Time for which a result counts.  A shared cache evicts and receives pages meanwhile."""
PREFIXES_MAX = 65_536


class PrefixMemory(Generic[T]):
    """Results by the name of a prefix; beyond PREFIXES_MAX, the oldest are forgotten."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def find(self, name: bytes, now: float) -> T | None:
        """Return the result of a prefix, or None when none is known or it is too old."""
        found = self._found.get(name)
        return None if found is None or now >= found[0] else found[1]

    def put(self, name: bytes, result: T, now: float) -> None:
        self._found[name] = now + REMEMBERED_S, result
        self._found.move_to_end(name)
        if len(self._found) > PREFIXES_MAX:
            self._found.popitem(last=False)
