"""What every source of workers has: a name, how its readings went, and where it offers them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, Protocol, TypeAlias

from select_service.core.discovery.following import NOBODY, Desired

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
    offer: Callable[[str, Desired, frozenset[int]], None] = field(repr=False)
    read_at: float | None = None
    error: str | None = None
    changes: int = 0
    failures: int = 0
    withheld: Mapping[str, str] = field(default_factory=dict, repr=False)
    _last: tuple[Desired, frozenset[int]] | None = field(default=None, repr=False)

    def was_read(self) -> None:
        """It could be read, and was found good."""
        self.read_at, self.error = monotonic(), None

    def says(
        self,
        desired: Desired,
        undecided: frozenset[int] = NOBODY,
        withheld: Mapping[str, str] | None = None,
    ) -> None:
        """What follows from the last good reading.

        undecided: ids of workers that are found, but not known yet
        withheld: what is found and not said, by its endpoint, and why
        """
        self.withheld = withheld or {}
        if (desired, undecided) == self._last:
            return
        self._last = desired, undecided
        self.changes += 1
        self.offer(self.name, desired, undecided)
        fields = {"source": self.name, "workers": len(desired)}
        log.info("a source of workers was read", extra={"fields": fields})

    def failed(self, error: str) -> None:
        """What it said before goes on counting."""
        self.failures += 1
        if error != self.error:
            kept = None if self._last is None else len(self._last[0])
            fields = {"source": self.name, "place": self.place, "error": error, "kept": kept}
            log.error("a source of workers cannot be read", extra={"fields": fields})
        self.error = error


class Source(Protocol):
    async def run(self) -> None:
        """Reads until it is cancelled; only a fault of this program ends it otherwise."""
