"""The tasks of this service that are due again and again."""

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from indexer.sockets.ingest import Ingest
from select_service.core.due_task import SECOND_S, DueTask
from select_service.core.replicas.progress import PROGRESS_S
from select_service.core.selector import Selector
from select_service.edge.catalog_follower import CatalogFollower
from select_service.edge.due import DueTasks
from select_service.edge.kv_connections_log import KvConnectionsLog
from select_service.edge.rejection_log import RejectionLog
from select_service.edge.replicas.sync import ReplicaSync

if TYPE_CHECKING:
    from select_service.core.decision_log import DecisionLog

HOLD_LOOK_S = 0.02
"""Between looks whether engines have made room for requests on hold; a batch takes them longer."""
NAMED_MAX = 5
"""Expired reservations named in one log line."""

log = logging.getLogger("select_service.leases")


def due_tasks(
    selector: Selector,
    ingest: Ingest,
    follower: CatalogFollower,
    replicas: ReplicaSync | None,
    logged: "DecisionLog | None" = None,
    others: Sequence[DueTask] = (),
) -> DueTasks:
    """All of them, for one process.  others: of what is switched on"""
    rejections = RejectionLog()

    def look_at_ingest(now: float) -> None:
        """Raises what ended an ingest thread."""
        failure = ingest.failure()
        if failure is not None:
            raise failure

    tasks = [
        DueTask("expiry", SECOND_S, LeaseExpiry(selector).step),
        _once("ingest", look_at_ingest),
        DueTask("kv_events", SECOND_S, KvConnectionsLog(ingest).step),
        *selector.upkeep(),
        *others,
        _once("rejections", lambda now: rejections.tick(selector.gate.tally, now)),
        _once("catalog", lambda now: follower.look()),
        _once("names", lambda now: ingest.names.tend()),
    ]
    if selector.gate.holds:
        tasks.append(DueTask("hold", HOLD_LOOK_S, selector.gate.look_for_progress))
    if logged is not None:
        tasks.append(DueTask("decision_log", logged.interval_s, logged.step))
    if replicas is not None:
        tasks.append(_once("replicas", lambda now: replicas.tick()))
        tasks.append(DueTask("progress", PROGRESS_S, replicas.tell_progress))
    return DueTasks(tasks, monotonic())


def _once(name: str, act: Callable[[float], object]) -> DueTask:
    """A task whose step never leaves anything for the next turn."""

    def step(now: float) -> bool:
        act(now)
        return False

    return DueTask(name, SECOND_S, step)


class LeaseExpiry:
    """Leases that nobody renewed end; one log line when all that were due have ended."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._count = 0
        self._named: list[str] = []

    def step(self, now: float) -> bool:
        ended, more = self._selector.expire(now)
        self._note(ended)
        if self._count and not more:
            fields = {"count": self._count, "reservation_ids": self._named}
            log.info("reservations expired, their load is freed", extra={"fields": fields})
            self._count, self._named = 0, []
        return more

    def _note(self, ended: list[str]) -> None:
        self._count += len(ended)
        room = NAMED_MAX - len(self._named)
        self._named += ended[:room]
