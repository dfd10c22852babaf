"""Workers as /workers and /ready show them: catalog, hints, listeners and admission together."""

from collections.abc import Generator, Iterator
from time import monotonic

import msgspec
from msgspec import UnsetType

from indexer.sockets.listener_status import ListenerStatus
from select_service.api.service import Service
from select_service.bodies.health import WorkerHealth
from select_service.bodies.workers import (
    KvEventReason,
    KvEventStatus,
    Lifecycle,
    RankPredictions,
    WorkerRecord,
)
from select_service.core.admission.worker_view import (
    RANKS_PER_STEP,
    AdmissionScene,
    worker_admission,
)
from select_service.core.identity import PartitionKey
from select_service.core.trust.rank_trust import RankTrust
from select_service.core.workers.catalog import Worker

WORKERS_AT_ONCE = 32
"""Records whose busy state is computed together; it costs O(ranks of their partitions)."""

NO_CONNECTION = "there is no connection"
"""What is said where libzmq has told of no reason."""

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
    record.drain = selector.draining.view(worker.worker_id) or msgspec.UNSET
    if worker.schedulable:
        scene = scenes.get(worker.key)
        if scene is None:
            scene = scenes[worker.key] = selector.admission_scene(worker.key, now)
        record.admission = (yield from worker_admission(scene, worker)) or msgspec.UNSET
        record.kv_events = (yield from _kv_events(service, worker, now)) or msgspec.UNSET
        record.health = (yield from _health(service, worker, now)) or msgspec.UNSET
        record.predictions = (yield from _predictions(service, worker)) or msgspec.UNSET
    return record


def _health(
    service: Service, worker: Worker, now: float
) -> Generator[None, None, WorkerHealth | None]:
    fitness = service.selector.fitness
    return None if fitness is None else (yield from fitness.worker_health(worker, now))


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


def _predictions(
    service: Service, worker: Worker
) -> Generator[None, None, dict[int, RankPredictions]]:
    """By dp_rank, of the ranks of which something was found out."""
    found: dict[int, RankPredictions] = {}
    checks = service.selector.hindsight.predictions
    partition = service.selector.fleet.partitions.get(worker.key)
    if checks is None or partition is None:
        return found
    for number, rank in enumerate(worker.ranks(), 1):
        slot = partition.table.find(rank)
        known = None if slot is None else checks.of_rank(partition.table.row(slot).writer)
        if known is not None:
            found[rank.dp_rank] = shown_trust(known, service.ingest.status_of(rank))
        if number % RANKS_PER_STEP == 0:
            yield
    return found


def shown_trust(known: RankTrust, status: ListenerStatus | None) -> RankPredictions:
    """status: of the rank's listener, None: there is none"""
    rate = known.tokens_per_s
    return RankPredictions(
        checks=known.checks,
        trust=round(known.trust, 3) if known.checks else None,
        waits=known.waits,
        wait_error=round(known.wait_error, 3) if known.waits else None,
        tokens_per_s=None if rate is None else round(rate, 1),
        suspect=_likely_cause(status) if known.is_suspect else msgspec.UNSET,
    )


def _likely_cause(status: ListenerStatus | None) -> str:
    """Why the blocks of prompts are not announced."""
    if status is None:
        return "nobody listens to its KV events"
    if not status.connected:
        return f"its KV events do not arrive: {status.connect_error or NO_CONNECTION}"
    if not status.batches:
        return "it has published no KV events: are they switched on, and is it the right endpoint?"
    if status.degraded is not None:
        return f"KV events were lost: {status.degraded}"
    return (
        "KV events arrive, but not for the blocks of its prompts: another block size, salt or LoRA "
        "name than the requests have, the events of another rank, or prefix caching is off"
    )


def _shown(status: ListenerStatus, now: float) -> KvEventStatus:
    last = status.last_event_monotonic
    return KvEventStatus(
        state=status.state,
        connected=status.connected,
        connect_error=status.connect_error,
        degraded=_reason(status.degraded, status.degraded_monotonic, now),
        unverified=_reason(status.doubt, status.doubted_monotonic, now),
        unconnected=_reason(
            status.connect_error or NO_CONNECTION, status.unconnected_monotonic, now
        ),
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
