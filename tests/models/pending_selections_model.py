"""Naive twin of the pending selections: one list, oldest first, searched from the end."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PendingEntry:
    name: Any
    size: int
    at: float
    value: Any


class PendingSelectionsModel:
    """Selections that a later booking may take over."""

    def __init__(self, ttl_s: float, entries_max: int, bytes_max: int) -> None:
        self.ttl_s, self.entries_max, self.bytes_max = ttl_s, entries_max, bytes_max
        self.kept: list[PendingEntry] = []
        self.oversized = self.evicted = 0

    def put(self, new: PendingEntry) -> None:
        self.discard(new.name)
        if new.size > self.bytes_max:
            self.oversized += 1
            return
        self.kept.append(new)
        while len(self.kept) > self.entries_max or self.total > self.bytes_max:
            self.kept.pop(0)
            self.evicted += 1

    @property
    def total(self) -> int:
        return sum(each.size for each in self.kept)

    def find(self, name: Any, now: float) -> Any:
        for each in self.kept:
            if each.name == name and now - each.at < self.ttl_s:
                return each.value
        return None

    def discard(self, name: Any) -> None:
        self.kept = [each for each in self.kept if each.name != name]

    def drop_expired(self, now: float) -> None:
        self.kept = [each for each in self.kept if now - each.at < self.ttl_s]
