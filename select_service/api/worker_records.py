"""Workers as /workers and /ready show them: catalog, hints, listeners and admission together."""

from collections.abc import Generator, Iterator
from time import monotonic

import msgspec
from msgspec import UnsetType

from indexer.sockets.listener_status import ListenerStatus
from select_service.api.service import Service
from select_service.bodies.workers import KvEventReason, KvEventStatus, Lifecycle, WorkerRecord
from select_service.core.admission.worker_view import (
    RANKS_PER_STEP,
    AdmissionScene,
    worker_admission,
)
from select_service.core.identity import PartitionKey
from select_service.core.workers.catalog import Worker

WORKERS_AT_ONCE = 32
"""Records whose busy state is computed together; it costs O(ranks of their partitions)."""

Scenes = dict[PartitionKey, AdmissionScene]


def records(service: Service, workers: list[Worker]) -> Iterator[WorkerRecord | None]:
    """The records with what the listeners of their ranks have seen, and with their busy state.

    Each is made when it is asked for; None after a part of the ranks of one.  Workers that were
    changed meanwhile are left out: they are others now, or gone.
    """
    for begin in range(0, len(workers), WORKERS_AT_ONCE):
        scenes: Scenes = {}
        now = monotonic()
        for worker in workers[begin : begin + WORKERS_AT_ONCE]:
            lifecycle = worker.lifecycle
            steps = _record(service, worker, scenes, now)
            while _stands(service, worker, lifecycle):
                try:
                    next(steps)
                except StopIteration as end:
                    yield end.value
                    break
                yield None


def _stands(service: Service, worker: Worker, lifecycle: Lifecycle) -> bool:
    """Is it as it was?"""
    known = service.selector.fleet.catalog.find(worker.worker_id)
    return known is worker and worker.lifecycle == lifecycle


def _record(
    service: Service, worker: Worker, scenes: Scenes, now: float
) -> Generator[None, None, WorkerRecord]:
    """scenes: those of partitions that have been looked at"""
    selector = service.selector
    record = selector.record(worker)
    record.deleted = selector.deletion(worker.worker_id, now) or msgspec.UNSET
    if worker.schedulable:
        scene = scenes.get(worker.key)
        if scene is None:
            scene = scenes[worker.key] = selector.admission_scene(worker.key, now)
        record.admission = (yield from worker_admission(scene, worker)) or msgspec.UNSET
        record.kv_events = (yield from _kv_events(service, worker, now)) or msgspec.UNSET
    return record


def _kv_events(
    service: Service, worker: Worker, now: float
) -> Generator[None, None, dict[int, KvEventStatus]]:
    """By dp_rank, of the ranks that are listened to."""
    found = {}
    for number, dp_rank in enumerate(worker.dp_ranks(), 1):
        status = service.ingest.status_of((worker.worker_id, dp_rank))
        if status is not None:
            found[dp_rank] = _shown(status, now)
        if number % RANKS_PER_STEP == 0:
            yield
    return found


def _shown(status: ListenerStatus, now: float) -> KvEventStatus:
    last = status.last_event_monotonic
    return KvEventStatus(
        state=status.state,
        connected=status.connected,
        connect_error=status.connect_error,
        degraded=_reason(status.degraded, status.degraded_monotonic, now),
        unverified=_reason(status.doubt, status.doubted_monotonic, now),
        last_sequence=status.last_sequence,
        batches=status.batches,
        gaps=status.gaps,
        replayed=status.replayed,
        lost=status.lost,
        restarts=status.restarts,
        semantics="counted" if status.is_counted else "set",
        decode_errors=status.decode_errors,
        dropped=status.dropped or msgspec.UNSET,
        last_error=status.last_error,
        seconds_since_last_event=None if last is None else round(max(0.0, now - last), 3),
    )


def _reason(why: str | None, since: float | None, now: float) -> KvEventReason | UnsetType:
    if why is None or since is None:
        return msgspec.UNSET
    return KvEventReason(reason=why, seconds=round(max(0.0, now - since), 3))
