"""The health of ranks, workers and fleets, for people and their programs."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import cast

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from select_service.bodies.health import (
    BreakerWord,
    CapacityView,
    HealthState,
    PartitionHealthView,
    RankHealth,
    RankHealthRow,
    WorkerHealth,
)
from select_service.core.health.capacity import spares_wanted
from select_service.core.health.kinds import Kind, State
from select_service.core.health.monitor import HealthMonitor
from select_service.core.health.reference_book import Source
from select_service.core.identity import PartitionKey, Rank
from select_service.core.workers.catalog import Worker

CapacityOf = Callable[[PartitionKey], CapacityView | None]
"""None: degradation is off."""
RANKS_PER_STEP = 128
"""Ranks that are shown before others may be served."""
_encode = msgspec.json.Encoder().encode


def rank_health(monitor: HealthMonitor, rank: Rank, now: float) -> RankHealth:
    """Raises KeyError for a rank that is not here."""
    record, checked = monitor.record(rank), monitor.checked(rank)
    last, next_at = checked.last, monitor.next_check_at(rank)
    latency_ms = None if last is None else last.latency_ms
    return RankHealth(
        state=_state(record.state),
        weight=round(record.told_weight, 3),
        breaker=cast(BreakerWord, record.breaker.state.word),
        cause=record.cause,
        failures=record.failures,
        checked=monitor.is_checked(rank),
        spare=record.is_spare,
        reservations=monitor.booked_on(rank),
        baseline_ms=round(record.baseline.value_ms, 3) or None,
        last_result=None if last is None else last.kind,
        last_result_age_s=None if last is None else round(now - last.at, 3),
        last_latency_ms=None if latency_ms is None else round(latency_ms, 3),
        last_error=UNSET if last is None or last.kind is Kind.PASS else last.why or UNSET,
        misconfigured=checked.misconfigured or UNSET,
        next_check_s=None if next_at is None else round(max(0.0, next_at - now), 3),
    )


def worker_health(
    monitor: HealthMonitor, worker: Worker, now: float
) -> Generator[None, None, WorkerHealth | None]:
    """In steps.  None: it has no health, since it cannot be chosen."""
    ranks: dict[int, RankHealth] = {}
    worst = State.HEALTHY
    for number, rank in enumerate(worker.ranks() if worker.schedulable else (), 1):
        if monitor.knows(rank):
            ranks[rank.dp_rank] = rank_health(monitor, rank, now)
            worst = max(worst, monitor.record(rank).state)
        if number % RANKS_PER_STEP == 0:
            yield
    return WorkerHealth(state=_state(worst), ranks=ranks) if ranks else None


def fleet_health(
    monitor: HealthMonitor,
    capacity_of: CapacityOf,
    model_name: str | None,
    tenant_id: str | None,
    now: float,
) -> Iterator[PartitionHealthView | None]:
    """By model and tenant, each as it is when it is asked for.

    None after a part of the ranks of one.
    """
    keys = [key for key, _ in monitor.partitions() if key.within(model_name, tenant_id)]
    sources = monitor.book.sources()
    for key in sorted(keys):
        rows: list[msgspec.Raw] = []
        workers = sorted({rank.worker_id for rank in monitor.ranks_of_partition(key)})
        yield None
        for rank in _ranks_of(monitor, workers):
            if monitor.is_of(rank, key):
                rows.append(_row(monitor, rank, now))
            if len(rows) % RANKS_PER_STEP == 0:
                yield None
        partition = monitor.partition(key)
        if partition is not None:
            is_expected = any(prompt.expected is not None for prompt in partition.prompts)
            source = Source.FILE if is_expected else sources.get(key)
            yield PartitionHealthView(
                model_name=key.model_name,
                tenant_id=key.tenant_id,
                reference_source=None if source is None else source.value,
                capacity=capacity_of(key),
                spares=partition.health.roster.spares,
                spares_wanted=spares_wanted(len(workers)),
                ranks=cast(list[RankHealthRow], rows),
            )


def _ranks_of(monitor: HealthMonitor, workers: Sequence[int]) -> Iterator[Rank]:
    """Of those workers that are still here."""
    for worker_id in workers:
        worker = monitor.worker(worker_id)
        yield from () if worker is None else worker.ranks()


def _row(monitor: HealthMonitor, rank: Rank, now: float) -> msgspec.Raw:
    """As JSON: rows of many ranks at once would take long."""
    shown = asdict(rank_health(monitor, rank, now))
    return msgspec.Raw(_encode(RankHealthRow(worker_id=rank[0], dp_rank=rank[1], **shown)))


def _state(state: State) -> HealthState:
    return cast(HealthState, state.word)
