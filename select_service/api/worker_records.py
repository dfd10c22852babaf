"""Workers as /workers and /ready show them: catalog, hints, listeners and admission together."""

from collections.abc import Iterator
from time import monotonic

import msgspec
from msgspec import UnsetType

from indexer.sockets.listener import ListenerStatus
from select_service.api.service import Service
from select_service.bodies.workers import KvEventDoubt, KvEventStatus, WorkerRecord
from select_service.core.workers.catalog import Worker

WORKERS_AT_ONCE = 32
"""Records whose busy state is computed together; it costs O(ranks of their partitions)."""


def records(service: Service, workers: list[Worker]) -> Iterator[WorkerRecord]:
    """The records with what the listeners of their ranks have seen, and with their busy state.

    Each is made when it is asked for.  Workers that were changed meanwhile are left out: they are
    others now, or gone.
    """
    selector = service.selector
    for begin in range(0, len(workers), WORKERS_AT_ONCE):
        some = workers[begin : begin + WORKERS_AT_ONCE]
        now = monotonic()
        present = [w for w in some if selector.fleet.catalog.find(w.worker_id) is w]
        admissions = selector.worker_admissions(present, now)
        for worker in present:
            record = selector.record(worker)
            record.admission = admissions.get(worker.worker_id, msgspec.UNSET)
            record.deleted = selector.deletion(worker.worker_id, now) or msgspec.UNSET
            record.kv_events = _kv_events(service, worker, now) or msgspec.UNSET
            yield record


def _kv_events(service: Service, worker: Worker, now: float) -> dict[int, KvEventStatus]:
    """By dp_rank, of the ranks that are listened to."""
    found = {}
    for dp_rank in worker.dp_ranks() if worker.schedulable else ():
        status = service.ingest.status_of((worker.worker_id, dp_rank))
        if status is not None:
            found[dp_rank] = _shown(status, now)
    return found


def _shown(status: ListenerStatus, now: float) -> KvEventStatus:
    last = status.last_event_monotonic
    return KvEventStatus(
        state=status.state,
        connected=status.connected,
        connect_error=status.connect_error,
        unverified=_doubt(status, now),
        last_sequence=status.last_sequence,
        batches=status.batches,
        gaps=status.gaps,
        replayed=status.replayed,
        lost=status.lost,
        restarts=status.restarts,
        semantics="counted" if status.is_counted else "set",
        decode_errors=status.decode_errors,
        last_error=status.last_error,
        seconds_since_last_event=None if last is None else round(max(0.0, now - last), 3),
    )


def _doubt(status: ListenerStatus, now: float) -> KvEventDoubt | UnsetType:
    if status.doubt is None or status.doubted_monotonic is None:
        return msgspec.UNSET
    seconds = round(max(0.0, now - status.doubted_monotonic), 3)
    return KvEventDoubt(reason=status.doubt, seconds=seconds)
