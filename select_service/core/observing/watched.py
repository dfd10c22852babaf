"""Models whose refused requests count although no worker serves them.

They are those that an autoscaler has asked for, and those that workers have served.  Other names
are the clients' inventions, of which nothing is kept.
"""

from typing import Final

from select_service.core.identity import PartitionKey

WATCHED_MAX: Final = 1024
"""Models and tenants; then the one goes that was asked for, or served, longest ago."""


class WatchedModels:
    """Models and tenants in the order of their last use, with the slot of the first use."""

    def __init__(self) -> None:
        self._since: dict[PartitionKey, int] = {}

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._since

    def watch(self, key: PartitionKey, slot: int) -> None:
        """Count refusals from this slot on, or from the one that was given at first."""
        self._since[key] = self._since.pop(key, slot)
        if len(self._since) > WATCHED_MAX:
            del self._since[next(iter(self._since))]

    def has_missed(self, key: PartitionKey, slot: int) -> bool:
        """Return whether refusals of this slot were not counted yet."""
        return self._since.get(key, slot) > slot

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._since) <= WATCHED_MAX
