"""The root of the core: one short method per verb of the API.

Every refusal is raised before the first write.  Nothing here waits, reads a clock or does I/O:
`now` is given, in seconds of a monotonic clock, and randomness comes from the generator given at
the start.  The only outlet is `emit`, which is told of every admission, completed prefill and free,
so that other replicas can follow; it must not block, raise or call back.  Output blocks are not
told (they are too many), and neither are expiry and the leaving of a rank: each replica has leases
and a catalog of its own, and comes to the same end by itself.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from indexer.prefix_index import PrefixIndex
from select_service.core.catalog import Worker
from select_service.core.cost import RouterConfig, overridden
from select_service.core.dumps import DumpPart, dump_parts
from select_service.core.fleet import Fleet
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import Hashes
from select_service.core.partition import Partition, Placement
from select_service.core.prompt import Prompt, booked_prompt_of, prompt_of
from select_service.core.replica_events import Admitted, Event, Freed, PrefillCompleted
from select_service.core.replica_state import ReplicaState
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

_NO_HASHES: Hashes = np.zeros(0, np.uint64)


class Decision(NamedTuple):
    """A selection and, for the decision log, a way to explain it at no cost unless asked."""

    selection: Selection
    explain: Callable[[], list[dict[str, Any]]]


class Admission(NamedTuple):
    """What is booked besides the prompt.  prefill_tokens None: prefill is not tracked."""

    reservation_id: str
    prefill_tokens: int | None
    now: float
    expected_output_tokens: int | None
    lora_name: str | None


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
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._config = config
        self._rng = rng
        self._emit = emit
        self.router_id = rng.getrandbits(64) or 1
        self.fleet = Fleet(new_index, use_kv_events)
        self.held = Reservations(reservation_ttl_s, self.router_id)
        self.replicas = ReplicaState(self.fleet, self.held, self.router_id, emit)
        self.expired = 0
        self.dropped_with_rank = 0

    # --- workers

    def register(self, given: WorkerRegistration) -> WorkerRecord:
        """POST /workers.  Raises BadRequest, CapacityExceeded."""
        return self._put(self.fleet.registered(given))

    def patch(self, worker_id: int, patch: WorkerPatch) -> WorkerRecord:
        """PATCH /workers/{worker_id}.  Raises NotFound."""
        return self._put(self.fleet.patched(worker_id, patch))

    def delete(self, worker_id: int) -> WorkerRecord:
        """DELETE /workers/{worker_id}: its record stays readable for a while.  Raises NotFound."""
        worker = self.fleet.catalog.get(worker_id)
        self._drop_bookings(worker.ranks() if worker.schedulable else [])
        self.fleet.delete(worker)
        return worker.record()

    def workers(
        self, model_name: str | None = None, tenant_id: str | None = None
    ) -> list[WorkerRecord]:
        catalog = self.fleet.catalog
        return [w.record() for w in catalog if w.key.within(model_name, tenant_id)]

    def ready(self) -> Ready:
        schedulable = sum(worker.schedulable for worker in self.fleet.catalog)
        return Ready(ready=schedulable > 0, schedulable_workers=schedulable, workers=self.workers())

    def _put(self, worker: Worker) -> WorkerRecord:
        self._drop_bookings(self.fleet.leaving(worker))
        self.fleet.put(worker)
        return worker.record()

    def _drop_bookings(self, ranks: list[Rank]) -> None:
        """Ranks that leave lose their reservations."""
        for reservation_id in self.held.on_ranks(set(ranks)) if ranks else ():
            self._release(reservation_id)
            self.dropped_with_rank += 1

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
        tokens = placement.effective_prefill_tokens if config.track_prefill_tokens else None
        wanted = request.expected_output_tokens, request.lora_name
        admission = Admission(reservation_id, tokens, now, *wanted)
        self._book(partition, placement.rank, prompt, admission, config)
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
        wanted = request.expected_output_tokens, request.lora_name
        admission = Admission(request.reservation_id, tokens, now, *wanted)
        self._book(partition, rank, prompt, admission, config)
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
        partition = self.fleet.partitions.get(key)
        if partition is not None:
            return partition
        if not self.fleet.partitions:
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
        worker = self.fleet.catalog.find(rank.worker_id)
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
        what: Admission,
        config: RouterConfig,
    ) -> None:
        """The only writes of an admission, after every refusal; none of them can fail."""
        slot = partition.find(rank)
        assert slot is not None
        booking = Booking(
            reservation_id=what.reservation_id,
            key=partition.key,
            rank=rank,
            slot=slot,
            sequence_hashes=self._tracked(prompt.sequence_hashes, config),
            isl_tokens=prompt.isl_tokens,
            prefill_tokens=what.prefill_tokens or 0,
            booked_at=what.now,
        )
        partition.book(booking)
        self.held.add(booking, what.now)
        self.replicas.endings.forget(what.reservation_id)
        self._emit(
            Admitted(
                model_name=partition.key.model_name,
                tenant_id=partition.key.tenant_id,
                block_size=partition.block_size,
                reservation_id=what.reservation_id,
                rank=rank,
                router_id=self.router_id,
                lora_name=what.lora_name,
                sequence_hashes=booking.sequence_hashes,
                prefill_tokens_hint=what.prefill_tokens,
                track_prefill_tokens=what.prefill_tokens is not None,
                expected_output_tokens=what.expected_output_tokens,
            )
        )

    def _tracked(self, sequence_hashes: Hashes, config: RouterConfig) -> Hashes:
        """The block identities that a booking counts under.

        Without KV reuse between requests no two of them share a block: each gets identities of its
        own.
        """
        if not config.track_active_blocks:
            return _NO_HASHES
        if config.assume_kv_reuse:
            return sequence_hashes
        return np.frombuffer(bytearray(self._rng.randbytes(8 * len(sequence_hashes))), np.uint64)

    # --- lifecycle of reservations

    def prefill_complete(self, reservation_id: str, now: float) -> None:
        """Give back the booked prefill tokens; repeating it changes nothing.  Raises NotFound."""
        booking = self.held.renew(reservation_id, now)
        self.replicas.complete_prefill(booking)
        partition = self.fleet.partitions[booking.key]
        self.replicas.say(PrefillCompleted, partition, reservation_id, booking.rank)

    def output_block(self, reservation_id: str, decay_fraction: float | None, now: float) -> None:
        """One more output block, then the decay.  Raises BadRequest, NotFound."""
        if decay_fraction is not None and not 0.0 <= decay_fraction <= 1.0:
            raise BadRequest("decay_fraction must be between 0.0 and 1.0")
        booking = self.held.renew(reservation_id, now)
        if self._config.track_output_blocks and self._config.track_active_blocks:
            booking.output = self.fleet.partitions[booking.key].load.add_output_block(
                booking.slot, booking.sequence_hashes, booking.output, decay_fraction
            )

    def renew(self, reservation_id: str, now: float) -> None:
        """Start the lease anew.  Raises NotFound."""
        self.held.renew(reservation_id, now)

    def free(self, reservation_id: str, now: float) -> None:
        """Take the whole load of a reservation back.  Raises NotFound."""
        booking = self._release(reservation_id)
        self.replicas.endings.freed(reservation_id, self.router_id, now)
        partition = self.fleet.partitions[booking.key]
        self.replicas.say(Freed, partition, reservation_id, booking.rank)

    def _release(self, reservation_id: str) -> Booking:
        booking = self.held.remove(reservation_id)
        self.fleet.partitions[booking.key].free(booking)
        return booking

    def tick(self, now: float) -> list[Booking]:
        """Free what nobody renewed in time; returns it for the log."""
        ended = [self._release(reservation_id) for reservation_id in self.held.overdue(now)]
        self.expired += len(ended)
        self.replicas.endings.tick(now)
        self.fleet.recovered.tick(now)
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
                loads=self.fleet.partitions[key].loads(),
                pending_count=0,
                pending_isl_tokens=0,
            )
            for key in sorted(self.fleet.partitions)
            if key.within(model_name, tenant_id)
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

    def dumps(self) -> list[DumpPart]:
        """All that is known of the index."""
        return dump_parts(self.fleet.partitions, self.fleet.recovered)

    def check_invariants(self) -> None:
        """For tests."""
        self.fleet.check_invariants()
        self.held.check_invariants()
        self.replicas.check_invariants()
        for key, partition in self.fleet.partitions.items():
            bookings = [b for b in self.held if b.key == key]
            assert all(partition.find(b.rank) == b.slot for b in bookings)
            loads = partition.loads()
            assert sum(row.active_requests for row in loads) == len(bookings)
            assert sum(row.potential_prefill_tokens for row in loads) == sum(
                b.prefill_tokens for b in bookings
            )
        assert {b.key for b in self.held} <= set(self.fleet.partitions)


def _booked_tokens(request: ReservationRequest, prompt: Prompt, config: RouterConfig) -> int | None:
    """Prefill tokens of a reservation: the caller's number, else the whole prompt when tracked."""
    tokens = request.effective_prefill_tokens
    if tokens is None:
        return prompt.isl_tokens if config.track_prefill_tokens else None
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
