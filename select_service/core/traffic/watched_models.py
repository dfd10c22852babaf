"""Models with refused requests counted even without a worker.

These are models that an autoscaler has requested and models that workers have served. Other names
are made up by clients, and nothing is stored for them.
"""

from typing import Final

from select_service.core.identity import PartitionKey

WATCHED_MAX: Final = 1024
"""Maximum number of watched models and tenants; the least recently used is dropped."""


class WatchedModels:
    """Models and tenants in order of last use, with the slot of the first use."""

    def __init__(self) -> None:
        self._since: dict[PartitionKey, int] = {}

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._since

    def watch_model(self, key: PartitionKey, slot: int) -> None:
        """Count refusals from this slot on, or from the slot given first."""
        # Popped and inserted again: dictionary order is the order of last use.
        self._since[key] = self._since.pop(key, slot)
        if len(self._since) > WATCHED_MAX:
            del self._since[next(iter(self._since))]

    def has_missed(self, key: PartitionKey, slot: int) -> bool:
        """Return whether refusals of this slot were not counted yet."""
        return self._since.get(key, slot) > slot

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert len(self._since) <= WATCHED_MAX
