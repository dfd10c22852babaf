"""GET /workers and GET /loads in their compact forms: columns of ranks, made some ranks a turn."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from time import monotonic
from typing import NamedTuple, TypeVar, cast

from select_service.api.service import Service
from select_service.bodies.compact import CompactLoads, CompactRanks, CompactState
from select_service.bodies.workers import Lifecycle
from select_service.core.admission.worker_view import admission_columns
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey, Rank
from select_service.core.selector import Selector
from select_service.core.views.ranks import LoadColumns, load_columns
from select_service.core.workers.catalog import Worker

RANKS_PER_STEP = 256
"""Ranks that are shown together."""
AGE_DIGITS = 1

C = TypeVar("C", bound=CompactLoads)


class _Batch(NamedTuple):
    """Ranks of one partition, of workers of one lifecycle."""

    key: PartitionKey
    lifecycle: Lifecycle
    ranks: list[Rank]

    @property
    def is_open(self) -> bool:
        """Do its ranks have slots?"""
        return self.lifecycle == "schedulable"


def compact_ranks(service: Service, workers: Iterable[Worker]) -> Iterator[CompactRanks | None]:
    """By partition all ranks of these workers; None after some of them.

    Workers that are changed meanwhile are left out: they are others then, or gone.

    workers: those of a partition stand together
    """
    for key, among in groupby(workers, lambda worker: worker.key):
        shown = _begun(CompactRanks, service, key)
        for batch in _batches(service, key, among):
            _add_loads(service, shown, batch)
            _add_states(service, shown, batch)
            _add_events(service, shown, batch)
            yield None
        yield shown


def compact_loads(service: Service, workers: Iterable[Worker]) -> Iterator[CompactLoads | None]:
    """The same of loads alone, of workers that may be chosen."""
    for key, among in groupby(workers, lambda worker: worker.key):
        shown = _begun(CompactLoads, service, key)
        for batch in _batches(service, key, among):
            if batch.is_open:
                _add_loads(service, shown, batch)
            yield None
        if shown.worker_ids:
            yield shown


def _begun(form: type[C], service: Service, key: PartitionKey) -> C:
    waiting = service.selector.gate.waiting.of(key)
    return form(
        model_name=key.model_name,
        tenant_id=key.tenant_id,
        pending_count=waiting.requests,
        pending_isl_tokens=waiting.isl_tokens,
    )


def _batches(service: Service, key: PartitionKey, workers: Iterable[Worker]) -> Iterator[_Batch]:
    """In their order, each as its workers are when it is asked for."""
    find = service.selector.fleet.catalog.find
    every = ((worker, rank) for worker in workers for rank in worker.ranks())
    while some := [*islice(every, RANKS_PER_STEP)]:
        there = (pair for pair in some if find(pair[0].worker_id) is pair[0])
        for lifecycle, pairs in groupby(there, lambda pair: pair[0].lifecycle):
            yield _Batch(key, lifecycle, [rank for _, rank in pairs])


def _slots(partition: Partition, batch: _Batch) -> list[int]:
    found = [partition.table.find(rank) for rank in batch.ranks]
    return [slot for slot in found if slot is not None]


def _add_loads(service: Service, shown: CompactLoads, batch: _Batch) -> None:
    shown.worker_ids += [rank.worker_id for rank in batch.ranks]
    shown.dp_ranks += [rank.dp_rank for rank in batch.ranks]
    if batch.is_open:
        partition = service.selector.fleet.partitions[batch.key]
        blocks = partition.load.active_blocks()
        columns = load_columns(partition, blocks, _slots(partition, batch))
    else:
        nothing = [0] * len(batch.ranks)
        columns = LoadColumns(nothing, nothing, nothing)
    shown.prefill_tokens += columns.prefill_tokens
    shown.active_blocks += columns.active_blocks
    shown.active_requests += columns.active_requests


def _add_states(service: Service, shown: CompactRanks, batch: _Batch) -> None:
    selector, n = service.selector, len(batch.ranks)
    if not batch.is_open:
        shown.states += [batch.lifecycle] * n
        shown.busy += [False] * n
        shown.kv_usages += [None] * n
        return
    states: list[str] = [batch.lifecycle] * n
    fitness = selector.fitness
    if fitness is not None:
        states = [fitness.state_of(rank) or batch.lifecycle for rank in batch.ranks]
    if len(selector.draining):
        requests = shown.active_requests[-n:]
        states = [*map(partial(_draining, selector), batch.ranks, states, requests)]
    shown.states += cast(list[CompactState], states)
    scene = selector.admission_scene(batch.key, monotonic())
    columns = admission_columns(scene, _slots(scene.partition, batch))
    shown.busy += columns.busy
    shown.kv_usages += columns.kv_usages


def _draining(selector: Selector, rank: Rank, state: str, requests: int) -> str:
    """The state of a rank whose worker may drain."""
    if rank.worker_id not in selector.draining or state not in ("schedulable", "draining"):
        return state
    return "draining" if requests else "drained"


def _add_events(service: Service, shown: CompactRanks, batch: _Batch) -> None:
    now = monotonic()
    for rank in batch.ranks:
        pulse = service.ingest.pulse_of(rank)
        last = None if pulse is None else pulse.last_event_monotonic
        shown.event_states.append(None if pulse is None else pulse.state)
        shown.event_batches.append(0 if pulse is None else pulse.batches)
        shown.event_ages_s.append(None if last is None else round(max(0.0, now - last), AGE_DIGITS))
