"""Log lines about replica peers: each fault once per episode, and its end.

A fault that persists or recurs quickly is one episode.  The counters in the status show how often a
fault occurred; the log has its start and the details an operator needs.
"""

import logging
from collections.abc import Mapping

from select_service.adapters.logs.log_throttle import LogThrottle
from select_service.core.replication.peer_agreement import PeerAgreement
from select_service.core.replication.repair import RepairResult

UNREACHABLE_S = 10.0
"""Seconds without a connection after which a new peer is reported."""
ORDINARY_DROPS = frozenset({"known", "freed_before", "not_booked", "stale"})
"""Reasons of dropped messages that are normal during reordering and repair."""

log = logging.getLogger("select_service.replicas")


class ReplicaPeerLog:
    """Log of a peer; its methods take the current state and may be called at any rate."""

    def __init__(self, endpoint: str, now: float) -> None:
        self._endpoint = endpoint
        self._since = now
        self._episodes = LogThrottle()
        self._connected: bool | None = None
        self._dropped: Mapping[str, int] = {}
        self._diverging = False
        self._repair_failing = False
        self._repair_idle = False

    def log_connection(self, connected: bool, now: float) -> None:
        """Log a new connection, a lost one, or an unreachable peer."""
        if connected and not self._connected:
            self._log_line(logging.INFO, "replica peer connected")
        elif self._connected and not connected:
            self._log_line(logging.WARNING, "replica peer disconnected")
        # Reported once: `_connected` becomes False and only a connection changes that.
        elif self._connected is None and now - self._since >= UNREACHABLE_S:
            self._log_line(logging.WARNING, "replica peer unreachable", seconds=UNREACHABLE_S)
        else:
            return
        self._connected = connected

    def log_drops(self, dropped: Mapping[str, int], last_error: str | None, now: float) -> None:
        """Log dropped messages.

        dropped: total number of messages without effect, by reason
        """
        for reason, n in dropped.items():
            more = n - self._dropped.get(reason, 0)
            # Own messages that come back are logged by `log_self_connection`.
            if more and self._episodes.begins_episode(reason, now) and reason != "own":
                level = logging.INFO if reason in ORDINARY_DROPS else logging.WARNING
                detail = {"detail": last_error} if reason in ("decode", "digest") else {}
                self._log_line(
                    level, "replica messages dropped", reason=reason, count=more, **detail
                )
        self._dropped = dict(dropped)

    def log_divergence(self, agreement: PeerAgreement) -> None:
        """Log a persistent divergence and its end."""
        if agreement.differs_persistently and not self._diverging:
            self._diverging = True
            reservations, tokens = agreement.total_difference
            partitions = [f"{key.model_name}:{key.tenant_id}" for key in agreement.differences]
            self._log_line(
                logging.WARNING,
                "replica diverges",
                reservations=reservations,
                prefill_tokens=tokens,
                partitions=sorted(partitions)[:5],
            )
        elif self._diverging and not agreement.differences:
            self._diverging = False
            self._log_line(logging.INFO, "replica divergence ended")

    def log_self_connection(self, now: float) -> None:
        """Log that the peer is this process itself."""
        if self._episodes.begins_episode("self", now):
            self._log_line(logging.WARNING, "replica peer is this process itself")

    def log_untrusted_url(self, said: str, asked: str, now: float) -> None:
        """Log a URL announced by a peer that is not used for its list."""
        if self._episodes.begins_episode("url", now):
            self._log_line(
                logging.WARNING, "URL announced by replica not used", url=said, asked=asked
            )

    def log_repair_failure(self, error: str) -> None:
        """Log the first of consecutive failed repairs."""
        if not self._repair_failing:
            self._log_line(logging.WARNING, "replica repair failed", error=error)
        self._repair_failing = True

    def log_repair(self, done: RepairResult) -> None:
        """Log a repair; consecutive repairs without changes are logged once."""
        # Two healthy replicas repair regularly without any effect; one line of that is enough.
        idle = not (done.has_progress or done.repeated)
        if not idle or self._repair_failing or not self._repair_idle:
            fields = {name: getattr(done, name) for name in RepairResult.__slots__}
            self._log_line(logging.INFO, "replica repair", **fields)
        self._repair_failing, self._repair_idle = False, idle

    def _log_line(self, level: int, message: str, **fields: object) -> None:
        log.log(level, message, extra={"fields": {"endpoint": self._endpoint, **fields}})


class PublisherLog:
    """Log of events that could not be published."""

    def __init__(self) -> None:
        self._episodes = LogThrottle()
        self._dropped = 0

    def log_drops(self, dropped: int, reason: str | None, now: float) -> None:
        """Log dropped events.

        dropped: total number of dropped events
        reason: reason of the last one
        """
        more = dropped - self._dropped
        if more and self._episodes.begins_episode("dropped", now):
            fields = {"count": more, "reason": reason}
            log.warning("replica events not published", extra={"fields": fields})
        self._dropped = dropped
