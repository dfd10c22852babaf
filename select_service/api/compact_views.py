"""Compact forms of GET /workers and GET /loads: columns of ranks, computed in small steps."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from time import monotonic
from typing import NamedTuple, TypeVar, cast

from select_service.api.service_context import ServiceContext
from select_service.core.admission.worker_admission import make_admission_columns
from select_service.core.draining import DrainRegistry
from select_service.core.identity import PartitionKey, Rank
from select_service.core.registry.fleet.partition import Partition
from select_service.core.views.rank_views import LoadColumns, load_columns
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.compact import CompactLoads, CompactRanks, CompactState
from select_service.schemas.workers import Lifecycle

RANKS_PER_STEP = 256
"""Number of ranks computed per step of the event loop."""
AGE_DIGITS = 1

C = TypeVar("C", bound=CompactLoads)


class _RankBatch(NamedTuple):
    """Ranks of a partition and of workers with the same lifecycle."""

    key: PartitionKey
    lifecycle: Lifecycle
    ranks: list[Rank]

    @property
    def has_slots(self) -> bool:
        """Whether the ranks have slots."""
        return self.lifecycle == "schedulable"


def compact_ranks(
    service: ServiceContext, workers: Iterable[RegisteredWorker]
) -> Iterator[CompactRanks | None]:
    """Yield the columns of each partition, and None after each batch of ranks.

    Workers changed or deleted during the iteration are left out.

    workers: workers in an order that keeps each partition together
    """
    for key, among in groupby(workers, lambda worker: worker.key):
        shown = _empty_columns(CompactRanks, service, key)
        for batch in _split_batches(service, key, among):
            _add_loads(service, shown, batch)
            _add_states(service, shown, batch)
            _add_assumed(service, shown, batch)
            _add_events(service, shown, batch)
            yield None
        yield shown


def compact_loads(
    service: ServiceContext, workers: Iterable[RegisteredWorker]
) -> Iterator[CompactLoads | None]:
    """Yield only the load columns of each partition, for schedulable workers; None after each
    batch.
    """
    for key, among in groupby(workers, lambda worker: worker.key):
        shown = _empty_columns(CompactLoads, service, key)
        for batch in _split_batches(service, key, among):
            if batch.has_slots:
                _add_loads(service, shown, batch)
            yield None
        if shown.worker_ids:
            yield shown


def _empty_columns(form: type[C], service: ServiceContext, key: PartitionKey) -> C:
    """Return empty columns of a partition with its queue totals."""
    waiting = service.gate.waiting.backlog_of(key)
    return form(
        model_name=key.model_name,
        tenant_id=key.tenant_id,
        pending_count=waiting.requests,
        pending_isl_tokens=waiting.isl_tokens,
    )


def _split_batches(
    service: ServiceContext, key: PartitionKey, workers: Iterable[RegisteredWorker]
) -> Iterator[_RankBatch]:
    """Yield batches in order; lifecycles are read when a batch is produced, not in advance."""
    find = service.fleet.catalog.find_worker
    every = ((worker, rank) for worker in workers for rank in worker.list_ranks())
    # Look at the catalog now, not at the start of the iteration: other tasks ran between steps
    # and may have replaced or deleted workers.
    while some := [*islice(every, RANKS_PER_STEP)]:
        there = (pair for pair in some if find(pair[0].worker_id) is pair[0])
        for lifecycle, pairs in groupby(there, lambda pair: pair[0].lifecycle):
            yield _RankBatch(key, lifecycle, [rank for _, rank in pairs])


def _slots_of_batch(partition: Partition, batch: _RankBatch) -> list[int]:
    found = [partition.table.find_slot(rank) for rank in batch.ranks]
    return [slot for slot in found if slot is not None]


def _add_loads(service: ServiceContext, shown: CompactLoads, batch: _RankBatch) -> None:
    shown.worker_ids += [rank.worker_id for rank in batch.ranks]
    shown.dp_ranks += [rank.dp_rank for rank in batch.ranks]
    if batch.has_slots:
        partition = service.fleet.partitions[batch.key]
        blocks = partition.load.compute_active_blocks()
        columns = load_columns(partition, blocks, _slots_of_batch(partition, batch))
    else:
        nothing = [0] * len(batch.ranks)
        columns = LoadColumns(nothing, nothing, nothing)
    shown.prefill_tokens += columns.prefill_tokens
    shown.active_blocks += columns.active_blocks
    shown.active_requests += columns.active_requests


def _add_states(service: ServiceContext, shown: CompactRanks, batch: _RankBatch) -> None:
    n = len(batch.ranks)
    if not batch.has_slots:
        shown.states += [batch.lifecycle] * n
        shown.busy += [False] * n
        shown.kv_usages += [None] * n
        return
    states: list[str] = [batch.lifecycle] * n
    fitness = service.health
    if fitness is not None:
        states = [fitness.state_of(rank) or batch.lifecycle for rank in batch.ranks]
    if len(service.draining):
        # _add_loads has just appended the loads of this batch: the last n entries.
        requests = shown.active_requests[-n:]
        states = [*map(partial(_draining_state, service.draining), batch.ranks, states, requests)]
    shown.states += cast(list[CompactState], states)
    scene = service.selector.admission_scene(batch.key, monotonic())
    columns = make_admission_columns(scene, _slots_of_batch(scene.partition, batch))
    shown.busy += columns.busy
    shown.kv_usages += columns.kv_usages


def _draining_state(draining: DrainRegistry, rank: Rank, state: str, requests: int) -> str:
    """Return the state of a rank, adjusted if its worker is draining."""
    if rank.worker_id not in draining or state not in ("schedulable", "draining"):
        return state
    return "draining" if requests else "drained"


def _add_assumed(service: ServiceContext, shown: CompactRanks, batch: _RankBatch) -> None:
    """Add the rows of ranks with an index from bookings alone."""
    partition = service.fleet.partitions.get(batch.key)
    if partition is None or partition.assumed is None or not batch.has_slots:
        return
    rows = []
    for row, rank in enumerate(batch.ranks, len(shown.event_states)):
        slot = partition.table.find_slot(rank)
        assumed = None if slot is None else partition.assumed.rank_at(slot)
        if assumed is not None and not assumed.is_beside_events:
            rows.append(row)
    if rows:
        shown.assumed_rows = [*(shown.assumed_rows or ()), *rows]


def _add_events(service: ServiceContext, shown: CompactRanks, batch: _RankBatch) -> None:
    now, bounded = monotonic(), []
    for row, rank in enumerate(batch.ranks, len(shown.event_states)):
        pulse = service.ingest.pulse_of(rank)
        if pulse is not None and pulse.is_bound:
            bounded.append(row)
        last = None if pulse is None else pulse.last_event_monotonic
        shown.event_states.append(None if pulse is None else pulse.state)
        shown.event_batches.append(0 if pulse is None else pulse.batches)
        shown.event_ages_s.append(None if last is None else round(max(0.0, now - last), AGE_DIGITS))
    if bounded:
        shown.bounded_rows = [*(shown.bounded_rows or ()), *bounded]
