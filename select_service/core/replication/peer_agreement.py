"""Agreement with a peer, and the time of the next repair.

A difference is repaired after it persisted over a few digests, since events in flight resolve
temporary differences. The first digest of a process is an exception: a replica that just joined, or
meets a peer that did, lacks everything before. Repairs without effect (different catalogs, for
example) are retried at growing intervals.
"""

from dataclasses import dataclass, field

from select_service.core.replication.digest import (
    Differences,
    Digest,
    LoadDifference,
    sum_differences,
)

PERSISTENT_DIGESTS = 3
RETRY_S = 2.0
"""Minimum time between two repairs, and pause after a failed repair, s."""
RETRY_S_MAX = 15.0
"""Maximum time between two repairs without effect, s.

Part of the bound for agreement after the last fault (docs/explanation/replication.md).
"""


@dataclass(slots=True)
class PeerAgreement:
    """Agreement with a peer.

    lost: number of its events that are known to be lost
    """

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
    def total_difference(self) -> LoadDifference:
        return sum_differences(self.differences.values())

    @property
    def differs_persistently(self) -> bool:
        """Whether the last PERSISTENT_DIGESTS digests all differed, regardless of repairs."""
        # Separate from the counter that triggers repairs, as completed repairs reset that one.
        return self._diverging >= PERSISTENT_DIGESTS

    def count_event(self, router_id: int) -> None:
        """Count an event of the peer, whatever its effect."""
        self._events += router_id == self.router_id

    def is_new(self, digest: Digest) -> bool:
        """Return False for a digest older than the latest."""
        return digest.router_id != self.router_id or digest.number > self._number

    def record_digest(self, digest: Digest, differences: Differences) -> None:
        """Record the comparison with a new digest."""
        is_first = digest.router_id != self.router_id
        if is_first:
            self._events = 0
            self._pause_s, self._not_before = RETRY_S, 0.0
        else:
            arrived = self._events - self._events_at_digest
            # Digests travel behind the events, in order: events missing at this point are lost for
            # good.
            self.lost += max(0, digest.sent - self._sent - arrived)
        self.router_id, self.port, self.url = digest.router_id, digest.port, digest.url
        self._number, self._sent, self._events_at_digest = digest.number, digest.sent, self._events
        self.differences = differences
        self.digests += 1
        self._diverging = self._diverging + 1 if differences else 0
        if not differences:
            self._differing, self._pause_s = 0, RETRY_S
        else:
            # A new process lacks everything before its start: repair at once.
            self._differing = PERSISTENT_DIGESTS if is_first else self._differing + 1

    def is_repair_due(self, now: float) -> bool:
        return self._differing >= PERSISTENT_DIGESTS and now >= self._not_before

    def record_repair(self, changed: bool, now: float) -> None:
        """Record a completed repair; changed means that the difference became smaller."""
        self._differing = 0 if changed else self._differing
        # A repair without effect meets a permanent difference, such as different catalogs.
        self._pause_s = RETRY_S if changed else min(2 * self._pause_s, RETRY_S_MAX)
        self._not_before = now + self._pause_s

    def reset_pause(self) -> None:
        """Reset the pause: new ranks may make earlier refusals obsolete."""
        self._pause_s, self._not_before = RETRY_S, 0.0

    def record_failed_repair(self, now: float) -> None:
        """Record a failed request for the peer's list."""
        self._not_before = now + RETRY_S
