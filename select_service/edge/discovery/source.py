"""What every source of workers has: a name, how its readings went, and where it offers them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, Protocol, TypeAlias

from select_service.core.discovery.following import Desired

Kind: TypeAlias = Literal["file", "dns", "kubernetes"]

log = logging.getLogger("select_service.discovery")


@dataclass(slots=True)
class Readings:
    """place: what is read, for people;  offer: takes what was read
    read_at: of the last good one, in seconds of the monotonic clock
    changes, failures: how many readings said something new, and how many failed
    """

    name: str
    kind: Kind
    place: str
    offer: Callable[[str, Desired], None] = field(repr=False)
    read_at: float | None = None
    error: str | None = None
    changes: int = 0
    failures: int = 0
    _last: Desired | None = field(default=None, repr=False)

    def good(self, desired: Desired) -> None:
        """What the source says now."""
        self.read_at, self.error = monotonic(), None
        if desired == self._last:
            return
        self.changes += 1
        self._last = desired
        self.offer(self.name, desired)
        fields = {"source": self.name, "workers": len(desired)}
        log.info("a source of workers was read", extra={"fields": fields})

    def failed(self, error: str) -> None:
        """What it said before goes on counting."""
        self.failures += 1
        if error != self.error:
            kept = None if self._last is None else len(self._last)
            fields = {"source": self.name, "place": self.place, "error": error, "kept": kept}
            log.error("a source of workers cannot be read", extra={"fields": fields})
        self.error = error


class Source(Protocol):
    """Reads until it is cancelled; only a fault of this program ends it otherwise."""

    readings: Readings

    async def run(self) -> None: ...
