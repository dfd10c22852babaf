"""Interface and read status shared by all discovery sources."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, Protocol, TypeAlias

from select_service.core.registry.discovery.reconciler import NO_WORKERS, Desired

Kind: TypeAlias = Literal["file", "dns", "kubernetes"]

log = logging.getLogger("select_service.discovery")


@dataclass(slots=True)
class SourceStatus:
    """Read status of a source and the target of its results.

    place: description of the source, for people
    offer: function that receives the workers found
    read_at: time of the last successful read, monotonic clock, seconds
    changes: number of reads with a changed result
    failures: number of failed reads
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

    def record_success(self) -> None:
        """Record a successful read."""
        self.read_at, self.error = monotonic(), None

    def publish_workers(
        self,
        desired: Desired,
        undecided: frozenset[int] = NO_WORKERS,
        withheld: Mapping[str, str] | None = None,
    ) -> None:
        """Publish the workers of the last successful read.

        undecided: ids of workers that are found but not described yet
        withheld: reason by endpoint, for engines that are found but not published
        """
        self.withheld = withheld or {}
        # Files and lists are re-read often; an unchanged result must not wake the reconciler.
        if (desired, undecided) == self._last:
            return
        self._last = desired, undecided
        self.changes += 1
        self.offer(self.name, desired, undecided)
        fields = {"source": self.name, "workers": len(desired)}
        log.info("discovery source read", extra={"fields": fields})

    def record_failure(self, error: str) -> None:
        """Record a failed read; the previous workers are kept."""
        self.failures += 1
        if error != self.error:
            kept = None if self._last is None else len(self._last[0])
            fields = {"source": self.name, "place": self.place, "error": error, "kept": kept}
            log.error("discovery source read failed", extra={"fields": fields})
        self.error = error


class DiscoverySource(Protocol):
    """Discovery source."""

    async def run(self) -> None:
        """Read the source until cancelled.  Only a bug in this program ends the task otherwise."""
