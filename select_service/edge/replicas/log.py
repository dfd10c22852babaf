"""EDGE: what the replica plane logs about one peer: each fault once per episode, and its end.

A fault that goes on or comes back at once is one episode.  The counters of the status say how often
it happened; the log says when it began and what an operator needs to act.
"""

import logging
from collections.abc import Mapping

from select_service.core.replicas.agreement import Agreement
from select_service.core.replicas.repair import Repaired
from select_service.edge.episodes import Episodes

UNREACHABLE_S = 10.0
"""A new peer that is not connected after so long is named."""
ORDINARY_DROPS = frozenset({"known", "freed_before", "not_booked", "stale"})
"""Come with reordering and repair; nobody has to act."""

log = logging.getLogger("select_service.replicas")


class PeerLog:
    """One peer.  Its methods are told how things stand, as often as one likes."""

    def __init__(self, endpoint: str, now: float) -> None:
        self._endpoint = endpoint
        self._since = now
        self._episodes = Episodes()
        self._connected: bool | None = None
        self._dropped: Mapping[str, int] = {}
        self._diverging = False
        self._repair_failing = False
        self._repair_idle = False

    def connection(self, connected: bool, now: float) -> None:
        if connected and not self._connected:
            self._log(logging.INFO, "replica peer connected")
        elif self._connected and not connected:
            self._log(logging.WARNING, "replica peer disconnected")
        elif self._connected is None and now - self._since >= UNREACHABLE_S:
            self._log(logging.WARNING, "replica peer cannot be reached", seconds=UNREACHABLE_S)
        else:
            return
        self._connected = connected

    def drops(self, dropped: Mapping[str, int], last_error: str | None, now: float) -> None:
        """dropped: messages that changed nothing, by reason, counted from the beginning."""
        for reason, n in dropped.items():
            more = n - self._dropped.get(reason, 0)
            # What came back from ourselves has a message of its own.
            if more and self._episodes.begins(reason, now) and reason != "own":
                level = logging.INFO if reason in ORDINARY_DROPS else logging.WARNING
                detail = {"detail": last_error} if reason in ("decode", "digest") else {}
                self._log(level, "replica messages dropped", reason=reason, count=more, **detail)
        self._dropped = dict(dropped)

    def divergence(self, agreement: Agreement) -> None:
        """Warn when a difference persists, and tell when it is gone."""
        if agreement.differs_persistently and not self._diverging:
            self._diverging = True
            reservations, tokens = agreement.difference
            partitions = [f"{key.model_name}:{key.tenant_id}" for key in agreement.differences]
            self._log(
                logging.WARNING,
                "replica diverges",
                reservations=reservations,
                prefill_tokens=tokens,
                partitions=sorted(partitions)[:5],
            )
        elif self._diverging and not agreement.differences:
            self._diverging = False
            self._log(logging.INFO, "replica agrees again")

    def is_self(self, now: float) -> None:
        """What the peer sends are our own messages."""
        if self._episodes.begins("self", now):
            self._log(logging.WARNING, "replica peer is this process itself")

    def url_not_believed(self, said: str, asked: str, now: float) -> None:
        """What a peer says of itself is not where its list is fetched."""
        if self._episodes.begins("url", now):
            self._log(
                logging.WARNING, "replica names a URL that is not asked", url=said, asked=asked
            )

    def repair_failed(self, error: str) -> None:
        if not self._repair_failing:
            self._log(logging.WARNING, "replica repair failed", error=error)
        self._repair_failing = True

    def repair_ended(self, done: Repaired) -> None:
        """A repair that finds nothing to do is told once, not every half minute."""
        idle = not (done.progress or done.repeated)
        if not idle or self._repair_failing or not self._repair_idle:
            fields = {name: getattr(done, name) for name in Repaired.__slots__}
            self._log(logging.INFO, "replica repair", **fields)
        self._repair_failing, self._repair_idle = False, idle

    def _log(self, level: int, message: str, **fields: object) -> None:
        log.log(level, message, extra={"fields": {"endpoint": self._endpoint, **fields}})


class OutLog:
    """What could not be published."""

    def __init__(self) -> None:
        self._episodes = Episodes()
        self._dropped = 0

    def drops(self, dropped: int, reason: str | None, now: float) -> None:
        """dropped: events, counted from the beginning; reason: of the last one."""
        more = dropped - self._dropped
        if more and self._episodes.begins("dropped", now):
            fields = {"count": more, "reason": reason}
            log.warning("replica events not published", extra={"fields": fields})
        self._dropped = dropped
