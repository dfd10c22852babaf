"""The root of the core: one short method per verb of the API.

Every refusal is raised before the first write.  Nothing here waits, reads a clock or does I/O:
`now` is given, in seconds of a monotonic clock, and randomness comes from the generator given at
the start.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from indexer.prefix_index import IndexSnapshot, PrefixIndex, SlotWriter

from indexer.kv_source import KvSource
from select_service.core.catalog import Catalog, Worker, partition_key, shortcomings
from select_service.core.cost import RouterConfig, overridden
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import Hashes
from select_service.core.partition import Partition, Placement
from select_service.core.prompt import Prompt, booked_prompt_of, prompt_of
from select_service.core.reservations import Booking, ReservationFilter, Reservations
from select_service.errors import BadRequest, NotFound, NoWorkers
from select_service.schema import (
    OverlapScores,
    PartitionLoads,
    PromptFields,
    PromptQuery,
    RankLoad,
    Ready,
    Reservation,
    ReservationPage,
    ReservationRequest,
    Scope,
    SelectAndReserveRequest,
    Selection,
    SelectRequest,
    SharedCache,
    WorkerPatch,
    WorkerRecord,
    WorkerRegistration,
    tenant_of,
)

PARTITIONS_MAX = 1024

_NO_HASHES: Hashes = np.zeros(0, np.uint64)


class Decision(NamedTuple):
    """A selection and, for the decision log, a way to explain it at no cost unless asked."""

    selection: Selection
    explain: Callable[[], list[dict[str, Any]]]


class PartitionDump(NamedTuple):
    """What /dump says of one partition."""

    key: PartitionKey
    block_size: int
    snapshot: IndexSnapshot
    slot_ranks: dict[int, Rank]


class Selector:
    """Workers, partitions and reservations of one process."""

    def __init__(
        self,
        config: RouterConfig,
        new_index: Callable[[], PrefixIndex],
        *,
        rng: Random,
        use_kv_events: bool = True,
        reservation_ttl_s: float = 3600.0,
    ) -> None:
        self._config = config
        self._new_index = new_index
        self._rng = rng
        self._use_kv_events = use_kv_events
        self.catalog = Catalog()
        self.partitions: dict[PartitionKey, Partition] = {}
        self.held = Reservations(reservation_ttl_s)
        self.expired = 0
        self.dropped_with_rank = 0
        self._retired: list[SlotWriter] = []

    # --- workers

    def register(self, given: WorkerRegistration) -> WorkerRecord:
        """POST /workers.  Raises BadRequest, CapacityExceeded."""
        partition_key(given)
        return self._apply(self.catalog.registered(given))

    def patch(self, worker_id: int, patch: WorkerPatch) -> WorkerRecord:
        """PATCH /workers/{worker_id}.  Raises NotFound."""
        return self._apply(self.catalog.patched(worker_id, patch))

    def delete(self, worker_id: int) -> WorkerRecord:
        """DELETE /workers/{worker_id}: its record stays readable for a while.  Raises NotFound."""
        worker = self.catalog.get(worker_id)
        self._withdraw(worker)
        worker.lifecycle, worker.reasons = "unschedulable", []
        self.catalog.bury(worker_id)
        return worker.record()

    def workers(
        self, model_name: str | None = None, tenant_id: str | None = None
    ) -> list[WorkerRecord]:
        return [w.record() for w in self.catalog if _in_scope(w.key, model_name, tenant_id)]

    def ready(self) -> Ready:
        schedulable = sum(worker.schedulable for worker in self.catalog)
        return Ready(ready=schedulable > 0, schedulable_workers=schedulable, workers=self.workers())

    def kv_sources(self) -> list[KvSource]:
        """The event listeners that should exist now."""
        if not self._use_kv_events:
            return []
        return [source for worker in self.catalog for source in self._sources_of(worker)]

    def take_retired_writers(self) -> list[SlotWriter]:
        """Index slots of ranks that left; the caller closes them (slow) after their listeners."""
        retired, self._retired = self._retired, []
        return retired

    def _apply(self, worker: Worker) -> WorkerRecord:
        """Put a new state of a worker in place of the old one, keeping what did not change."""
        worker.reasons = shortcomings(worker, self._use_kv_events) or self._misfits(worker)
        worker.lifecycle = "incomplete" if worker.reasons else "schedulable"
        old = self.catalog.find(worker.worker_id)
        if old is not None and old.schedulable:
            self._leave(old, worker)
        self.catalog.put(worker)
        if worker.schedulable:
            self._join(worker)
        return worker.record()

    def _misfits(self, worker: Worker) -> list[str]:
        """Why the worker does not fit the partition as its other workers have shaped it."""
        partition = self.partitions.get(worker.key)
        if partition is None:
            full = len(self.partitions) >= PARTITIONS_MAX
            return [f"{PARTITIONS_MAX} partitions exist, the most there may be"] if full else []
        if partition.worker_ids() <= {worker.worker_id}:
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

    def _leave(self, old: Worker, new: Worker) -> None:
        """Withdraw those ranks of `old` that `new` does not continue."""
        partition = self.partitions[old.key]
        continues = (
            new.schedulable
            and new.key == old.key
            and (new.given.block_size, new.is_eagle) == (partition.block_size, partition.is_eagle)
        )
        if not continues:
            self._withdraw(old)
            return
        kept = set(new.ranks())
        self._remove_ranks(partition, [rank for rank in old.ranks() if rank not in kept])
        for dp_rank in set(new.dp_ranks()) & set(old.dp_ranks()):
            if new.kv_endpoint(dp_rank) != old.kv_endpoint(dp_rank):
                partition.renew_index(Rank(new.worker_id, dp_rank))

    def _join(self, worker: Worker) -> None:
        partition = self.partitions.get(worker.key)
        if partition is None:
            assert worker.given.block_size
            partition = Partition(
                worker.key, worker.given.block_size, worker.is_eagle, self._new_index()
            )
            self.partitions[worker.key] = partition
        partition.add_worker(worker)

    def _withdraw(self, worker: Worker) -> None:
        if worker.schedulable:
            self._remove_ranks(self.partitions[worker.key], worker.ranks())

    def _remove_ranks(self, partition: Partition, ranks: list[Rank]) -> None:
        """The ranks lose their reservations and their index; an empty partition goes."""
        for reservation_id in self.held.on_ranks(set(ranks)):
            partition.free(self.held.remove(reservation_id))
            self.dropped_with_rank += 1
        self._retired += partition.remove_ranks(ranks)
        if not partition.ranks:
            del self.partitions[partition.key]

    def _sources_of(self, worker: Worker) -> Iterator[KvSource]:
        if not worker.schedulable:
            return
        partition = self.partitions[worker.key]
        writers = {rank.dp_rank: partition.writer(rank) for rank in worker.ranks()}
        for dp_rank in writers:
            endpoint = worker.kv_endpoint(dp_rank)
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
            )

    # --- selection

    def select(self, request: SelectRequest) -> Decision:
        """POST /select.  Raises NoWorkers, BadRequest, InvalidBody, NoEligibleRank."""
        partition = self._partition_of(request)
        prompt = prompt_of(request, partition.block_size, partition.is_eagle)
        placement = self._place(partition, prompt, request)
        partition.count(placement, reserved=False)
        return _decision(partition, placement, request)

    def select_and_reserve(self, request: SelectAndReserveRequest, now: float) -> Decision:
        """POST /select_and_reserve: choosing and booking are one step.

        Raises like `select`, and Conflict, CapacityExceeded.
        """
        partition = self._partition_of(request)
        prompt = prompt_of(request, partition.block_size, partition.is_eagle)
        reservation_id = self._free_id(request.reservation_id)
        self.held.refuse_unless_room(len(prompt.sequence_hashes))
        config = overridden(self._config, request.router_config_override)
        placement = self._place(partition, prompt, request)
        tokens = placement.effective_prefill_tokens if config.track_prefill_tokens else 0
        self._book(partition, placement.rank, prompt, (reservation_id, tokens, now), config)
        partition.count(placement, reserved=True)
        decision = _decision(partition, placement, request)
        decision.selection.reservation_id = reservation_id
        return decision

    def reserve(self, request: ReservationRequest, now: float) -> Reservation:
        """POST /reservations: the caller chose the rank.

        Raises NoWorkers, BadRequest, InvalidBody, NotFound, Conflict, CapacityExceeded.
        """
        partition = self._partition_of(request)
        prompt = booked_prompt_of(request, partition.block_size, partition.is_eagle)
        config = overridden(self._config, request.router_config_override)
        tokens = _booked_tokens(request, prompt, config)
        rank = Rank(request.worker_id, request.dp_rank)
        worker = self._schedulable(partition, rank)
        self.held.refuse_unless_free(request.reservation_id)
        self.held.refuse_unless_room(len(prompt.sequence_hashes))
        self._book(partition, rank, prompt, (request.reservation_id, tokens, now), config)
        return Reservation(
            reservation_id=request.reservation_id,
            model_name=partition.key.model_name,
            tenant_id=partition.key.tenant_id,
            worker_id=rank.worker_id,
            dp_rank=rank.dp_rank,
            endpoint=worker.given.endpoint or "",
        )

    def _partition_of(self, scope: Scope) -> Partition:
        key = PartitionKey(scope.model_name, tenant_of(scope.tenant_id, scope.routing_group))
        partition = self.partitions.get(key)
        if partition is not None:
            return partition
        if not self.partitions:
            raise NoWorkers("no schedulable workers are available")
        raise NoWorkers(f"no schedulable workers for model={key.model_name} tenant={key.tenant_id}")

    def _place(self, partition: Partition, prompt: Prompt, request: SelectRequest) -> Placement:
        config = overridden(self._config, request.router_config_override)
        return partition.place(prompt, request, config, self._rng.random())

    def _free_id(self, wanted: str | None) -> str:
        if wanted is None:
            return str(UUID(int=self._rng.getrandbits(128), version=4))
        self.held.refuse_unless_free(wanted)
        return wanted

    def _schedulable(self, partition: Partition, rank: Rank) -> Worker:
        worker = self.catalog.find(rank.worker_id)
        scope = f"model={partition.key.model_name} tenant={partition.key.tenant_id}"
        if worker is None or not worker.schedulable or worker.key != partition.key:
            raise NotFound(f"schedulable worker {rank.worker_id} not found for {scope}")
        if partition.find(rank) is None:
            ranks = worker.dp_ranks()
            raise NotFound(
                f"dp_rank {rank.dp_rank} of worker {rank.worker_id} not found for {scope}: "
                f"its ranks are {ranks.start} to {ranks.stop - 1}"
            )
        return worker

    def _book(
        self,
        partition: Partition,
        rank: Rank,
        prompt: Prompt,
        what: tuple[str, int, float],
        config: RouterConfig,
    ) -> None:
        """The only writes of an admission, after every refusal; none of them can fail."""
        reservation_id, prefill_tokens, now = what
        slot = partition.find(rank)
        assert slot is not None
        booking = Booking(
            reservation_id=reservation_id,
            key=partition.key,
            rank=rank,
            slot=slot,
            sequence_hashes=self._tracked(prompt.sequence_hashes, config),
            isl_tokens=prompt.isl_tokens,
            prefill_tokens=prefill_tokens,
            booked_at=now,
        )
        partition.book(booking)
        self.held.add(booking)

    def _tracked(self, sequence_hashes: Hashes, config: RouterConfig) -> Hashes:
        """The block identities that a booking counts under.

        Without KV reuse between requests no two of them share a block: each gets identities of its
        own.
        """
        if not config.track_active_blocks:
            return _NO_HASHES
        if config.assume_kv_reuse:
            return sequence_hashes
        return np.frombuffer(self._rng.randbytes(8 * len(sequence_hashes)), np.uint64)

    # --- lifecycle of reservations

    def prefill_complete(self, reservation_id: str, now: float) -> None:
        """Give back the booked prefill tokens; repeating it changes nothing.  Raises NotFound."""
        booking = self.held.renew(reservation_id, now)
        tokens = self.held.prefill_complete(booking)
        self.partitions[booking.key].load.complete_prefill(booking.slot, tokens)

    def output_block(self, reservation_id: str, decay_fraction: float | None, now: float) -> None:
        """One more output block, then the decay.  Raises BadRequest, NotFound."""
        if decay_fraction is not None and not 0.0 <= decay_fraction <= 1.0:
            raise BadRequest("decay_fraction must be between 0.0 and 1.0")
        booking = self.held.renew(reservation_id, now)
        if self._config.track_output_blocks and self._config.track_active_blocks:
            booking.output = self.partitions[booking.key].load.add_output_block(
                booking.slot, booking.sequence_hashes, booking.output, decay_fraction
            )

    def renew(self, reservation_id: str, now: float) -> None:
        """Start the lease anew.  Raises NotFound."""
        self.held.renew(reservation_id, now)

    def free(self, reservation_id: str) -> None:
        """Take the whole load of a reservation back.  Raises NotFound."""
        booking = self.held.remove(reservation_id)
        self.partitions[booking.key].free(booking)

    def tick(self, now: float) -> list[Booking]:
        """Free what nobody renewed in time; returns it for the log."""
        ended = [self.held.remove(reservation_id) for reservation_id in self.held.overdue(now)]
        for booking in ended:
            self.partitions[booking.key].free(booking)
        self.expired += len(ended)
        return ended

    # --- inspection

    def reservations(self, wanted: ReservationFilter, now: float) -> ReservationPage:
        return self.held.page(wanted, now)

    def loads(
        self, model_name: str | None = None, tenant_id: str | None = None
    ) -> list[PartitionLoads]:
        return [
            PartitionLoads(
                model_name=key.model_name,
                tenant_id=key.tenant_id,
                loads=self.partitions[key].loads(),
                pending_count=0,
                pending_isl_tokens=0,
            )
            for key in sorted(self.partitions)
            if _in_scope(key, model_name, tenant_id)
        ]

    def potential_loads(self, query: PromptQuery) -> list[RankLoad]:
        """Raises like `select`."""
        partition, prompt = self._asked(query)
        config = overridden(self._config, query.router_config_override)
        return partition.potential_loads(prompt, config)

    def overlap_scores(self, query: PromptQuery) -> OverlapScores:
        """Raises like `select`."""
        partition, prompt = self._asked(query)
        config = overridden(self._config, query.router_config_override)
        return OverlapScores(
            block_size=partition.block_size,
            num_blocks=len(prompt.block_hashes),
            workers=partition.overlap_rows(prompt, config),
            shared_cache=SharedCache(),
        )

    def _asked(self, query: PromptFields) -> tuple[Partition, Prompt]:
        partition = self._partition_of(query)
        return partition, prompt_of(query, partition.block_size, partition.is_eagle)

    def dumps(self) -> Iterator[PartitionDump]:
        """One partition at a time, each copied when it is asked for."""
        for key in sorted(self.partitions):
            partition = self.partitions.get(key)
            if partition is not None:
                yield PartitionDump(
                    key, partition.block_size, partition.index.snapshot(), partition.slot_ranks()
                )

    def check_invariants(self) -> None:
        """For tests."""
        self.catalog.check_invariants()
        self.held.check_invariants()
        for key, partition in self.partitions.items():
            partition.check_invariants()
            workers = [w for w in self.catalog if w.schedulable and w.key == key]
            assert partition.ranks == sorted(rank for w in workers for rank in w.ranks())
            bookings = [b for b in self.held if b.key == key]
            assert all(partition.find(b.rank) == b.slot for b in bookings)
            loads = partition.loads()
            assert sum(row.active_requests for row in loads) == len(bookings)
            assert sum(row.potential_prefill_tokens for row in loads) == sum(
                b.prefill_tokens for b in bookings
            )
        assert {b.key for b in self.held} <= set(self.partitions)


def _in_scope(key: PartitionKey, model_name: str | None, tenant_id: str | None) -> bool:
    return model_name in (None, key.model_name) and tenant_id in (None, key.tenant_id)


def _booked_tokens(request: ReservationRequest, prompt: Prompt, config: RouterConfig) -> int:
    """Prefill tokens of a reservation: the caller's number, else the whole prompt when tracked."""
    tokens = request.effective_prefill_tokens
    if tokens is None:
        return prompt.isl_tokens if config.track_prefill_tokens else 0
    if tokens > prompt.isl_tokens:
        raise BadRequest(
            f"effective_prefill_tokens ({tokens}) must not exceed isl_tokens ({prompt.isl_tokens})"
        )
    return tokens


def _decision(partition: Partition, placement: Placement, request: SelectRequest) -> Decision:
    given = placement.worker.given
    selection = Selection(
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        worker_id=placement.rank.worker_id,
        dp_rank=placement.rank.dp_rank,
        endpoint=given.endpoint or "",
        block_size=partition.block_size,
        overlap=partition.overlap_of(placement.rank.worker_id, placement.numbers.matched),
        effective_prefill_tokens=placement.effective_prefill_tokens,
    )
    if request.selection_id is not None:
        selection.selection_id = request.selection_id
    return Decision(selection, lambda: partition.explain(placement))
