"""Health of ranks, workers and fleets as API responses."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import cast

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from select_service.core.health.answers.reference_answers import ReferenceSource
from select_service.core.health.capacity_estimate import SpareRules, recommended_spares
from select_service.core.health.health_kinds import CheckKind, RankHealthState
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.identity import PartitionKey, Rank
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.health import (
    BreakerStateName,
    CapacityView,
    HealthState,
    PartitionHealthView,
    RankHealth,
    RankHealthRow,
    WorkerHealth,
)

CapacityOf = Callable[[PartitionKey], CapacityView | None]
"""Function from a partition to its capacity; None while degradation is off."""
RANKS_PER_STEP = 128
"""Ranks per step, before the event loop runs other tasks."""
_encode = msgspec.json.Encoder().encode


def rank_health(monitor: HealthMonitor, rank: Rank, now: float) -> RankHealth:
    """Return the health of a rank. Raises KeyError for an unknown rank."""
    record, checked = monitor.record_of(rank), monitor.check_state_of(rank)
    last, next_at = checked.last_check, monitor.next_check_at(rank)
    latency_ms = None if last is None else last.latency_ms
    return RankHealth(
        state=_state_label(record.state),
        weight=round(record.published_weight, 3),
        breaker=cast(BreakerStateName, record.breaker.state.label),
        cause=record.cause,
        failures=record.failures,
        checked=monitor.is_checked(rank),
        spare=record.is_spare,
        reservations=monitor.count_reservations(rank),
        baseline_ms=round(record.baseline.value_ms, 3) or None,
        last_result=None if last is None else last.kind,
        last_result_age_s=None if last is None else round(now - last.at, 3),
        last_latency_ms=None if latency_ms is None else round(latency_ms, 3),
        last_error=UNSET if last is None or last.kind is CheckKind.PASS else last.why or UNSET,
        misconfigured=checked.refusal_reason or UNSET,
        next_check_s=None if next_at is None else round(max(0.0, next_at - now), 3),
    )


def worker_health(
    monitor: HealthMonitor, worker: RegisteredWorker, now: float
) -> Generator[None, None, WorkerHealth | None]:
    """Return the health of a worker, in steps; None if the worker is not schedulable."""
    ranks: dict[int, RankHealth] = {}
    worst = RankHealthState.HEALTHY
    for number, rank in enumerate(worker.list_ranks() if worker.is_schedulable else (), 1):
        if monitor.is_registered(rank):
            ranks[rank.dp_rank] = rank_health(monitor, rank, now)
            worst = max(worst, monitor.record_of(rank).state)
        if number % RANKS_PER_STEP == 0:
            yield
    return WorkerHealth(state=_state_label(worst), ranks=ranks) if ranks else None


def fleet_health(
    monitor: HealthMonitor,
    capacity_of: CapacityOf,
    spare_rules: SpareRules,
    model_name: str | None,
    tenant_id: str | None,
    now: float,
) -> Iterator[PartitionHealthView | None]:
    """Yield partitions by model and tenant, each as of the time of the call.

    None is yielded after a part of a partition's ranks.
    """
    keys = [key for key, _ in monitor.iterate_partitions() if key.matches(model_name, tenant_id)]
    sources = monitor.references.sources_by_partition()
    for key in sorted(keys):
        rows: list[msgspec.Raw] = []
        workers = sorted({rank.worker_id for rank in monitor.ranks_of_partition(key)})
        yield None
        for rank in _ranks_of(monitor, workers):
            if monitor.is_in_partition(rank, key):
                rows.append(_encode_row(monitor, rank, now))
            if len(rows) % RANKS_PER_STEP == 0:
                yield None
        partition = monitor.find_partition(key)
        if partition is not None:
            is_expected = any(prompt.expected is not None for prompt in partition.prompts)
            source = ReferenceSource.FILE if is_expected else sources.get(key)
            yield PartitionHealthView(
                model_name=key.model_name,
                tenant_id=key.tenant_id,
                reference_source=None if source is None else source.value,
                capacity=capacity_of(key),
                spares=partition.health.registry.n_spares,
                spares_wanted=recommended_spares(len(workers), spare_rules),
                ranks=cast(list[RankHealthRow], rows),
            )


def _ranks_of(monitor: HealthMonitor, workers: Sequence[int]) -> Iterator[Rank]:
    """Yield the ranks of the workers that still exist."""
    for worker_id in workers:
        worker = monitor.find_worker(worker_id)
        yield from () if worker is None else worker.list_ranks()


def _encode_row(monitor: HealthMonitor, rank: Rank, now: float) -> msgspec.Raw:
    """Return the row as JSON; converting many ranks at once would block the event loop."""
    shown = asdict(rank_health(monitor, rank, now))
    return msgspec.Raw(_encode(RankHealthRow(worker_id=rank[0], dp_rank=rank[1], **shown)))


def _state_label(state: RankHealthState) -> HealthState:
    return cast(HealthState, state.label)
