"""The root of the core: one short method per verb of the API.

Every refusal is raised before the first write.  Nothing here waits, reads a clock or does I/O:
`now` is given, in seconds of a monotonic clock, and randomness comes from the generator given at
the start.  There are two outlets, which must not block, raise or call back.  `emit` is told of
every admission, completed prefill and free, so that other replicas can follow.  Output blocks are
not told (they are too many), and neither are expiry and the leaving of a rank: each replica has
leases and a catalog of its own, and comes to the same end by itself.  `wake` asks for a call of
`serve_waiting` soon, because a request that waits may have room now.
"""

from collections.abc import Callable, Mapping
from itertools import groupby
from random import Random
from typing import NamedTuple

from indexer.index.prefix_index import PrefixIndex
from select_service.bodies.admission import (
    AdmissionState,
    BusyThresholdChange,
    BusyThresholdList,
    BusyThresholdView,
)
from select_service.bodies.common import Scope, tenant_of
from select_service.bodies.inspection import OverlapScores, PartitionLoads, RankLoad, SharedCache
from select_service.bodies.prompts import PromptFields, PromptQuery
from select_service.bodies.reservations import Reservation, ReservationPage, ReservationRequest
from select_service.bodies.selection import SelectAndReserveRequest, SelectRequest
from select_service.bodies.workers import (
    Ready,
    WorkerAdmission,
    WorkerPatch,
    WorkerRecord,
    WorkerRegistration,
)
from select_service.core.admission.busy import BusyJudge
from select_service.core.admission.gate import Gate
from select_service.core.admission.policy import QueueRules
from select_service.core.admission.state import admission_state
from select_service.core.admission.thresholds import BusyThresholds, ThresholdTable
from select_service.core.admission.tiers import PriorityTiers
from select_service.core.admission.waiting import Ticket
from select_service.core.admission.worker_view import worker_admissions
from select_service.core.decide.cost import RouterConfig, overridden
from select_service.core.decide.decisions import Booked, Decision, Decisions, Job
from select_service.core.decide.prompt import Prompt, booked_prompt_of, prompt_of
from select_service.core.engines.engine_load import EngineLoads, EngineReading, EngineTarget
from select_service.core.fleet.catalog import Worker
from select_service.core.fleet.fleet import Fleet
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.reservations import Booking, ReservationFilter, Reservations
from select_service.core.replicas.events import Event, Freed, PrefillCompleted
from select_service.core.replicas.state import ReplicaState
from select_service.core.views.dump_parts import DumpPart, dump_parts
from select_service.errors import BadRequest, NotFound, NoWorkers


class AdmissionRules(NamedTuple):
    """What decides which requests pass at once; by default all of them do.

    queue:          None when queueing is off
    engine_stale_s: age from which on what an engine says of its load is not believed
    """

    thresholds: BusyThresholds = BusyThresholds()
    queue: QueueRules | None = None
    tiers: tuple[str, ...] = ("premium", "standard", "best_effort")
    default_tier: str = "standard"
    engine_stale_s: float = 5.0


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
        admission: AdmissionRules | None = None,
        emit: Callable[[Event], None] = lambda event: None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        rules = admission or AdmissionRules()
        self._config = config
        self.router_id = rng.getrandbits(64) or 1
        self.fleet = Fleet(
            new_index,
            use_kv_events,
            queueing=rules.queue is not None,
            on_room=lambda key: self.gate.room_appeared(key),
        )
        self.held = Reservations(reservation_ttl_s, self.router_id)
        self.replicas = ReplicaState(self.fleet, self.held, self.router_id, emit)
        self._decisions = Decisions(self.held, self.replicas, rng)
        self.engines = EngineLoads(rules.engine_stale_s)
        self.gate = Gate(
            self.fleet.partitions,
            BusyJudge(ThresholdTable(rules.thresholds), self.engines),
            PriorityTiers(rules.tiers, rules.default_tier),
            rules.queue,
            self._decisions.decide,
            wake,
        )
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
        self.engines.forget(worker_id)
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
        old = self.fleet.catalog.find(worker.worker_id)
        if old is None or old.given.metrics_endpoint != worker.given.metrics_endpoint:
            self._forget_engine(worker)
        self.fleet.put(worker)
        return worker.record()

    def _forget_engine(self, worker: Worker) -> None:
        self.engines.forget(worker.worker_id)
        partition = self.fleet.partitions.get(worker.key)
        if partition is not None:
            partition.forget_kv_usages(worker.worker_id)

    def _drop_bookings(self, ranks: list[Rank]) -> None:
        """Ranks that leave lose their reservations."""
        for reservation_id in self.held.on_ranks(set(ranks)) if ranks else ():
            self._release(reservation_id)
            self.dropped_with_rank += 1

    # --- selection

    def select(
        self, request: SelectRequest, now: float, policy_class: str | None = None
    ) -> Decision | Ticket:
        """POST /select: a decision, or a ticket that becomes one (see Gate).

        policy_class: what the client asked for in its header
        Raises BadRequest, CapacityShed, NoWorkers, InvalidBody, NoEligibleRank, Overloaded,
        QueueFull, QueueTimeout.
        """
        job = self._job(request)
        return self.gate.admit(job, job.partition.candidates(request), now, policy_class)

    def select_and_reserve(
        self, request: SelectAndReserveRequest, now: float, policy_class: str | None = None
    ) -> Decision | Ticket:
        """POST /select_and_reserve: choosing and booking are one step.

        Raises like `select`, and Conflict, CapacityExceeded.
        """
        job = self._job(request, True, request.reservation_id)
        if request.reservation_id is not None:
            self.held.refuse_unless_free(request.reservation_id)
            self.gate.waiting.refuse_if_waiting(request.reservation_id)
        return self.gate.admit(job, job.partition.candidates(request), now, policy_class)

    def _job(
        self, request: SelectRequest, reserves: bool = False, reservation_id: str | None = None
    ) -> Job:
        self.gate.refuse_shed(request)
        partition = self._partition_of(request)
        prompt = prompt_of(request, partition.block_size, partition.is_eagle)
        config = overridden(self._config, request.router_config_override)
        return Job(partition, prompt, request, config, reserves, reservation_id)

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
        self.gate.waiting.refuse_if_waiting(request.reservation_id)
        self.held.refuse_unless_room(len(prompt.sequence_hashes))
        wanted = request.expected_output_tokens, request.lora_name
        booked = Booked(request.reservation_id, tokens, *wanted)
        self._decisions.book(partition, rank, prompt, config, booked, now)
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

    # --- admission

    def serve_waiting(self, now: float) -> None:
        """Let requests go that wait for room which is there now; what `wake` asks for."""
        self.gate.serve(now)

    def set_thresholds(self, change: BusyThresholdChange) -> BusyThresholdView:
        """POST /busy_threshold.  Raises NotFound for a model that no worker serves."""
        if not any(worker.key.model_name == change.model for worker in self.fleet.catalog):
            raise NotFound(f"model `{change.model}` not found: no worker is registered for it")
        changed = self.gate.judge.thresholds.change(change)
        self.gate.stir_all()
        return changed

    def thresholds(self) -> BusyThresholdList:
        """GET /busy_threshold."""
        models = {worker.key.model_name for worker in self.fleet.catalog}
        return BusyThresholdList(thresholds=self.gate.judge.thresholds.views(models))

    def shed(self, tier: str | None) -> AdmissionState:
        """POST /admission/shed.  Raises BadRequest for an unknown tier."""
        self.gate.shed(tier)
        return admission_state(self.gate, self.thresholds().thresholds)

    def admission(self) -> AdmissionState:
        """GET /admission."""
        return admission_state(self.gate, self.thresholds().thresholds)

    def worker_admissions(self, now: float) -> dict[int, WorkerAdmission]:
        """How workers stand to the busy thresholds; without those that nothing judges."""
        found: dict[int, WorkerAdmission] = {}
        schedulable = (worker for worker in self.fleet.catalog if worker.schedulable)
        for key, workers in groupby(schedulable, lambda worker: worker.key):
            found |= worker_admissions(self.gate.judge, self.fleet.partitions[key], workers, now)
        return found

    def engine_targets(self) -> list[EngineTarget]:
        """Engines whose own metrics should be read."""
        return [
            EngineTarget(worker.worker_id, url, tuple(worker.dp_ranks()))
            for worker in self.fleet.catalog
            if worker.schedulable and (url := worker.given.metrics_endpoint)
        ]

    def engine_read(
        self, target: EngineTarget, readings: Mapping[int, EngineReading], now: float
    ) -> None:
        """Take what an engine says; nothing when it is not to be asked any more."""
        worker = self.fleet.catalog.find(target.worker_id)
        if worker is None or not worker.schedulable or worker.given.metrics_endpoint != target.url:
            return
        ranks = worker.dp_ranks()
        known = {dp_rank: reading for dp_rank, reading in readings.items() if dp_rank in ranks}
        self.engines.put(target.worker_id, known, now)
        partition = self.fleet.partitions[worker.key]
        self.gate.judge.read_engines(partition, worker.ranks(), now)

    def engine_failed(self, target: EngineTarget, error: str, now: float) -> None:
        """An engine could not be asked, or said nothing that can be read."""
        worker = self.fleet.catalog.find(target.worker_id)
        if worker is not None and worker.given.metrics_endpoint == target.url:
            self.engines.failed(target.worker_id, error, now)

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
            if decay_fraction is not None:
                self.gate.room_appeared(booking.key)

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
        self.gate.tick(now)
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
                pending_count=self.gate.waiting.of(key).requests,
                pending_isl_tokens=self.gate.waiting.of(key).isl_tokens,
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
        self.gate.check_invariants()
        self.engines.check_invariants()
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
