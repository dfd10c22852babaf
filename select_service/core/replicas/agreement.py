"""How far one peer and we agree, and when a repair is due.

A difference is repaired when it has persisted over a few digests, so that what is only on its way
arrives by itself.  The first digest of a process is an exception: whoever has just joined, or meets
a peer that has, lacks everything before.  A repair that changes nothing (the catalogs differ, say)
is tried ever more seldom.
"""

from dataclasses import dataclass, field

from select_service.core.replicas.digest import Difference, Differences, Digest, total

PERSISTENT_DIGESTS = 3
RETRY_S = 2.0
"""Between two repairs at the least, and after one that failed."""
RETRY_S_MAX = 15.0
"""Between two repairs when the last ones changed nothing.  Part of how long it takes until replicas
agree after the last fault, at the most (docs/replicas.md)."""


@dataclass(slots=True)
class Agreement:
    """One peer.  `lost` counts its events that are known not to have arrived."""

    router_id: int | None = None
    port: int = 0
    url: str | None = None
    differences: Differences = field(default_factory=dict)
    lost: int = 0
    digests: int = 0
    _number: int = -1
    _sent: int = 0
    _events: int = 0
    _events_at_digest: int = 0
    _differing: int = 0
    _diverging: int = 0
    _not_before: float = 0.0
    _pause_s: float = RETRY_S

    @property
    def difference(self) -> Difference:
        return total(self.differences.values())

    @property
    def differs_persistently(self) -> bool:
        """Did the last PERSISTENT_DIGESTS digests all differ, whatever repairs did meanwhile?"""
        return self._diverging >= PERSISTENT_DIGESTS

    def event_came(self, router_id: int) -> None:
        """An event of the peer arrived, whatever became of it."""
        self._events += router_id == self.router_id

    def is_new(self, digest: Digest) -> bool:
        """False for a digest that a later one has overtaken."""
        return digest.router_id != self.router_id or digest.number > self._number

    def digest_came(self, digest: Digest, found: Differences) -> None:
        """Take in the comparison with a new digest."""
        is_first = digest.router_id != self.router_id
        if is_first:
            self._events = 0
            self._pause_s, self._not_before = RETRY_S, 0.0
        else:
            arrived = self._events - self._events_at_digest
            self.lost += max(0, digest.sent - self._sent - arrived)
        self.router_id, self.port, self.url = digest.router_id, digest.port, digest.url
        self._number, self._sent, self._events_at_digest = digest.number, digest.sent, self._events
        self.differences = found
        self.digests += 1
        self._diverging = self._diverging + 1 if found else 0
        if not found:
            self._differing, self._pause_s = 0, RETRY_S
        else:
            self._differing = PERSISTENT_DIGESTS if is_first else self._differing + 1

    def repair_due(self, now: float) -> bool:
        return self._differing >= PERSISTENT_DIGESTS and now >= self._not_before

    def repair_ended(self, changed: bool, now: float) -> None:
        """`changed`: the repair brought the two closer."""
        self._differing = 0 if changed else self._differing
        self._pause_s = RETRY_S if changed else min(2 * self._pause_s, RETRY_S_MAX)
        self._not_before = now + self._pause_s

    def catalog_grew(self) -> None:
        """There are ranks that were unknown to the repairs before: no pause because of those."""
        self._pause_s, self._not_before = RETRY_S, 0.0

    def repair_failed(self, now: float) -> None:
        """The list could not be had."""
        self._not_before = now + RETRY_S
