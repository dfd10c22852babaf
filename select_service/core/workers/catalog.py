"""Which workers there are, what they said about themselves, and what they still lack.

Pure bookkeeping of registrations: the catalog decides whether a worker's own data make it
schedulable.  Whether it also fits its partition is decided by the selector, which owns those.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import NamedTuple

import msgspec
from sortedcontainers import SortedDict

from indexer.curve_keys import curve_key_error
from indexer.endpoints import endpoint_error, port_plus
from select_service.bodies.common import RANKS_PER_WORKER_MAX, tenant_of
from select_service.bodies.workers import Lifecycle, WorkerPatch, WorkerRecord, WorkerRegistration
from select_service.core.identity import PartitionKey, Rank
from select_service.errors import CapacityExceeded, NotFound

WORKERS_MAX = 4096
"""Registered workers, deleted ones not counted."""
DELETED_WORKERS_MAX = 1024
"""Deleted workers whose record is kept, so that DELETE may be repeated and PATCH revives them."""
BLOCK_SIZE_MAX = 1024
"""Tokens per block."""

NEIGHBOURS_MAX = 64
"""Workers at one endpoint that are looked at to find one with the same ranks."""
RANKS_PER_STEP = 128
"""Whose endpoints are looked at in one step."""


class Tombstone(NamedTuple):
    """When and why a worker was deleted; in seconds of the monotonic clock."""

    at: float
    reason: str


@dataclass(slots=True)
class Worker:
    """One registration and its standing.  `given` is never changed.

    Raises BadRequest when tenant_id and routing_group contradict each other.
    """

    given: WorkerRegistration
    lifecycle: Lifecycle = "incomplete"
    reasons: list[str] = field(default_factory=list)
    key: PartitionKey = field(init=False)
    _ranks: tuple[Rank, ...] = field(init=False, default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        given = self.given
        self.key = PartitionKey(given.model_name, tenant_of(given.tenant_id, given.routing_group))

    @property
    def worker_id(self) -> int:
        return self.given.worker_id

    @property
    def schedulable(self) -> bool:
        return self.lifecycle == "schedulable"

    @property
    def is_eagle(self) -> bool:
        return bool(self.given.is_eagle)

    def dp_ranks(self) -> range:
        start = self.given.data_parallel_start_rank or 0
        size = self.given.data_parallel_size
        return range(start, start + (1 if size is None else size))

    def ranks(self) -> tuple[Rank, ...]:
        """The same objects each time, so that all who keep one share it."""
        if not self._ranks:
            self._ranks = tuple(map(Rank, repeat(self.worker_id), self.dp_ranks()))
        return self._ranks

    def kv_endpoints(self) -> Mapping[int, str | None]:
        """By dp_rank, in order, where the ranks publish their KV events.

        The single form is for one rank.
        """
        ranks, by_rank = self.dp_ranks(), self.given.kv_events_endpoints
        if by_rank:
            as_given = len(by_rank) == len(ranks) and [*by_rank] == [*ranks]
            return by_rank if as_given else dict(zip(ranks, map(by_rank.get, ranks), strict=True))
        single = self.given.kv_events_endpoint if len(ranks) == 1 else None
        return dict.fromkeys(ranks, single)

    def n_event_ranks(self) -> int:
        """Return how many ranks publish KV events, as far as endpoints say it.  O(1)"""
        given = self.given
        if given.kv_events_endpoints:
            return min(len(given.kv_events_endpoints), len(self.dp_ranks()))
        return int(len(self.dp_ranks()) == 1 and bool(given.kv_events_endpoint))

    def replay_endpoint(self, dp_rank: int) -> str | None:
        """Where it replays them: its own entry, else the common endpoint at port + position."""
        own = self.given.replay_endpoints.get(dp_rank)
        if own or not self.given.replay_endpoint:
            return own
        return port_plus(self.given.replay_endpoint, dp_rank - self.dp_ranks().start)

    def record(self) -> WorkerRecord:
        given = self.given
        unset = msgspec.UNSET
        return WorkerRecord(
            worker_id=given.worker_id,
            model_name=given.model_name,
            tenant_id=self.key.tenant_id,
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
            not_schedulable_reasons=list(self.reasons) or unset,
            replay_endpoints=given.replay_endpoints or unset,
            kv_event_semantics=given.kv_event_semantics or unset,
            curve_server_key=given.curve_server_key or unset,
            metrics_endpoint=given.metrics_endpoint or unset,
            prefill_tokens_per_s=given.prefill_tokens_per_s or unset,
            decode_tokens_per_s=given.decode_tokens_per_s or unset,
            kv_layout=given.kv_layout or unset,
            role=given.role or unset,
            spare=unset if given.spare is None else given.spare,
        )


def shortcomings(worker: Worker, use_kv_events: bool, queueing: bool = False) -> list[str]:
    """Why the worker's own data do not make it schedulable; empty when they do."""
    given = worker.given
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
    if queueing and given.max_num_batched_tokens is None:
        reasons.append("max_num_batched_tokens is required while queueing is enabled")
    if use_kv_events:
        reasons += _missing_endpoints(worker)
        reasons += _single_endpoint_of_many(worker)
    if given.curve_server_key and (fault := curve_key_error(given.curve_server_key)):
        reasons.append(f"curve_server_key: {fault}")
    if use_kv_events and not reasons and not _are_well_formed(worker):
        reasons += _first_bad_endpoint(worker)
    return reasons


def looking_at_endpoints(worker: Worker) -> Iterator[None]:
    """What of `shortcomings` takes longest for many ranks, in steps: it is remembered."""
    tables = worker.given.kv_events_endpoints, worker.given.replay_endpoints
    for number, dp_rank in enumerate(worker.dp_ranks()[:RANKS_PER_WORKER_MAX], 1):
        for table in tables:
            if dp_rank in table:
                endpoint_error(table[dp_rank])
        if number % RANKS_PER_STEP == 0:
            yield


def _missing_endpoints(worker: Worker) -> list[str]:
    endpoints = worker.kv_endpoints()
    if all(endpoints.values()):
        return []
    return [
        f"kv_events endpoint is required for dp_rank {dp_rank} (field kv_events_endpoint, or "
        f'"{dp_rank}" of kv_events_endpoints)'
        for dp_rank, endpoint in endpoints.items()
        if not endpoint
    ]


def _single_endpoint_of_many(worker: Worker) -> list[str]:
    """A reason more for those who gave `kv_events_endpoint` for several ranks."""
    ranks, single = worker.dp_ranks(), worker.given.kv_events_endpoint
    if len(ranks) < 2 or not single or worker.given.kv_events_endpoints:
        return []
    shown = [f'"{rank}": "{port_plus(single, rank - ranks.start) or "..."}"' for rank in ranks[:2]]
    return [
        f"kv_events_endpoint is that of a worker with one rank: of {len(ranks)} ranks each needs "
        f"its own in kv_events_endpoints, such as {{{', '.join(shown)}}}"
    ]


def _are_well_formed(worker: Worker) -> bool:
    """Is no endpoint of any rank wrong?  False also where a closer look is needed."""
    given, ranks = worker.given, worker.dp_ranks()
    endpoints = [*worker.kv_endpoints().values(), *map(given.replay_endpoints.get, ranks)]
    if given.replay_endpoint:
        endpoints.append(given.replay_endpoint)
        if port_plus(given.replay_endpoint, len(ranks) - 1) is None:  # the last port is the largest
            return False
    return not any(map(endpoint_error, filter(None, endpoints)))


def _first_bad_endpoint(worker: Worker) -> list[str]:
    given = worker.given
    for dp_rank, events in worker.kv_endpoints().items():
        replay = given.replay_endpoints.get(dp_rank) or given.replay_endpoint
        for kind, endpoint in (("kv_events", events), ("replay", replay)):
            error = endpoint_error(endpoint) if endpoint else None
            if endpoint and not error and kind == "replay" and not worker.replay_endpoint(dp_rank):
                error = f"`{endpoint}` has no port for this rank; name it in replay_endpoints"
            if error:
                return [
                    f"reconciliation failed: invalid {kind} endpoint for worker "
                    f"{worker.worker_id} dp_rank {dp_rank}: {error}"
                ]
    return []


def _place(worker: Worker) -> tuple[PartitionKey, str]:
    """Return where its engine is; a slash behind a URL makes no other place of it."""
    return worker.key, (worker.given.endpoint or "").rstrip("/")


class Catalog:
    """All workers by id.  An id is global: registering it under another scope moves it."""

    def __init__(self) -> None:
        self._workers: SortedDict[tuple[PartitionKey, int], Worker] = SortedDict()
        self._by_id: dict[int, Worker] = {}
        self._deleted: dict[int, Tombstone] = {}
        self._measured: dict[int, None] = {}
        """Those with a metrics endpoint."""
        self._at_endpoint: dict[tuple[PartitionKey, str], dict[int, None]] = {}
        """Ids of workers of one partition whose engines have the same `endpoint`, by `_place`."""
        self.models: Counter[str] = Counter()
        """How many records there are of each model; models without any are left out."""
        self.changes = 0
        """Of workers, since the start."""

    def __len__(self) -> int:
        return len(self._by_id) - len(self._deleted)

    def __iter__(self) -> Iterator[Worker]:
        """By model, tenant and worker id."""
        return iter(self._workers.values())

    def find(self, worker_id: int) -> Worker | None:
        return self._by_id.get(worker_id)

    def is_registered(self, worker_id: int) -> bool:
        """Is it there, and not deleted?"""
        return worker_id in self._by_id and worker_id not in self._deleted

    def get(self, worker_id: int) -> Worker:
        """Raises NotFound."""
        worker = self._by_id.get(worker_id)
        if worker is None:
            raise NotFound(f"worker {worker_id} not found")
        return worker

    def nowhere(self, key: PartitionKey, rank: Rank) -> NotFound:
        """What to say of a rank that is not in this partition: what there is instead."""
        worker = self._by_id.get(rank.worker_id)
        scope = f"model={key.model_name} tenant={key.tenant_id}"
        if worker is None or not worker.schedulable or worker.key != key:
            return NotFound(f"schedulable worker {rank.worker_id} not found for {scope}")
        ranks = worker.dp_ranks()
        return NotFound(
            f"dp_rank {rank.dp_rank} of worker {rank.worker_id} not found for {scope}: "
            f"its ranks are {ranks.start} to {ranks.stop - 1}"
        )

    def registered(self, given: WorkerRegistration) -> Worker:
        """The worker as it would be after a POST.  Changes nothing.

        Raises BadRequest, CapacityExceeded.
        """
        if not self.is_registered(given.worker_id) and len(self) >= WORKERS_MAX:
            raise CapacityExceeded(f"the catalog is full: {WORKERS_MAX} workers are registered")
        return Worker(given)

    def patched(self, worker_id: int, patch: WorkerPatch) -> Worker:
        """The worker as it would be after a PATCH.  Changes nothing.

        Raises BadRequest, NotFound.
        """
        changes = {
            name: value
            for name, value in msgspec.structs.asdict(patch).items()
            if value is not None
        }
        return Worker(msgspec.structs.replace(self.get(worker_id).given, **changes))

    def put(self, worker: Worker) -> None:
        """Insert or replace."""
        self.changes += 1
        old = self._by_id.get(worker.worker_id)
        if old is not None:
            self._leave_endpoint(old)
            self._forget(old)
        self._workers[(worker.key, worker.worker_id)] = worker
        self._by_id[worker.worker_id] = worker
        self._deleted.pop(worker.worker_id, None)
        self.models[worker.key.model_name] += 1
        if worker.given.endpoint:
            self._at_endpoint.setdefault(_place(worker), {})[worker.worker_id] = None
        if worker.given.metrics_endpoint:
            self._measured[worker.worker_id] = None
        else:
            self._measured.pop(worker.worker_id, None)

    def measured(self) -> list[int]:
        """Ids of the workers with a metrics endpoint."""
        return list(self._measured)

    def same_engine(self, worker: Worker) -> int | None:
        """Return the id of another worker that has the same endpoint and some of the same ranks."""
        at = self._at_endpoint.get(_place(worker), {})
        if worker.worker_id not in at or len(at) == 1:
            return None
        others = (each for each in islice(at, NEIGHBOURS_MAX) if each != worker.worker_id)
        mine = worker.dp_ranks()
        for other in others:
            ranks = self._by_id[other].dp_ranks()
            if max(mine.start, ranks.start) < min(mine.stop, ranks.stop):
                return other
        return None

    def _leave_endpoint(self, worker: Worker) -> None:
        """Nothing, for a worker that was deleted already."""
        place = _place(worker)
        at = self._at_endpoint.get(place, {})
        at.pop(worker.worker_id, None)
        if not at:
            self._at_endpoint.pop(place, None)

    def _forget(self, worker: Worker) -> None:
        del self._by_id[worker.worker_id]
        del self._workers[(worker.key, worker.worker_id)]
        model = worker.key.model_name
        self.models[model] -= 1
        if not self.models[model]:
            del self.models[model]

    def deleted(self) -> Mapping[int, Tombstone]:
        """The deleted workers whose record is kept, by id."""
        return self._deleted

    def bury(self, worker_id: int, tombstone: Tombstone) -> None:
        """Keep only the record of a deleted worker, and only of the last so many."""
        self.changes += 1
        self._measured.pop(worker_id, None)
        self._leave_endpoint(self._by_id[worker_id])
        self._deleted[worker_id] = self._deleted.pop(worker_id, tombstone)
        while len(self._deleted) > DELETED_WORKERS_MAX:
            oldest = next(iter(self._deleted))
            del self._deleted[oldest]
            self._forget(self._by_id[oldest])

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._workers) == len(self._by_id)
        for (key, worker_id), worker in self._workers.items():
            assert (worker.key, worker.worker_id) == (key, worker_id)
            assert self._by_id[worker_id] is worker
            assert worker.schedulable == (not worker.reasons and worker_id not in self._deleted)
        assert set(self._deleted) <= set(self._by_id)
        alive = [worker for worker in self if worker.worker_id not in self._deleted]
        measured = {worker.worker_id for worker in alive if worker.given.metrics_endpoint}
        assert set(self._measured) == measured
        there = {(*_place(w), w.worker_id) for w in alive if w.given.endpoint}
        at = self._at_endpoint.items()
        assert {(*place, worker_id) for place, ids in at for worker_id in ids} == there
        assert all(self._at_endpoint.values())
        assert self.models == Counter(worker.key.model_name for worker in self)
        assert len(self) <= WORKERS_MAX
        assert len(self._deleted) <= DELETED_WORKERS_MAX
