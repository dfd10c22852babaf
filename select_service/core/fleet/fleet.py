"""Workers and the partitions that they shape.

A change of a worker is computed as a whole and then replaces the old state in one step.  Ranks that
continue keep their slot, and with it their index and load; an index is dropped only when the rank,
its partition, its block size or its event endpoint really changes.

A rank that leaves takes no more load from then on.  What is booked on it is released a budget at a
time, and its slot comes back when that is done: until then it stands in `leaving`.  What the
listeners of KV events have to follow is noted, and taken in one place (`take_changes`).
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from indexer.dumps.held_blocks import Adoption
from indexer.events.kv_source import KvSource
from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import SlotWriter
from select_service.bodies.workers import WorkerPatch, WorkerRegistration
from select_service.core.decide.candidates import refuse_out_of_rotation
from select_service.core.decide.decision_ring import DecisionRing
from select_service.core.decide.policies import choice_of
from select_service.core.decide.router_config import RouterConfig
from select_service.core.fleet.partition import Partition
from select_service.core.fleet.recovered import Recovered
from select_service.core.fleet.scoped_policies import ScopedPolicies
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.booking import Account
from select_service.core.touched import Touched
from select_service.core.workers.catalog import (
    RANKS_PER_STEP,
    Catalog,
    Tombstone,
    Worker,
    looking_at_endpoints,
    shortcomings,
)
from select_service.core.workers.event_users import EventUsers
from select_service.core.workers.places import Places
from select_service.errors import CapacityExceeded

PARTITIONS_MAX = 1024
CLAIMS_PER_TURN_MAX = 512
"""Ranks that are given recovered blocks in one turn."""
RANKS_PER_TURN_MAX = 512
"""Ranks after which `take_changes` leaves further workers for another turn."""


class Leaving(NamedTuple):
    """A slot whose rank has left and on which something is still booked, perhaps."""

    account: Account
    slot: int
    writer: SlotWriter

    @property
    def is_empty(self) -> bool:
        return self.account.is_empty(self.slot)


class _Entrance(NamedTuple):
    """Where a worker joins, and slots for those of its ranks that have none yet."""

    partition: Partition
    writers: dict[Rank, SlotWriter]


_Shape: TypeAlias = tuple[PartitionKey, int, bool]
"""Key, block size, and is it of EAGLE?"""


class CatalogChanges(NamedTuple):
    """What changed since it was last asked, to be carried out in this order (all of it is slow).

    renewed:   index slots of ranks whose events come from elsewhere now, to be cleared to the end;
               until then they take nothing in
    adoptions: recovered blocks for ranks whose listeners do not run yet
    sources:   by worker id, the listeners that should exist now for its ranks; perhaps none
    retired:   index slots of ranks that left, to be closed
    """

    renewed: list[SlotWriter]
    adoptions: list[Adoption]
    sources: dict[int, list[KvSource]]
    retired: list[SlotWriter]

    def __bool__(self) -> bool:
        return any(self)


class Fleet:
    """The catalog and every partition that has at least one schedulable rank."""

    def __init__(
        self,
        new_index: Callable[[], PrefixIndex],
        use_kv_events: bool,
        *,
        router: RouterConfig,
        ranks_max: int = 1 << 32,
        queueing: bool = False,
        touched: Touched,
        decisions: DecisionRing | None = None,
    ) -> None:
        """ranks_max: how many ranks can be listened to
        queueing: workers must say their max_num_batched_tokens
        decisions: keeps those of the partitions
        """
        self.catalog = Catalog()
        self.partitions: dict[PartitionKey, Partition] = {}
        self.changes = np.zeros(1, np.int64)
        """[0]: another number after a partition has gone or was replaced.  For kernels; the array
        stays."""
        self.leaving: deque[Leaving] = deque()
        self.recovered = Recovered()
        self.places = Places()
        self.event_users = EventUsers()
        self._new_index = new_index
        self._use_kv_events = use_kv_events
        self._router = router
        self.policies = ScopedPolicies(choice_of(router), self.partitions)
        self._ranks_max = ranks_max
        self._queueing = queueing
        self._touched = touched
        self._decisions = decisions
        self._changed: dict[int, None] = {}  # ids of workers
        self._retired: list[SlotWriter] = []
        self._renewed: list[SlotWriter] = []
        self._adoptions: list[Adoption] = []
        self._draft: Partition | None = None
        """Made ahead for a worker of many ranks, the first of its partition."""

    def registered(self, given: WorkerRegistration) -> Worker:
        """The worker as it would stand after a POST.  Changes nothing.

        Raises BadRequest, DestinationRefused, CapacityExceeded.
        """
        self.places.check(given)
        return self._judged(self.catalog.registered(given))

    def patched(self, worker_id: int, patch: WorkerPatch) -> Worker:
        """The worker as it would stand after a PATCH.  Changes nothing.

        Raises BadRequest, DestinationRefused, NotFound.
        """
        self.places.check(patch)
        return self._judged(self.catalog.patched(worker_id, patch))

    def _judged(self, worker: Worker) -> Worker:
        worker.reasons = (
            shortcomings(worker, self._use_kv_events, self._queueing)
            or self._misfits(worker)
            or self._excess(worker)
        )
        worker.lifecycle = "incomplete" if worker.reasons else "schedulable"
        return worker

    def _misfits(self, worker: Worker) -> list[str]:
        """Why the worker does not fit the partition as its other workers have shaped it."""
        partition = self.partitions.get(worker.key)
        if partition is None:
            full = len(self.partitions) >= PARTITIONS_MAX
            text = (
                f"reconciliation failed: {PARTITIONS_MAX} partitions exist, the most there may be"
            )
            return [text] if full else []
        if partition.table.has_only(worker.worker_id):
            return []
        scope = f"model={worker.key.model_name} tenant={worker.key.tenant_id}"
        if partition.block_size != worker.given.block_size:
            return [
                f"reconciliation failed: block_size mismatch for {scope}: "
                f"existing={partition.block_size} requested={worker.given.block_size}"
            ]
        if partition.is_eagle != worker.is_eagle:
            return [
                f"reconciliation failed: is_eagle mismatch for {scope}: "
                f"existing={str(partition.is_eagle).lower()} "
                f"requested={str(worker.is_eagle).lower()}"
            ]
        return []

    def _excess(self, worker: Worker) -> list[str]:
        """Why there are no sockets left for the events of its ranks."""
        if not self._use_kv_events:
            return []
        old = self.catalog.find(worker.worker_id)
        others = sum(len(partition.table) for partition in self.partitions.values())
        others -= len(old.dp_ranks()) if old is not None and old.schedulable else 0
        if others + len(worker.dp_ranks()) <= self._ranks_max:
            return []
        return [
            f"reconciliation failed: the limit of open files (ulimit -n) leaves sockets for "
            f"{self._ranks_max} ranks, and {others} others have theirs"
        ]

    def _ranks_to_leave(self, new: Worker) -> list[Rank]:
        """Schedulable ranks that `new` does not continue."""
        old = self.catalog.find(new.worker_id)
        if old is None or not old.schedulable:
            return []
        kept = new.dp_ranks() if self._continues(old, new) else range(0)
        if kept == old.dp_ranks():
            return []
        return [rank for rank in old.ranks() if rank.dp_rank not in kept]

    def _continues(self, old: Worker, new: Worker) -> bool:
        partition = self.partitions[old.key]
        shape = (partition.block_size, partition.is_eagle)
        same_shape = (new.given.block_size, new.is_eagle) == shape
        return new.schedulable and new.key == old.key and same_shape

    def making_room(self, worker: Worker) -> Iterator[None]:
        """Before a worker is judged and put, in steps: what of that grows with the index, the
        writers of its ranks, and their endpoints, whose form is remembered.

        Where there is no room nothing happens: then `put` says so.
        """
        yield from self.places.looking(worker.given)
        if self._use_kv_events:
            yield from looking_at_endpoints(worker)
        partition, n_ranks = self.partitions.get(worker.key), len(worker.dp_ranks())
        is_narrow = n_ranks <= RANKS_PER_STEP
        if is_narrow and (partition is None or partition.index.has_room(n_ranks)):
            return
        if not self._judged(worker).schedulable:
            return
        with contextlib.suppress(MemoryError, OSError):
            if partition is None:
                partition = self._draft = self._new_partition(worker)
            if not self._reshapes(partition, worker):
                yield from partition.widening(worker)
                yield
                yield from partition.making_writers(worker, self._n_moving(worker))

    def _n_moving(self, new: Worker) -> int:
        """Ranks that will begin anew."""
        old = self.catalog.find(new.worker_id)
        is_there = old is not None and old.schedulable and self._continues(old, new)
        return len(_moving_ranks(old, new)) if is_there and old is not None else 0

    def put(self, new: Worker) -> None:
        """Replace the worker's old state.  Raises CapacityExceeded, and has changed nothing."""
        entrance = self._entrance(new) if new.schedulable else None
        old = self.catalog.find(new.worker_id)
        was_there = old is not None and old.schedulable
        leaving = self._ranks_to_leave(new)
        continues = was_there and old is not None and self._continues(old, new)
        renewed: dict[Rank, SlotWriter] = {}
        if old is not None and continues:
            renewed = self._renew_indexes(old, new)
        elif old is not None and was_there:
            self._remove(old, leaving)
        self.catalog.put(new)
        self._note_event_users(old if was_there else None, new if new.schedulable else None)
        self._changed[new.worker_id] = None
        if entrance is not None:
            self._join(new, entrance, renewed)
        if continues:
            self._remove(new, leaving)

    def delete(self, worker: Worker, tombstone: Tombstone) -> None:
        """Take its ranks away.  The record stays for a while."""
        if worker.schedulable:
            self._remove(worker, worker.ranks())
            self._note_event_users(worker, None)
        worker.lifecycle, worker.reasons = "unschedulable", []
        self.catalog.bury(worker.worker_id, tombstone)
        self._changed[worker.worker_id] = None

    def _note_event_users(self, left: Worker | None, came: Worker | None) -> None:
        stays = left and came and left.kv_endpoints() == came.kv_endpoints()
        if stays or not self._use_kv_events:
            return
        if left is not None:
            self.event_users.leave(left)
        if came is not None:
            self.event_users.enter(came)

    def _entrance(self, worker: Worker) -> _Entrance:
        """All that needs memory when the worker joins.  Raises CapacityExceeded."""
        try:
            partition, draft = self.partitions.get(worker.key), self._draft
            self._draft = None
            if partition is None or self._reshapes(partition, worker):
                is_drafted = draft is not None and _shape(draft) == _wanted_shape(worker)
                partition = draft if is_drafted else self._new_partition(worker)
                assert partition is not None
                partition.placing.follow(self.policies.of(worker.key))
            return _Entrance(partition, partition.open_slots(worker))
        except (MemoryError, OSError) as error:
            raise CapacityExceeded(f"no memory for the ranks of a worker: {error}") from None

    def _new_partition(self, worker: Worker) -> Partition:
        return Partition(
            *(*_wanted_shape(worker), self._new_index(), self._router), ring=self._decisions
        )

    def _reshapes(self, partition: Partition, worker: Worker) -> bool:
        """Is it alone in its partition and has another shape now?"""
        alone = partition.table.has_only(worker.worker_id)
        return alone and _wanted_shape(worker) != _shape(partition)

    def _renew_indexes(self, old: Worker, new: Worker) -> dict[Rank, SlotWriter]:
        """New writers for the ranks whose events come from elsewhere now."""
        moving = _moving_ranks(old, new)
        renewed = self.partitions[old.key].renewed_indexes(moving) if moving else {}
        self._renewed += renewed.values()
        return renewed

    def _join(self, worker: Worker, entrance: _Entrance, renewed: dict[Rank, SlotWriter]) -> None:
        partition, writers = entrance
        self.partitions[worker.key] = partition
        partition.join(worker, writers | renewed)
        self._claim(partition, list(writers))
        self._touched.capacity(worker.key)

    def _claim(self, partition: Partition, ranks: list[Rank]) -> None:
        """Ranks whose slots are empty get what a dump says they hold."""
        for rank in ranks if self.recovered.has(partition.key) else ():
            held = self.recovered.claim(partition.key, partition.block_size, rank)
            if held is not None:
                writer = partition.table.writer(rank)
                writer.filling = True
                self._adoptions.append(Adoption(held, (rank.worker_id, rank.dp_rank), writer))

    def claiming(self) -> Iterator[None]:
        """What was recovered goes to the ranks that exist; none of them may have been fed yet.

        In turns: it yields after some ranks, and ranks that come meanwhile see to themselves.
        """
        for partition in list(self.partitions.values()):
            ranks = partition.table.ranks() if self.recovered.has(partition.key) else []
            for begin in range(0, len(ranks), CLAIMS_PER_TURN_MAX):
                some = ranks[begin : begin + CLAIMS_PER_TURN_MAX]
                self._claim(partition, [r for r in some if partition.table.find(r) is not None])
                yield

    def _remove(self, worker: Worker, ranks: Sequence[Rank]) -> None:
        """Ranks of a worker leave.  A partition lives as long as it has a rank."""
        if not ranks:
            return
        key = worker.key
        partition = self.partitions[key]
        for writer in partition.leave(worker.worker_id, ranks):
            left = Leaving(partition.account, writer.slot, writer)
            if left.is_empty:
                self._retired.append(writer)
            else:
                left.account.leaving.add(left.slot)
                self.leaving.append(left)
        if not len(partition.table):
            del self.partitions[key]
            self.changes[0] += 1
        self._touched.capacity(key)

    def retire(self) -> None:
        """The first of `leaving` is empty: its slot may come back."""
        left = self.leaving.popleft()
        assert left.is_empty
        left.account.leaving.discard(left.slot)
        self._retired.append(left.writer)

    def slot_of(self, partition: Partition, rank: Rank) -> int:
        """Raises NotFound, and says what there is, and NoEligibleRank for one that is out."""
        slot = partition.table.find(rank)
        if slot is not None:
            refuse_out_of_rotation(partition.table, slot, rank)
            return slot
        raise self.catalog.nowhere(partition.key, rank)

    # --- how fit ranks are

    def set_weight(self, rank: Rank, weight: float, state: str) -> None:
        """Let a rank have this much of its share of requests from now on; 0: none, and who waits
        for it alone is refused.  Of a rank that is not here, nothing.  O(1)

        state: why it is out, in a word for those who are refused
        """
        worker = self.catalog.find(rank.worker_id)
        if worker is not None and worker.schedulable:
            self.set_weights(worker, ((rank, weight, state),))

    def set_weights(self, worker: Worker, weights: Iterable[tuple[Rank, float, str]]) -> None:
        """As `set_weight`, of ranks of a worker that could be chosen."""
        partition, turned = self.partitions.get(worker.key), False
        if partition is None:
            return
        table = partition.table
        for rank, weight, state in weights:
            slot = table.find(rank)
            turned |= slot is not None and table.set_weight(slot, weight, state)
        if turned:
            self._touched.capacity(worker.key)

    # --- what listeners follow

    @property
    def has_changes(self) -> bool:
        """Is there anything for `take_changes`?"""
        return bool(self._changed or self._retired or self._renewed or self._adoptions)

    @property
    def has_adoptions(self) -> bool:
        """Are there ranks among the changes that wait for recovered blocks?"""
        return bool(self._adoptions)

    def take_changes(self, ranks_max: int = RANKS_PER_TURN_MAX) -> CatalogChanges:
        """What changed since the last call.  O(ranks of the workers that changed).

        Once `ranks_max` ranks have been looked at, further workers are left for the next call, and
        with them the slots that are to be closed after their listeners.
        """
        sources: dict[int, list[KvSource]] = {}
        n_ranks = 0
        while self._changed and n_ranks < ranks_max:
            worker_id = next(iter(self._changed))
            del self._changed[worker_id]
            worker = self.catalog.find(worker_id)
            sources[worker_id] = [] if worker is None else [*self._sources_of(worker)]
            n_ranks += 1 + len(sources[worker_id])
        renewed, self._renewed = self._renewed, []
        adoptions, self._adoptions = self._adoptions, []
        retired: list[SlotWriter] = []
        if not self._changed:
            retired, self._retired = self._retired, []
        return CatalogChanges(renewed, adoptions, sources, retired)

    def _sources_of(self, worker: Worker) -> Iterator[KvSource]:
        if not worker.schedulable or not self._use_kv_events:
            return
        partition = self.partitions[worker.key]
        writers = {rank.dp_rank: partition.table.writer(rank) for rank in worker.ranks()}
        for dp_rank, endpoint in worker.kv_endpoints().items():
            assert endpoint is not None
            yield KvSource(
                worker_id=worker.worker_id,
                dp_rank=dp_rank,
                endpoint=endpoint,
                replay_endpoint=worker.replay_endpoint(dp_rank),
                block_size=partition.block_size,
                is_eagle=partition.is_eagle,
                counted=worker.given.kv_event_semantics != "set",
                writers=writers,
                server_key=worker.given.curve_server_key,
                total_blocks=worker.given.total_kv_blocks,
            )

    def check_invariants(self) -> None:
        """For tests."""
        self.catalog.check_invariants()
        schedulable = [worker for worker in self.catalog if worker.schedulable]
        assert set(self.partitions) == {worker.key for worker in schedulable}
        for key, partition in self.partitions.items():
            partition.check_invariants()
            workers = [worker for worker in schedulable if worker.key == key]
            assert partition.table.ranks() == sorted(rank for w in workers for rank in w.ranks())
            for worker in workers:
                assert worker.given.block_size == partition.block_size
        if self._use_kv_events:
            self.event_users.check_invariants(schedulable)
        for account in {id(left.account): left.account for left in self.leaving}.values():
            mine = [left.slot for left in self.leaving if left.account is account]
            assert sorted(mine) == sorted(account.leaving)


def _shape(partition: Partition) -> _Shape:
    return partition.key, partition.block_size, partition.is_eagle


def _wanted_shape(worker: Worker) -> _Shape:
    """Of the partition of a schedulable worker."""
    size = worker.given.block_size
    assert size
    return worker.key, size, worker.is_eagle


def _moving_ranks(old: Worker, new: Worker) -> list[Rank]:
    """Ranks of both whose events come from elsewhere now."""
    before, after = old.kv_endpoints(), new.kv_endpoints()
    if before == after:
        return []
    return [
        rank
        for rank, endpoint in zip(new.ranks(), after.values(), strict=True)
        if rank.dp_rank in before and before[rank.dp_rank] != endpoint
    ]
