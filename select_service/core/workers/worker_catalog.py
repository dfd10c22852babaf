"""Catalog of workers: their registrations, and what a registration lacks.

The catalog only decides whether a worker's own data make the worker schedulable. The selector owns
the partitions and decides whether the worker fits its partition.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import NamedTuple

import msgspec
from sortedcontainers import SortedDict

from indexer.curve_keys import curve_key_error
from indexer.zmq_endpoints import endpoint_error, offset_port
from select_service.base.errors import CapacityExceeded, NotFound
from select_service.core.identity import PartitionKey, Rank
from select_service.schemas.common import (
    RANKS_PER_WORKER_MAX,
    check_rank_keys,
    resolve_tenant,
)
from select_service.schemas.workers import Lifecycle, WorkerPatch, WorkerRecord, WorkerRegistration

WORKERS_MAX = 4096
"""Maximum number of registered workers; deleted workers do not count."""
DELETED_WORKERS_MAX = 1024
"""Maximum number of records of deleted workers, kept to repeat DELETE and to revive by PATCH."""
BLOCK_SIZE_MAX = 1024
"""Maximum block size, tokens."""

COMPARED_WORKERS_MAX = 64
"""Maximum number of workers at an endpoint compared for equal ranks."""
RANKS_PER_STEP = 128
"""Ranks per step of the endpoint validation."""


class WorkerTombstone(NamedTuple):
    """Time (monotonic s) and reason of a deletion."""

    at: float
    reason: str


@dataclass(slots=True)
class RegisteredWorker:
    """Registration with its lifecycle; `given` never changes.

    Raises BadRequest if tenant_id and routing_group contradict each other, or for a control
    endpoint of no rank.
    """

    registration: WorkerRegistration
    lifecycle: Lifecycle = "incomplete"
    reasons: list[str] = field(default_factory=list)
    key: PartitionKey = field(init=False)
    _ranks: tuple[Rank, ...] = field(init=False, default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        given = self.registration
        self.key = PartitionKey(
            given.model_name, resolve_tenant(given.tenant_id, given.routing_group)
        )
        if given.router_hint_source_control_endpoints:
            check_rank_keys(
                "router_hint_source_control_endpoints", given.router_hint_source_control_endpoints
            )

    @property
    def worker_id(self) -> int:
        return self.registration.worker_id

    @property
    def is_schedulable(self) -> bool:
        return self.lifecycle == "schedulable"

    @property
    def is_eagle(self) -> bool:
        return bool(self.registration.is_eagle)

    @property
    def has_events(self) -> bool:
        """Whether the index of the ranks may come from KV events."""
        return self.registration.index != "assumed"

    def dp_ranks(self) -> range:
        start = self.registration.data_parallel_start_rank or 0
        size = self.registration.data_parallel_size
        return range(start, start + (1 if size is None else size))

    def list_ranks(self) -> tuple[Rank, ...]:
        """Return the ranks; always the same objects, so that all tables share them."""
        if not self._ranks:
            self._ranks = tuple(map(Rank, repeat(self.worker_id), self.dp_ranks()))
        return self._ranks

    def kv_endpoints(self) -> Mapping[int, str | None]:
        """Return the KV event endpoints by dp_rank, in order. The single form is for one rank.

        A worker with an assumed index has no endpoint, whatever is registered.
        """
        ranks, by_rank = self.dp_ranks(), self.registration.kv_events_endpoints
        if not self.has_events:
            return dict.fromkeys(ranks)
        if by_rank:
            # Usually the table already matches: reusing it saves a copy per call for wide workers.
            as_given = len(by_rank) == len(ranks) and [*by_rank] == [*ranks]
            return by_rank if as_given else dict(zip(ranks, map(by_rank.get, ranks), strict=True))
        single = self.registration.kv_events_endpoint if len(ranks) == 1 else None
        return dict.fromkeys(ranks, single)

    def n_event_ranks(self) -> int:
        """Return the number of ranks with a KV event endpoint. O(1)"""
        given = self.registration
        if not self.has_events:
            return 0
        if given.kv_events_endpoints:
            return min(len(given.kv_events_endpoints), len(self.dp_ranks()))
        return int(len(self.dp_ranks()) == 1 and bool(given.kv_events_endpoint))

    def replay_endpoint(self, dp_rank: int) -> str | None:
        """Return the replay endpoint: the rank's own entry, else the common endpoint at port +
        position.
        """
        own = self.registration.replay_endpoints.get(dp_rank)
        if own or not self.registration.replay_endpoint:
            return own
        return offset_port(self.registration.replay_endpoint, dp_rank - self.dp_ranks().start)

    @property
    def takes_hints(self) -> bool:
        """Whether the worker has a type for hints."""
        return bool(self.registration.router_hint_worker_type)

    def control_endpoint(self, dp_rank: int) -> str | None:
        """Return the control endpoint of a rank, or None."""
        return (self.registration.router_hint_source_control_endpoints or {}).get(str(dp_rank))

    def make_record(self) -> WorkerRecord:
        given = self.registration
        unset = msgspec.UNSET
        return WorkerRecord(
            worker_id=given.worker_id,
            model_name=given.model_name,
            tenant_id=self.key.tenant_id,
            routing_group=self.key.tenant_id,
            lifecycle=self.lifecycle,
            endpoint=given.endpoint,
            kv_events_endpoint=given.kv_events_endpoint,
            kv_events_endpoints=given.kv_events_endpoints or unset,
            replay_endpoint=given.replay_endpoint,
            block_size=given.block_size,
            data_parallel_start_rank=given.data_parallel_start_rank,
            data_parallel_size=given.data_parallel_size,
            max_num_batched_tokens=given.max_num_batched_tokens,
            total_kv_blocks=given.total_kv_blocks,
            stable_routing_id=given.stable_routing_id,
            is_eagle=given.is_eagle,
            taints=sorted(set(given.taints)),
            topology_domains=given.topology_domains,
            kv_transfer_domain=given.kv_transfer_domain,
            kv_transfer_enforcement=given.kv_transfer_enforcement,
            kv_transfer_preferred_weight=given.kv_transfer_preferred_weight,
            router_hint_worker_type=(
                unset if given.router_hint_worker_type is None else given.router_hint_worker_type
            ),
            router_hint_source_control_endpoints=(
                given.router_hint_source_control_endpoints or unset
            ),
            not_schedulable_reasons=list(self.reasons) or unset,
            replay_endpoints=given.replay_endpoints or unset,
            kv_event_semantics=given.kv_event_semantics or unset,
            curve_server_key=given.curve_server_key or unset,
            metrics_endpoint=given.metrics_endpoint or unset,
            prefill_tokens_per_s=given.prefill_tokens_per_s or unset,
            decode_tokens_per_s=given.decode_tokens_per_s or unset,
            kv_layout=given.kv_layout or unset,
            kv_cache=given.kv_cache or unset,
            kv_transfer=given.kv_transfer or unset,
            role=given.role or unset,
            index=given.index or unset,
            spare=unset if given.spare is None else given.spare,
        )


def find_shortcomings(
    worker: RegisteredWorker, use_kv_events: bool, queueing: bool = False
) -> list[str]:
    """Return the reasons why the worker's own data prevent scheduling; empty if complete."""
    given = worker.registration
    reasons = []
    if not given.endpoint:
        reasons.append("endpoint is required")
    if given.block_size is None:
        reasons.append(
            "block_size is required: give the block size of the engine (vLLM --block-size, SGLang "
            "--page-size)"
        )
    elif not given.block_size:
        reasons.append("block_size must be greater than 0")
    elif given.block_size > BLOCK_SIZE_MAX:
        reasons.append(f"block_size must be at most {BLOCK_SIZE_MAX}")
    ranks = worker.dp_ranks()
    if len(ranks) == 0:
        reasons.append("data_parallel_size must be greater than 0")
    elif len(ranks) > RANKS_PER_WORKER_MAX:
        reasons.append(f"data_parallel_size must be at most {RANKS_PER_WORKER_MAX}")
        return reasons
    elif ranks[-1] >= 2**32:
        reasons.append("data_parallel_start_rank + data_parallel_size must be at most 4294967296")
        return reasons
    # Without the batch size the gate cannot tell when a rank is busy.
    if queueing and given.max_num_batched_tokens is None:
        reasons.append("max_num_batched_tokens is required while queueing is enabled")
    use_kv_events = use_kv_events and worker.has_events
    if use_kv_events:
        reasons += _missing_endpoints(worker)
        reasons += _single_endpoint_reason(worker)
    if given.curve_server_key and (fault := curve_key_error(given.curve_server_key)):
        reasons.append(f"curve_server_key: {fault}")
    if use_kv_events and not reasons and not _have_valid_endpoints(worker):
        reasons += _first_bad_endpoint(worker)
    return reasons


def validate_endpoints_in_steps(worker: RegisteredWorker) -> Iterator[None]:
    """Validate the endpoints of many ranks in steps; the results are cached for
    `find_shortcomings`.
    """
    tables = worker.registration.kv_events_endpoints, worker.registration.replay_endpoints
    for number, dp_rank in enumerate(worker.dp_ranks()[:RANKS_PER_WORKER_MAX], 1):
        for table in tables:
            if dp_rank in table:
                endpoint_error(table[dp_rank])
        if number % RANKS_PER_STEP == 0:
            yield


def _missing_endpoints(worker: RegisteredWorker) -> list[str]:
    # One reason for each rank, because ranks of one engine are often forgotten one by one.
    endpoints = worker.kv_endpoints()
    if all(endpoints.values()):
        return []
    return [
        f"kv_events endpoint is required for dp_rank {dp_rank} (field kv_events_endpoint, or "
        f'"{dp_rank}" of kv_events_endpoints); if the engine publishes none, `index`: "assumed"'
        for dp_rank, endpoint in endpoints.items()
        if not endpoint
    ]


def _single_endpoint_reason(worker: RegisteredWorker) -> list[str]:
    """Return the additional reason for a `kv_events_endpoint` shared by several ranks."""
    ranks, single = worker.dp_ranks(), worker.registration.kv_events_endpoint
    if len(ranks) < 2 or not single or worker.registration.kv_events_endpoints:
        return []
    shown = [
        f'"{rank}": "{offset_port(single, rank - ranks.start) or "..."}"' for rank in ranks[:2]
    ]
    return [
        f"kv_events_endpoint serves one rank only: each of {len(ranks)} ranks needs "
        f"its own in kv_events_endpoints, such as {{{', '.join(shown)}}}"
    ]


def _have_valid_endpoints(worker: RegisteredWorker) -> bool:
    """Return whether all endpoints are valid; False also if a closer look is needed."""
    given, ranks = worker.registration, worker.dp_ranks()
    endpoints = [*worker.kv_endpoints().values(), *map(given.replay_endpoints.get, ranks)]
    if given.replay_endpoint:
        endpoints.append(given.replay_endpoint)
        if (
            offset_port(given.replay_endpoint, len(ranks) - 1) is None
        ):  # the last port is the largest
            return False
    return not any(map(endpoint_error, filter(None, endpoints)))


def _first_bad_endpoint(worker: RegisteredWorker) -> list[str]:
    given = worker.registration
    for dp_rank, events in worker.kv_endpoints().items():
        replay = given.replay_endpoints.get(dp_rank) or given.replay_endpoint
        for kind, endpoint in (("kv_events", events), ("replay", replay)):
            error = endpoint_error(endpoint) if endpoint else None
            if endpoint and not error and kind == "replay" and not worker.replay_endpoint(dp_rank):
                error = f"`{endpoint}` has no port for this rank; set replay_endpoints"
            if error:
                return [
                    f"reconciliation failed: invalid {kind} endpoint for worker "
                    f"{worker.worker_id} dp_rank {dp_rank}: {error}"
                ]
    return []


def _engine_location(worker: RegisteredWorker) -> tuple[PartitionKey, str]:
    """Return partition and engine endpoint, without a trailing slash."""
    return worker.key, (worker.registration.endpoint or "").rstrip("/")


class WorkerCatalog:
    """All workers by id. Ids are global: registering an id under another scope moves the worker."""

    def __init__(self) -> None:
        self._workers: SortedDict[tuple[PartitionKey, int], RegisteredWorker] = SortedDict()
        self._by_id: dict[int, RegisteredWorker] = {}
        self._deleted: dict[int, WorkerTombstone] = {}
        self._with_metrics: dict[int, None] = {}
        """Workers with a metrics endpoint."""
        self._at_endpoint: dict[tuple[PartitionKey, str], dict[int, None]] = {}
        """Ids of workers of a partition with the same `endpoint`, by `_engine_location`."""
        self.models: Counter[str] = Counter()
        """Number of records per model; models without records are left out."""
        self.changes = 0
        """Number of changes since start-up."""

    def __len__(self) -> int:
        return len(self._by_id) - len(self._deleted)

    def __iter__(self) -> Iterator[RegisteredWorker]:
        """Iterate by model, tenant and worker id."""
        return iter(self._workers.values())

    def find_worker(self, worker_id: int) -> RegisteredWorker | None:
        return self._by_id.get(worker_id)

    def is_registered(self, worker_id: int) -> bool:
        """Return whether the worker exists and is not deleted."""
        return worker_id in self._by_id and worker_id not in self._deleted

    def get_worker(self, worker_id: int) -> RegisteredWorker:
        """Return the worker. Raises NotFound."""
        worker = self._by_id.get(worker_id)
        if worker is None:
            raise NotFound(f"worker {worker_id} not found")
        return worker

    def rank_not_found_error(self, key: PartitionKey, rank: Rank) -> NotFound:
        """Return the error for a rank missing in this partition, with the existing ranks."""
        worker = self._by_id.get(rank.worker_id)
        scope = f"model={key.model_name} tenant={key.tenant_id}"
        if worker is None or not worker.is_schedulable or worker.key != key:
            return NotFound(f"schedulable worker {rank.worker_id} not found for {scope}")
        ranks = worker.dp_ranks()
        return NotFound(
            f"dp_rank {rank.dp_rank} of worker {rank.worker_id} not found for {scope}: "
            f"its ranks are {ranks.start} to {ranks.stop - 1}"
        )

    def preview_registration(self, registration: WorkerRegistration) -> RegisteredWorker:
        """Return the worker after a POST, without changes. Raises BadRequest, CapacityExceeded."""
        if not self.is_registered(registration.worker_id) and len(self) >= WORKERS_MAX:
            raise CapacityExceeded(f"worker limit reached ({WORKERS_MAX}); deregister one first")
        return RegisteredWorker(registration)

    def preview_patch(self, worker_id: int, patch: WorkerPatch) -> RegisteredWorker:
        """Return the worker after a PATCH, without changes. Raises BadRequest, NotFound."""
        changes = {
            name: value
            for name, value in msgspec.structs.asdict(patch).items()
            if value is not None
        }
        return RegisteredWorker(
            msgspec.structs.replace(self.get_worker(worker_id).registration, **changes)
        )

    def put_worker(self, worker: RegisteredWorker) -> None:
        """Insert or replace a worker."""
        self.changes += 1
        old = self._by_id.get(worker.worker_id)
        if old is not None:
            self._leave_endpoint(old)
            self._drop_record(old)
        self._workers[(worker.key, worker.worker_id)] = worker
        self._by_id[worker.worker_id] = worker
        self._deleted.pop(worker.worker_id, None)
        self.models[worker.key.model_name] += 1
        if worker.registration.endpoint:
            self._at_endpoint.setdefault(_engine_location(worker), {})[worker.worker_id] = None
        if worker.registration.metrics_endpoint:
            self._with_metrics[worker.worker_id] = None
        else:
            self._with_metrics.pop(worker.worker_id, None)

    def workers_with_metrics(self) -> list[int]:
        """Return the ids of workers with a metrics endpoint."""
        return list(self._with_metrics)

    def find_same_engine(self, worker: RegisteredWorker) -> int | None:
        """Return the id of another worker with the same endpoint and a common rank."""
        at = self._at_endpoint.get(_engine_location(worker), {})
        if worker.worker_id not in at or len(at) == 1:
            return None
        # Bounded, as a gateway in front of many engines is one endpoint of many workers.
        others = (each for each in islice(at, COMPARED_WORKERS_MAX) if each != worker.worker_id)
        mine = worker.dp_ranks()
        for other in others:
            ranks = self._by_id[other].dp_ranks()
            if max(mine.start, ranks.start) < min(mine.stop, ranks.stop):
                return other
        return None

    def _leave_endpoint(self, worker: RegisteredWorker) -> None:
        """Remove the worker from its endpoint, unless already removed by a deletion."""
        place = _engine_location(worker)
        at = self._at_endpoint.get(place, {})
        at.pop(worker.worker_id, None)
        if not at:
            self._at_endpoint.pop(place, None)

    def _drop_record(self, worker: RegisteredWorker) -> None:
        del self._by_id[worker.worker_id]
        del self._workers[(worker.key, worker.worker_id)]
        model = worker.key.model_name
        self.models[model] -= 1
        if not self.models[model]:
            del self.models[model]

    def ids_deleted_before(self, at: float) -> set[int]:
        """Return the ids of workers with a record that were deleted before a monotonic time."""
        deleted = self.deleted_workers().items()
        return {worker_id for worker_id, tombstone in deleted if tombstone.at < at}

    def deleted_workers(self) -> Mapping[int, WorkerTombstone]:
        """Return tombstones of deleted workers by id."""
        return self._deleted

    def keep_deleted_record(self, worker_id: int, tombstone: WorkerTombstone) -> None:
        """Keep the record of a deleted worker, up to the limit of deleted workers."""
        self.changes += 1
        self._with_metrics.pop(worker_id, None)
        self._leave_endpoint(self._by_id[worker_id])
        # A repeated DELETE keeps the first tombstone, and moves it to the end of the queue.
        self._deleted[worker_id] = self._deleted.pop(worker_id, tombstone)
        while len(self._deleted) > DELETED_WORKERS_MAX:
            oldest = next(iter(self._deleted))
            del self._deleted[oldest]
            self._drop_record(self._by_id[oldest])

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert len(self._workers) == len(self._by_id)
        for (key, worker_id), worker in self._workers.items():
            assert (worker.key, worker.worker_id) == (key, worker_id)
            assert self._by_id[worker_id] is worker
            assert worker.is_schedulable == (not worker.reasons and worker_id not in self._deleted)
        assert set(self._deleted) <= set(self._by_id)
        alive = [worker for worker in self if worker.worker_id not in self._deleted]
        measured = {worker.worker_id for worker in alive if worker.registration.metrics_endpoint}
        assert set(self._with_metrics) == measured
        there = {(*_engine_location(w), w.worker_id) for w in alive if w.registration.endpoint}
        at = self._at_endpoint.items()
        assert {(*place, worker_id) for place, ids in at for worker_id in ids} == there
        assert all(self._at_endpoint.values())
        assert self.models == Counter(worker.key.model_name for worker in self)
        assert len(self) <= WORKERS_MAX
        assert len(self._deleted) <= DELETED_WORKERS_MAX
