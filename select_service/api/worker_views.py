"""Worker records for /workers and /ready: catalog, hints, listeners and admission combined."""

from collections.abc import Generator, Iterator
from time import monotonic

import msgspec
from msgspec import UnsetType

from indexer.index.cache_group_status import CacheGroupStatus
from indexer.sockets.listener_status import ListenerStatus
from select_service.api.service_context import ServiceContext
from select_service.core.admission.worker_admission import (
    RANKS_PER_STEP,
    WorkerAdmissionContext,
    make_worker_admission,
)
from select_service.core.analysis.accuracy.prediction_accuracy import PredictionAccuracy
from select_service.core.identity import PartitionKey, Rank
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.health import WorkerHealth
from select_service.schemas.kv_event_status import KvCacheGroup, KvEventReason, KvEventStatus
from select_service.schemas.rank_index import RankPredictions
from select_service.schemas.workers import (
    Lifecycle,
    WorkerRecord,
)

WORKERS_PER_SCENE = 32
"""Records that share one computation of busy states, which costs O(ranks of their partitions)."""

NOT_CONNECTED = "not connected"
"""Reason given when libzmq has reported none."""

ScenesByPartition = dict[PartitionKey, WorkerAdmissionContext]


def build_records(
    service: ServiceContext, workers: list[RegisteredWorker]
) -> Iterator[WorkerRecord | None]:
    """Yield the records with listener status and busy state, and None between steps.

    Records are built on demand.  Workers changed or deleted during the iteration are left out.
    """
    for begin in range(0, len(workers), WORKERS_PER_SCENE):
        scenes: ScenesByPartition = {}
        now = monotonic()
        for worker in workers[begin : begin + WORKERS_PER_SCENE]:
            lifecycle = worker.lifecycle
            steps = _build_record(service, worker, scenes, now)
            # Other tasks run between the steps and may change or delete the worker.
            while _is_unchanged(service, worker, lifecycle):
                try:
                    next(steps)
                except StopIteration as end:
                    yield end.value
                    break
                yield None


def _is_unchanged(service: ServiceContext, worker: RegisteredWorker, lifecycle: Lifecycle) -> bool:
    """Return whether the worker is unchanged."""
    registered = service.fleet.catalog.find_worker(worker.worker_id)
    return registered is worker and worker.lifecycle == lifecycle


def _build_record(
    service: ServiceContext, worker: RegisteredWorker, scenes: ScenesByPartition, now: float
) -> Generator[None, None, WorkerRecord]:
    """Build one record, yielding between steps.  scenes: cache of the admission state by
    partition
    """
    selector = service.selector
    record = selector.worker_record(worker)
    record.deleted = selector.find_deletion(worker.worker_id, now) or msgspec.UNSET
    record.drain = service.draining.drain_view(worker.worker_id) or msgspec.UNSET
    if worker.is_schedulable:
        # Busy states depend on all ranks of the partition: compute them once for many workers.
        scene = scenes.get(worker.key)
        if scene is None:
            scene = scenes[worker.key] = selector.admission_scene(worker.key, now)
        record.admission = (yield from make_worker_admission(scene, worker)) or msgspec.UNSET
        record.kv_events = (yield from _kv_event_statuses(service, worker, now)) or msgspec.UNSET
        record.health = (yield from _worker_health(service, worker, now)) or msgspec.UNSET
        assumptions = service.followers.assumptions
        record.assumed = assumptions.view_assumed(worker, now) or msgspec.UNSET
        record.reported = assumptions.view_reported(worker) or msgspec.UNSET
        record.predictions = (yield from _prediction_views(service, worker)) or msgspec.UNSET
    return record


def _worker_health(
    service: ServiceContext, worker: RegisteredWorker, now: float
) -> Generator[None, None, WorkerHealth | None]:
    fitness = service.health
    return None if fitness is None else (yield from fitness.worker_health(worker, now))


def _kv_event_statuses(
    service: ServiceContext, worker: RegisteredWorker, now: float
) -> Generator[None, None, dict[int, KvEventStatus]]:
    """Return the listener status by dp_rank, for ranks with a listener."""
    found = {}
    for number, dp_rank in enumerate(worker.dp_ranks(), 1):
        status = service.ingest.status_of((worker.worker_id, dp_rank))
        if status is not None:
            found[dp_rank] = _kv_event_status(status, now)
        if number % RANKS_PER_STEP == 0:
            yield
    return found


def _prediction_views(
    service: ServiceContext, worker: RegisteredWorker
) -> Generator[None, None, dict[int, RankPredictions]]:
    """Return the accuracy of predictions by dp_rank, for ranks with samples."""
    found: dict[int, RankPredictions] = {}
    for number, rank in enumerate(worker.list_ranks(), 1):
        predictions = rank_predictions(service, worker, rank)
        if predictions is not None:
            found[rank.dp_rank] = predictions
        if number % RANKS_PER_STEP == 0:
            yield
    return found


def rank_predictions(
    service: ServiceContext, worker: RegisteredWorker, rank: Rank
) -> RankPredictions | None:
    """Return the accuracy of the predictions of a rank.  None means no samples."""
    checks = service.followers.evaluation.predictions
    partition = service.fleet.partitions.get(worker.key)
    slot = None if partition is None else partition.table.find_slot(rank)
    if checks is None or partition is None or slot is None:
        return None
    accuracy = checks.accuracy_of(partition.table.row_at(slot).writer)
    return None if accuracy is None else predictions_view(accuracy, service.ingest.status_of(rank))


def predictions_view(
    accuracy: PredictionAccuracy, status: ListenerStatus | None
) -> RankPredictions:
    """Return the view of a rank's accuracy.  status: listener of the rank; None means no
    listener
    """
    rate = accuracy.tokens_per_s
    return RankPredictions(
        checks=accuracy.checks,
        trust=round(accuracy.trust, 3) if accuracy.checks else None,
        waits=accuracy.waits,
        wait_error=round(accuracy.wait_error, 3) if accuracy.waits else None,
        tokens_per_s=None if rate is None else round(rate, 1),
        suspect=_probable_cause(status) if accuracy.is_suspect else msgspec.UNSET,
    )


def _probable_cause(status: ListenerStatus | None) -> str:
    """Return why the blocks of prompts are probably not announced."""
    if status is None:
        return "no listener for its KV events: registered or changed just now"
    if not status.connected:
        return f"no KV events arrive: {status.connect_error or NOT_CONNECTED}"
    if not status.batches:
        return "no KV events received: check that the engine publishes them, and the endpoint"
    if status.degraded is not None:
        return f"KV events were lost: {status.degraded}"
    return (
        "KV events arrive, but not for the blocks of its prompts: block size, salt or LoRA name "
        "differ from the requests, the events belong to another rank, or prefix caching is off"
    )


def _kv_event_status(status: ListenerStatus, now: float) -> KvEventStatus:
    last = status.last_event_monotonic
    shown = KvEventStatus(
        state=status.state,
        connected=status.connected,
        connect_error=status.connect_error,
        degraded=_event_reason(status.degraded, status.degraded_monotonic, now),
        unverified=_event_reason(status.doubt, status.doubted_monotonic, now),
        unconnected=_event_reason(
            status.connect_error or NOT_CONNECTED, status.unconnected_monotonic, now
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
        unknown_fields=status.unknown_fields or msgspec.UNSET,
        engine_changes=status.engine_changes or msgspec.UNSET,
        last_error=status.last_error,
        seconds_since_last_event=None if last is None else round(max(0.0, now - last), 3),
    )
    if status.cache_groups is not None:
        _add_cache_groups(shown, status.cache_groups)
    return shown


def _add_cache_groups(shown: KvEventStatus, found: CacheGroupStatus) -> None:
    shown.groups = [
        KvCacheGroup(
            group=group.number, kind=group.kind, block_size=group.block_size, blocks=group.blocks
        )
        for group in found.groups
    ]
    shown.unit, shown.lookahead = found.unit, found.lookahead
    shown.certainty = found.certainty
    shown.why = "; ".join(found.reasons) or None


def _event_reason(why: str | None, since: float | None, now: float) -> KvEventReason | UnsetType:
    if why is None or since is None:
        return msgspec.UNSET
    return KvEventReason(reason=why, seconds=round(max(0.0, now - since), 3))
