"""Periodic tasks of the selection service."""

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from indexer.sockets.ingest import Ingest
from select_service.adapters.catalog_follower import CatalogFollower
from select_service.adapters.logs.kv_connections_log import KvConnectionsLog
from select_service.adapters.logs.rejection_log import RejectionLog
from select_service.adapters.logs.silent_ranks_log import SilentRanksLog
from select_service.adapters.periodic_tasks import PeriodicTasks
from select_service.adapters.replicas.replica_sync import ReplicaSync
from select_service.core.periodic_task import SECOND_S, PeriodicTask
from select_service.core.replication.prefill_progress import PROGRESS_S
from select_service.core.selector import SelectorCore

if TYPE_CHECKING:
    from select_service.core.analysis.decision_log import DecisionLogWriter

HOLD_CHECK_S = 0.02
"""Interval of checks for free capacity while requests are on hold, in seconds.

An engine needs longer than this for a batch.
"""
NAMED_RESERVATIONS_MAX = 5
"""Maximum number of expired reservation ids in a log line."""

log = logging.getLogger("select_service.leases")


def make_service_tasks(
    selector: SelectorCore,
    ingest: Ingest,
    follower: CatalogFollower,
    replicas: ReplicaSync | None,
    logged: "DecisionLogWriter | None" = None,
    others: Sequence[PeriodicTask] = (),
) -> PeriodicTasks:
    """Return the scheduler with all periodic tasks of one process.

    others: tasks of optional features that are enabled
    """
    rejections = RejectionLog()
    silences = SilentRanksLog(selector.followers.assumptions.silent)

    def look_at_ingest(now: float) -> None:
        """Raise the exception that ended an ingest thread, if any."""
        failure = ingest.failure()
        if failure is not None:
            raise failure

    tasks = [
        PeriodicTask("expiry", SECOND_S, ReservationExpiry(selector).expire_step),
        _single_step_task("ingest", look_at_ingest),
        PeriodicTask("kv_events", SECOND_S, KvConnectionsLog(ingest).check_step),
        *selector.periodic_tasks(),
        *others,
        _single_step_task(
            "rejections", lambda now: rejections.update_episode(selector.gate.tally, now)
        ),
        _single_step_task("silent_ranks", silences.update_ranks),
        _single_step_task("catalog", lambda now: follower.wake_if_changed()),
        _single_step_task("names", lambda now: ingest.resolver.retry_threads()),
    ]
    # A task every 20 ms costs CPU on an idle service, so it exists only if requests can be on hold.
    if selector.gate.waits_for_work:
        tasks.append(PeriodicTask("hold", HOLD_CHECK_S, selector.gate.wake_by_progress))
    if logged is not None:
        tasks.append(PeriodicTask("decision_log", logged.interval_s, logged.write_step))
    if replicas is not None:
        tasks.append(_single_step_task("replicas", lambda now: replicas.publish_digest()))
        tasks.append(PeriodicTask("progress", PROGRESS_S, replicas.publish_progress))
    return PeriodicTasks(tasks, monotonic())


def _single_step_task(name: str, act: Callable[[float], object]) -> PeriodicTask:
    """Return a task that never leaves work for the next loop iteration."""

    def step(now: float) -> bool:
        act(now)
        return False

    return PeriodicTask(name, SECOND_S, step)


class ReservationExpiry:
    """Task that expires reservations without a lease renewal.

    Logs one line after all expired reservations of a run have been freed.
    """

    def __init__(self, selector: SelectorCore) -> None:
        self._selector = selector
        self._count = 0
        self._named: list[str] = []

    def expire_step(self, now: float) -> bool:
        """Expire a bounded number of reservations; return whether more are due."""
        ended, more = self._selector.expire_reservations(now)
        self._record_expired(ended)
        if self._count and not more:
            fields = {"count": self._count, "reservation_ids": self._named}
            log.info("reservations expired", extra={"fields": fields})
            self._count, self._named = 0, []
        return more

    def _record_expired(self, ended: list[str]) -> None:
        self._count += len(ended)
        room = NAMED_RESERVATIONS_MAX - len(self._named)
        self._named += ended[:room]
