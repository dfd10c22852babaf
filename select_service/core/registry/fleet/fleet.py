"""Fleet: workers and the resulting partitions.

A change of a worker is computed completely and then replaces the old state in one step. Continuing
ranks keep slot, index and load. An index is dropped only if the rank, the partition, the block size
or the event endpoint changes.

A leaving rank accepts no more load. Its reservations are released within a budget per turn, and the
slot is freed afterwards: until then the slot is listed in `leaving`. Changes for the KV event
listeners are recorded and handed out in `take_changes` alone.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from indexer.dumps.recovered_blocks import Adoption
from indexer.events.kv_event_source import KvSource
from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import SlotWriter
from select_service.base.errors import CapacityExceeded
from select_service.core.assumed.assumed_blocks import AssumedBlocks
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.new_reservation import LoadAccount
from select_service.core.placement.candidates import check_in_rotation
from select_service.core.placement.decision_ring import DecisionRing
from select_service.core.placement.policies.policy_registry import policy_choice_of
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.catalog_changes import (
    CatalogChanges,
    list_event_sources,
    ranks_with_new_source,
)
from select_service.core.registry.fleet.partition import Partition
from select_service.core.registry.fleet.recovered_blocks import RecoveredBlocks
from select_service.core.registry.fleet.registration_rules import (
    RegistrationRules,
    find_misfits,
    shape_for_worker,
    shape_of,
)
from select_service.core.registry.fleet.scoped_policies import ScopedPolicies
from select_service.core.workers.endpoint_policy import EndpointPolicy
from select_service.core.workers.event_endpoint_index import EventEndpointIndex
from select_service.core.workers.worker_catalog import (
    RANKS_PER_STEP,
    RegisteredWorker,
    WorkerCatalog,
    WorkerTombstone,
    find_shortcomings,
    validate_endpoints_in_steps,
)
from select_service.schemas.workers import WorkerPatch, WorkerRegistration

CLAIMS_PER_TURN_MAX = 512
"""Maximum ranks per turn that receive recovered blocks."""
ASSUMED_STEP_WORK = 512
"""Work of a step that removes assumed blocks, in microseconds."""
RANKS_PER_TURN_MAX = 512
"""Number of ranks after which `take_changes` leaves further workers for another turn."""


class LeavingSlot(NamedTuple):
    """Slot of a rank that has left and may still have reservations."""

    account: LoadAccount
    slot: int
    writer: SlotWriter
    assumed: AssumedBlocks | None = None

    @property
    def is_empty(self) -> bool:
        is_assumed = self.assumed is not None and self.assumed.count_blocks(self.slot)
        return self.account.is_empty(self.slot) and not is_assumed

    def drop_assumed(self, now: float) -> int:
        """Remove some assumed blocks of the slot; return the cost in `work`."""
        if self.assumed is None or not self.assumed.count_blocks(self.slot):
            return 0
        self.assumed.run_step(now)
        return ASSUMED_STEP_WORK


class _PendingRegistration(NamedTuple):
    """Partition that a worker joins, and slots for the new ranks."""

    partition: Partition
    writers: dict[Rank, SlotWriter]


class WorkerFleet:
    """Catalog, and every partition with at least one schedulable rank."""

    def __init__(
        self,
        new_index: Callable[[], PrefixIndex],
        rules: RegistrationRules,
        *,
        router: RouterConfig,
        dirty: DirtyPartitions,
        decisions: DecisionRing | None = None,
    ) -> None:
        """Create an empty fleet; decisions: ring that records the partitions' decisions."""
        self.catalog = WorkerCatalog()
        self.partitions: dict[PartitionKey, Partition] = {}
        self.partition_changes = np.zeros(1, np.int64)
        """[0]: changes after a partition was removed or replaced, or bookings there got hints. For
        kernels; the array is never replaced.
        """
        self.leaving: deque[LeavingSlot] = deque()
        self.recovered_blocks = RecoveredBlocks()
        self.endpoint_policy = EndpointPolicy()
        self.event_users = EventEndpointIndex()
        self._new_index = new_index
        self._rules = rules
        self._router = router
        self.policies = ScopedPolicies(policy_choice_of(router), self.partitions)
        self.dirty = dirty
        self._decisions = decisions
        self._changed: dict[int, None] = {}  # ids of workers
        self._retired: list[SlotWriter] = []
        self._renewed: list[SlotWriter] = []
        self._adoptions: list[Adoption] = []
        self.on_assumption_begun: Callable[[], None] = lambda: None
        """Called when a partition begins to assume blocks."""
        self.needs_full_path: Callable[[str], bool] = lambda _: False
        """Whether answers about a model have parts that the fast path cannot make."""
        self._draft: Partition | None = None
        """Partition prepared for a first worker with many ranks."""

    def preview_registration(self, registration: WorkerRegistration) -> RegisteredWorker:
        """Return the worker after a POST, without changes.

        Raises BadRequest, DestinationRefused, CapacityExceeded.
        """
        self.endpoint_policy.check_endpoints(registration)
        return self._set_lifecycle(self.catalog.preview_registration(registration))

    def preview_patch(self, worker_id: int, patch: WorkerPatch) -> RegisteredWorker:
        """Return the worker after a PATCH, without changes.

        Raises BadRequest, DestinationRefused, NotFound.
        """
        self.endpoint_policy.check_endpoints(patch)
        return self._set_lifecycle(self.catalog.preview_patch(worker_id, patch))

    def _set_lifecycle(self, worker: RegisteredWorker) -> RegisteredWorker:
        worker.reasons = (
            find_shortcomings(worker, self._rules.use_kv_events, self._rules.queueing)
            or find_misfits(worker, self.partitions)
            or self._find_socket_excess(worker)
        )
        worker.lifecycle = "incomplete" if worker.reasons else "schedulable"
        return worker

    def _find_socket_excess(self, worker: RegisteredWorker) -> list[str]:
        """Return the reason if no sockets are left for the events of the worker's ranks."""
        if not self._rules.use_kv_events or not worker.has_events:
            return []
        old = self.catalog.find_worker(worker.worker_id)
        others = sum(len(partition.table) for partition in self.partitions.values())
        # The worker's present ranks are not counted twice at a further registration.
        others -= len(old.dp_ranks()) if old is not None and old.is_schedulable else 0
        if others + len(worker.dp_ranks()) <= self._rules.ranks_max:
            return []
        return [
            f"reconciliation failed: the limit of open files (ulimit -n) leaves sockets for "
            f"{self._rules.ranks_max} ranks, and {others} others have theirs"
        ]

    def _ranks_to_leave(self, new: RegisteredWorker) -> list[Rank]:
        """Return schedulable ranks that `new` does not continue."""
        old = self.catalog.find_worker(new.worker_id)
        if old is None or not old.is_schedulable:
            return []
        kept = new.dp_ranks() if self._continues_partition(old, new) else range(0)
        if kept == old.dp_ranks():
            return []
        return [rank for rank in old.list_ranks() if rank.dp_rank not in kept]

    def _continues_partition(self, old: RegisteredWorker, new: RegisteredWorker) -> bool:
        partition = self.partitions[old.key]
        shape = (partition.block_size, partition.is_eagle)
        same_shape = (new.registration.block_size, new.is_eagle) == shape
        return new.is_schedulable and new.key == old.key and same_shape

    def prepare_room(self, worker: RegisteredWorker) -> Iterator[None]:
        """Prepare, in steps, the parts of a registration that cost more with a larger index.

        These are the writers of the worker's ranks, and the cached validation of the endpoints.
        Without memory nothing happens here, and `put_worker` reports the error.
        """
        yield from self.endpoint_policy.check_endpoints_in_steps(worker.registration)
        if self._rules.use_kv_events:
            yield from validate_endpoints_in_steps(worker)
        partition, n_ranks = self.partitions.get(worker.key), len(worker.dp_ranks())
        # Few ranks are cheap enough for `put_worker` alone; preparing would only add latency.
        is_narrow = n_ranks <= RANKS_PER_STEP
        if is_narrow and (partition is None or partition.index.has_room(n_ranks)):
            return
        if not self._set_lifecycle(worker).is_schedulable:
            return
        # `put_worker` repeats the allocation and reports the failure with the proper error.
        with contextlib.suppress(MemoryError, OSError):
            if partition is None:
                partition = self._draft = self._new_partition(worker)
            if not self._is_reshaping(partition, worker):
                yield from partition.widen_index(worker)
                yield
                yield from partition.make_writers(worker, self._count_renewed(worker))

    def _count_renewed(self, new: RegisteredWorker) -> int:
        """Return the number of ranks that start again with an empty index."""
        old = self.catalog.find_worker(new.worker_id)
        is_there = old is not None and old.is_schedulable and self._continues_partition(old, new)
        return len(ranks_with_new_source(old, new)) if is_there and old is not None else 0

    def put_worker(self, new: RegisteredWorker) -> None:
        """Replace the worker's old state. Raises CapacityExceeded without changes."""
        entrance = self._prepare_registration(new) if new.is_schedulable else None
        old = self.catalog.find_worker(new.worker_id)
        was_there = old is not None and old.is_schedulable
        leaving = self._ranks_to_leave(new)
        continues = was_there and old is not None and self._continues_partition(old, new)
        renewed: dict[Rank, SlotWriter] = {}
        if old is not None and continues:
            renewed = self._renew_indexes(old, new)
        elif old is not None and was_there:
            self._remove_ranks(old, leaving)
        # Everything that can fail is done: from here on the change is complete or not begun.
        self.catalog.put_worker(new)
        self._note_event_users(old if was_there else None, new if new.is_schedulable else None)
        self._changed[new.worker_id] = None
        if entrance is not None:
            self._join_partition(new, entrance, renewed)
        if continues:
            self._remove_ranks(new, leaving)

    def delete_worker(self, worker: RegisteredWorker, tombstone: WorkerTombstone) -> None:
        """Remove the ranks of a worker; the record stays for a while."""
        if worker.is_schedulable:
            self._remove_ranks(worker, worker.list_ranks())
            self._note_event_users(worker, None)
        worker.lifecycle, worker.reasons = "unschedulable", []
        self.catalog.keep_deleted_record(worker.worker_id, tombstone)
        self._changed[worker.worker_id] = None

    def _note_event_users(
        self, leaving: RegisteredWorker | None, joining: RegisteredWorker | None
    ) -> None:
        stays = leaving and joining and leaving.kv_endpoints() == joining.kv_endpoints()
        if stays or not self._rules.use_kv_events:
            return
        if leaving is not None:
            self.event_users.remove_worker(leaving)
        if joining is not None:
            self.event_users.add_worker(joining)

    def _prepare_registration(self, worker: RegisteredWorker) -> _PendingRegistration:
        """Allocate all memory that the joining worker needs. Raises CapacityExceeded."""
        try:
            partition, draft = self.partitions.get(worker.key), self._draft
            self._draft = None
            if partition is None or self._is_reshaping(partition, worker):
                is_drafted = draft is not None and shape_of(draft) == shape_for_worker(worker)
                # Another worker may have changed the shape since the draft was made.
                partition = draft if is_drafted else self._new_partition(worker)
                assert partition is not None
                partition.placer.switch_policy(self.policies.policy_of(worker.key))
            if self._is_assumed(worker):
                partition.prepare_assumed()
                self.on_assumption_begun()
            return _PendingRegistration(partition, partition.open_slots(worker))
        except (MemoryError, OSError) as error:
            raise CapacityExceeded(f"out of memory for the ranks of the worker: {error}") from None

    def _is_assumed(self, worker: RegisteredWorker) -> bool:
        """Return whether bookings on the ranks of a worker are assumed, alone or beside events."""
        rules, given = self._rules.assumptions, worker.registration
        return rules.make_rank(rules.source_of(given.index), None, 1) is not None

    def _new_partition(self, worker: RegisteredWorker) -> Partition:
        return Partition(
            *(*shape_for_worker(worker), self._new_index(), self._router), ring=self._decisions
        )

    def _is_reshaping(self, partition: Partition, worker: RegisteredWorker) -> bool:
        """Return whether the worker is alone in the partition and changes the partition's shape."""
        alone = partition.table.has_only(worker.worker_id)
        return alone and shape_for_worker(worker) != shape_of(partition)

    def _renew_indexes(
        self, old: RegisteredWorker, new: RegisteredWorker
    ) -> dict[Rank, SlotWriter]:
        """Return new writers for ranks with a new event source."""
        moving = ranks_with_new_source(old, new)
        partition = self.partitions[old.key]
        renewed = partition.renew_indexes(moving) if moving else {}
        if partition.assumed is not None:
            for writer in renewed.values():
                partition.assumed.begin_clear(writer.slot, inf, keeps_live=False)
        # The old blocks belong to another engine process and are cleared before new events apply.
        self._renewed += renewed.values()
        return renewed

    def _join_partition(
        self,
        worker: RegisteredWorker,
        entrance: _PendingRegistration,
        renewed: dict[Rank, SlotWriter],
    ) -> None:
        partition, writers = entrance
        self.partitions[worker.key] = partition
        had_hints = bool(partition.hint_slots)
        partition.join_ranks(worker, writers | renewed)
        partition.assume_bookings(worker, self._rules.assumptions)
        if had_hints != bool(partition.hint_slots):
            self.partition_changes[0] += 1
        self._claim_blocks(partition, list(writers))
        self.dirty.mark_capacity(worker.key)

    def _claim_blocks(self, partition: Partition, ranks: list[Rank]) -> None:
        """Assign recovered blocks to ranks with empty slots.

        Ranks with an assumed index take none: no event would ever remove these blocks.
        """
        for rank in ranks if self.recovered_blocks.may_have_blocks(partition.key) else ():
            worker = self.catalog.get_worker(rank.worker_id)
            if self._rules.assumptions.source_of(worker.registration.index) == "assumed":
                continue
            held = self.recovered_blocks.claim_blocks(partition.key, partition.block_size, rank)
            if held is not None:
                writer = partition.table.writer_of(rank)
                # Marks the slot as incomplete until the recovered blocks are in.
                writer.is_filling = True
                self._adoptions.append(Adoption(held, (rank.worker_id, rank.dp_rank), writer))

    def claim_recovered_blocks(self) -> Iterator[None]:
        """Assign recovered blocks to existing ranks, none of which may have received events.

        Yields after some ranks; ranks that join meanwhile claim recovered blocks on joining.
        """
        for partition in list(self.partitions.values()):
            ranks = (
                partition.table.sorted_ranks()
                if self.recovered_blocks.may_have_blocks(partition.key)
                else []
            )
            for begin in range(0, len(ranks), CLAIMS_PER_TURN_MAX):
                some = ranks[begin : begin + CLAIMS_PER_TURN_MAX]
                self._claim_blocks(
                    partition, [r for r in some if partition.table.find_slot(r) is not None]
                )
                yield

    def _remove_ranks(self, worker: RegisteredWorker, ranks: Sequence[Rank]) -> None:
        """Remove ranks of a worker; a partition without ranks is removed."""
        if not ranks:
            return
        key = worker.key
        partition = self.partitions[key]
        had_hints = bool(partition.hint_slots)
        writers = partition.remove_ranks(worker.worker_id, ranks)
        # The last ranks take the whole partition along, with all that was assumed.
        assumed = partition.assumed if len(partition.table) else None
        for writer in writers:
            if assumed is not None:
                assumed.set_rank(writer.slot, None)
            left = LeavingSlot(partition.account, writer.slot, writer, assumed)
            if left.is_empty:
                self._retired.append(writer)
            else:
                # While marked, the slot still holds load and must not be assigned to a new rank.
                left.account.leaving_slots.add(left.slot)
                self.leaving.append(left)
        if not len(partition.table) or had_hints != bool(partition.hint_slots):
            # Kernels of other threads compare the number to drop cached pointers to the partition.
            self.partition_changes[0] += 1
        if not len(partition.table):
            del self.partitions[key]
        self.dirty.mark_capacity(key)

    def retire_first_leaving(self) -> None:
        """Free the first slot of `leaving`, which is empty."""
        left = self.leaving.popleft()
        assert left.is_empty
        left.account.leaving_slots.discard(left.slot)
        self._retired.append(left.writer)

    def slot_of(self, partition: Partition, rank: Rank) -> int:
        """Return the slot. Raises NotFound with the existing ranks, NoEligibleRank if out of
        rotation.
        """
        slot = partition.table.find_slot(rank)
        if slot is not None:
            check_in_rotation(partition.table, slot, rank)
            return slot
        raise self.catalog.rank_not_found_error(partition.key, rank)

    def has_rank(self, key: PartitionKey, rank: Rank) -> bool:
        """Return whether a rank is registered in a scope."""
        partition = self.partitions.get(key)
        return partition is not None and partition.table.find_slot(rank) is not None

    def set_weight(self, rank: Rank, weight: float, state: str) -> None:
        """Set the weight of a rank; unknown ranks are ignored. O(1)

        A weight of 0 excludes the rank; requests waiting only for this rank are then rejected.

        state: reason for a weight of 0, used in error messages
        """
        worker = self.catalog.find_worker(rank.worker_id)
        if worker is not None and worker.is_schedulable:
            self.set_weights(worker, ((rank, weight, state),))

    def set_weights(
        self, worker: RegisteredWorker, weights: Iterable[tuple[Rank, float, str]]
    ) -> None:
        """Set the weights of ranks of a schedulable worker."""
        partition, turned = self.partitions.get(worker.key), False
        if partition is None:
            return
        table = partition.table
        for rank, weight, state in weights:
            slot = table.find_slot(rank)
            turned |= slot is not None and table.set_weight(slot, weight, state)
        if turned:
            self.dirty.mark_capacity(worker.key)

    @property
    def has_changes(self) -> bool:
        """Whether `take_changes` has anything to return."""
        return bool(self._changed or self._retired or self._renewed or self._adoptions)

    @property
    def has_adoptions(self) -> bool:
        """Whether any rank waits for recovered blocks."""
        return bool(self._adoptions)

    def take_changes(self, ranks_max: int = RANKS_PER_TURN_MAX) -> CatalogChanges:
        """Return changes since the last call. O(ranks of the changed workers)

        After `ranks_max` ranks, further workers are left for the next call, together with the slots
        to be closed after their listeners.
        """
        sources: dict[int, list[KvSource]] = {}
        n_ranks = 0
        # At least one worker per call: a worker with more ranks than the limit would otherwise
        # never be handed out.
        while self._changed and n_ranks < ranks_max:
            worker_id = next(iter(self._changed))
            del self._changed[worker_id]
            worker = self.catalog.find_worker(worker_id)
            sources[worker_id] = []
            if worker is not None and worker.is_schedulable and self._rules.use_kv_events:
                sources[worker_id] = list_event_sources(worker, self.partitions[worker.key])
            n_ranks += 1 + len(sources[worker_id])
        renewed, self._renewed = self._renewed, []
        adoptions, self._adoptions = self._adoptions, []
        retired: list[SlotWriter] = []
        if not self._changed:
            # A slot may be closed only after the slot's listener has stopped writing.
            retired, self._retired = self._retired, []
        return CatalogChanges(renewed, adoptions, sources, retired)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        self.catalog.check_invariants()
        schedulable = [worker for worker in self.catalog if worker.is_schedulable]
        assert set(self.partitions) == {worker.key for worker in schedulable}
        for key, partition in self.partitions.items():
            partition.check_invariants()
            workers = [worker for worker in schedulable if worker.key == key]
            assert partition.table.sorted_ranks() == sorted(
                rank for w in workers for rank in w.list_ranks()
            )
            for worker in workers:
                assert worker.registration.block_size == partition.block_size
        if self._rules.use_kv_events:
            self.event_users.check_invariants(schedulable)
        for account in {id(left.account): left.account for left in self.leaving}.values():
            mine = [left.slot for left in self.leaving if left.account is account]
            assert sorted(mine) == sorted(account.leaving_slots)
