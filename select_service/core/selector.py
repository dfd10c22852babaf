"""Root of the core: one short method per operation of the API.

Errors are raised before the first write.  Nothing here waits, reads a clock or does I/O: callers
pass `now`, in seconds of a monotonic clock, and randomness comes from a generator passed at the
start.  Operations record pending work in `DirtyPartitions`, which requests a call of `run_pending`.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from select_service.base.errors import BadRequest, NotFound
from select_service.core.admission.admission_gate import AdmissionGate
from select_service.core.admission.admission_state import make_admission_state
from select_service.core.admission.eligibility import eligible_ranks
from select_service.core.admission.engine_readings import EngineReadings
from select_service.core.admission.session_admission import follow_session, has_affinity
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.admission.worker_admission import (
    WorkerAdmissionContext,
    worker_admission_context,
)
from select_service.core.analysis.explanations import Explanations
from select_service.core.analysis.policy_evaluation import PolicyEvaluation
from select_service.core.assumption_service import TURN_S, AssumptionService
from select_service.core.booking_numbers import booked_tokens, estimate_prefill
from select_service.core.decision_maker import (
    DecisionMaker,
    PlacementDecision,
    PlacementRequest,
)
from select_service.core.draining import DrainRegistry
from select_service.core.idempotency import IdempotentRetries
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.ledger import TURN_WORK_MAX, ExpiryResult, Ledger
from select_service.core.load.prefill_legs import check_caller_id
from select_service.core.pairs.pair_decisions import PairDecisions
from select_service.core.periodic_task import SECOND_S, PeriodicTask
from select_service.core.placement.prompt import (
    Prompt,
    ReadAheadPrompt,
    estimate_blocks,
    read_booked_prompt,
)
from select_service.core.prompt_resolver import PromptResolver
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.partition import Partition
from select_service.core.replication.replica_state import ReplicaState
from select_service.core.replication.session_exchange import SessionExchange
from select_service.core.selection_answers import (
    check_hash_limit,
    make_reservation_answer,
)
from select_service.core.selection_replay import SelectionReplay
from select_service.core.sessions.session_pages import SessionViews
from select_service.core.state_inspection import StateInspection
from select_service.core.traffic.traffic_observer import TrafficObserver
from select_service.core.views.registration_hints import find_worker_hints
from select_service.core.workers.worker_catalog import RegisteredWorker, WorkerTombstone
from select_service.schemas.admission import (
    AdmissionState,
    BusyThresholdChange,
    BusyThresholdList,
    BusyThresholdView,
)
from select_service.schemas.pairs import SelectPairAndReserveRequest, SelectPairRequest
from select_service.schemas.prompts import PromptFields
from select_service.schemas.reservations import (
    Reservation,
    ReservationRequest,
)
from select_service.schemas.selection import SelectAndReserveRequest, SelectRequest
from select_service.schemas.workers import Deletion, WorkerPatch, WorkerRecord, WorkerRegistration

if TYPE_CHECKING:
    from select_service.core.health.fleet_health.health_service import HealthService


class CoreFollowers(NamedTuple):
    """Parts that follow decisions and reservations; no placement or booking calls them.

    replicas: exchange of load with peers
    traffic: observation of traffic for the planner
    evaluation: evaluation of the placement policy
    explanations: reader of recorded decisions
    sessions: exchange of sessions with peers
    assumptions: blocks that ranks are assumed to hold because of bookings
    """

    replicas: ReplicaState
    traffic: TrafficObserver
    evaluation: PolicyEvaluation
    explanations: Explanations
    sessions: SessionExchange
    assumptions: AssumptionService


@dataclass(eq=False)
class SelectorCore:
    """Core of a process: workers, partitions and reservations.  `build_selector` connects it.

    fleet: workers and partitions, with the pending work of the next turn
    ledger: reservations and their load
    decisions: choice of ranks, and booking
    gate: admission and the queue
    prompt_resolver: reader of requests' prompts
    retries: handler of repeated requests
    replay: bookings of earlier selections
    engine_readings: readings of engine metrics
    draining: drains of workers
    health: None means that health checks are off
    pairs: choice and booking of prefill and decode ranks together
    session_views: sessions as answers
    inspection: views of reservations, loads and the index
    """

    fleet: WorkerFleet
    ledger: Ledger
    decisions: DecisionMaker
    gate: AdmissionGate
    prompt_resolver: PromptResolver
    retries: IdempotentRetries
    replay: SelectionReplay
    engine_readings: EngineReadings
    draining: DrainRegistry
    health: "HealthService | None"
    pairs: PairDecisions
    followers: CoreFollowers
    session_views: SessionViews
    inspection: StateInspection

    # Workers

    def register_worker(self, registration: WorkerRegistration) -> WorkerRecord:
        """Register a worker (POST /workers).  Raises BadRequest, CapacityExceeded."""
        return self._put_worker(self.fleet.preview_registration(registration), is_registration=True)

    def patch_worker(self, worker_id: int, patch: WorkerPatch) -> WorkerRecord:
        """Change a worker (PATCH /workers/{worker_id}).

        Revives a deleted worker, like the reference does, and reports this in the answer.  Raises
        BadRequest, CapacityExceeded, NotFound.
        """
        tombstone = self.fleet.catalog.deleted_workers().get(worker_id)
        record = self._put_worker(self.fleet.preview_patch(worker_id, patch))
        if tombstone is not None:
            record.revived = (
                f"worker {worker_id} was deleted ({tombstone.reason}) and is registered again"
            )
        return record

    def delete_worker(self, worker_id: int, now: float, reason: str | None = None) -> WorkerRecord:
        """Delete a worker (DELETE /workers/{worker_id}); the record stays readable for a while.

        reason: cause of the deletion; None means this request
        Raises NotFound.
        """
        worker = self.fleet.catalog.get_worker(worker_id)
        self.fleet.delete_worker(
            worker, WorkerTombstone(now, reason or f"DELETE /workers/{worker_id}")
        )
        self.engine_readings.forget_worker(worker_id)
        self._on_worker_changed(worker_id)
        return worker.make_record()

    def find_deletion(self, worker_id: int, now: float) -> Deletion | None:
        """Return time and reason of a deletion, while the record is kept."""
        if (tombstone := self.fleet.catalog.deleted_workers().get(worker_id)) is None:
            return None
        return Deletion(seconds_ago=round(now - tombstone.at, 3), reason=tombstone.reason)

    def list_workers(
        self, model_name: str | None = None, tenant_id: str | None = None
    ) -> list[RegisteredWorker]:
        """Return the workers of a scope, by model, tenant and worker id."""
        return [w for w in self.fleet.catalog if w.key.matches(model_name, tenant_id)]

    def get_worker(self, worker_id: int) -> RegisteredWorker:
        """Return a worker (GET /workers/{worker_id}).  Raises NotFound."""
        return self.fleet.catalog.get_worker(worker_id)

    def _put_worker(self, worker: RegisteredWorker, is_registration: bool = False) -> WorkerRecord:
        old = self.fleet.catalog.find_worker(worker.worker_id)
        self.fleet.put_worker(worker)
        self.engine_readings.on_worker_changed(old, worker)
        self._on_worker_changed(worker.worker_id, is_registration)
        return self.worker_record(worker)

    def _on_worker_changed(self, worker_id: int, is_registration: bool = False) -> None:
        self.fleet.dirty.request_turn_if(self.fleet.leaving)
        if self.health is not None:
            self.health.on_worker_changed(worker_id, is_registration)
        # After health, which must know a new worker before its drain is applied again.
        self.draining.on_worker_changed(worker_id, is_registration)

    def worker_record(self, worker: RegisteredWorker) -> WorkerRecord:
        """Return the worker's record, with hints about probable mistakes."""
        record = worker.make_record()
        same_engine = self.fleet.catalog.find_same_engine(worker)
        record.hints = find_worker_hints(worker, self.fleet.event_users, same_engine) or UNSET
        return record

    # Selection and booking

    def select(
        self,
        request: SelectRequest,
        now: float,
        policy_class: str | None = None,
        explain: bool = False,
        read_ahead: ReadAheadPrompt | None = None,
    ) -> PlacementDecision | WaitingTicket:
        """Choose a rank (POST /select): return a decision, or a ticket for a later one (see Gate).

        policy_class: policy class from the request header
        explain:      whether the decision lists the costs of every candidate
        read:         prompt read in advance, or None
        Raises BadRequest, CapacityShed, NoWorkers, InvalidBody, NoEligibleRank, Overloaded,
        QueueFull, QueueTimeout.
        """
        job = self._make_request(request, explain, read_ahead)
        return self._admit_request(job, now, policy_class)

    def select_and_reserve(
        self,
        request: SelectAndReserveRequest,
        now: float,
        policy_class: str | None = None,
        explain: bool = False,
        read_ahead: ReadAheadPrompt | None = None,
    ) -> PlacementDecision | WaitingTicket:
        """Choose a rank and book the load in one step (POST /select_and_reserve).

        Raises like `select`, and Conflict, CapacityExceeded.
        """
        # A repeated request needs no capacity: its load is booked already, so the gate is skipped.
        if (again := self.retries.find_selection(request, read_ahead, now)) is not None:
            return PlacementDecision(again)
        job = self._make_request(request, explain, read_ahead, True, request.booking_id)
        return self._admit_request(job, now, policy_class)

    def _admit_request(
        self, job: PlacementRequest, now: float, policy_class: str | None
    ) -> PlacementDecision | WaitingTicket:
        allowed = eligible_ranks(job, self.gate.tally)
        if has_affinity(job.request):
            job, allowed = follow_session(job, self.decisions, allowed, now)
        if job.request.advisory and not job.reserves:
            # Advice takes no capacity: neither limits nor earlier requests count.
            return self.decisions.decide(job, allowed, now)
        return self.gate.admit_request(job, allowed, now, policy_class)

    def _check_id_unused(self, reservation_id: str) -> None:
        """Raise Conflict when a reservation has the id, or a waiting request will take it.

        Raises BadRequest for an id that no caller may use.
        """
        check_caller_id(reservation_id)
        self.ledger.check_id_free(reservation_id)
        self.gate.waiting.check_id_not_waiting(reservation_id)

    def _make_request(
        self,
        request: SelectRequest,
        explains: bool,
        read: ReadAheadPrompt | None,
        reserves: bool = False,
        reservation_id: str | None = None,
    ) -> PlacementRequest:
        self.gate.check_shed_tier(request)
        self.decisions.sessions.check_session(request)
        # As in Dynamo, an id in use is refused before the prompt is read.
        check = None if reservation_id is None else partial(self._check_id_unused, reservation_id)
        partition, prompt, config = self.prompt_resolver.read_counted(request, read, check)
        check_hash_limit(request, prompt)
        return PlacementRequest(
            partition, prompt, request, config, reserves, reservation_id, explains
        )

    def select_pair(
        self,
        request: SelectPairRequest | SelectPairAndReserveRequest,
        now: float,
        policy_class: str | None = None,
        read_ahead: ReadAheadPrompt | None = None,
    ) -> PlacementDecision | WaitingTicket:
        """Choose a pair (POST /select_pair), and book both legs if the request reserves.

        Raises like `select_and_reserve`.
        """
        reservation_id, reserves = None, isinstance(request, SelectPairAndReserveRequest)
        if isinstance(request, SelectPairAndReserveRequest):
            reservation_id = request.booking_id
            again = self.retries.find_pair(request, read_ahead, self.pairs, now)
            if again is not None:
                return again
        job = self._make_request(request, False, read_ahead, reserves, reservation_id)
        job = job._replace(pairs=self.pairs)
        return self._admit_request(job, now, policy_class)

    def reserve(
        self, request: ReservationRequest, now: float, read_ahead: ReadAheadPrompt | None = None
    ) -> Reservation:
        """Book a rank chosen by the caller, or an earlier selection (POST /reservations).

        Raises NotFound for an unknown selection, NoWorkers, BadRequest, InvalidBody, the errors of
        `slot_of`, Conflict, CapacityExceeded.
        """
        if request.worker_id is None:  # the same as `is_replay`, as type checkers see
            return self.replay.book(request, now)
        if (again := self.retries.find_reservation(request, read_ahead, now)) is not None:
            return again
        partition, prompt, config = self.prompt_resolver.read_prompt(
            request, read_ahead, read_booked_prompt
        )
        tokens = booked_tokens(request, partition, prompt, config)
        name = request.booking_id
        # As in Dynamo an id in use is refused behind an unknown worker and before an unknown rank.
        if partition.table.slots_of(request.worker_id):
            self._check_id_unused(name)
        slot = self.fleet.slot_of(partition, Rank(request.worker_id, request.dp_rank))
        self.ledger.reservations.check_room(len(prompt.sequence_hashes))
        # Last of the reads: everything that can fail comes before the booking.
        prefill = estimate_prefill(partition, slot, prompt, config, tokens)
        tracked = self.decisions.track_prompt(prompt, config)
        self.decisions.book_prompt(partition, tracked, request, prefill, name, now)
        self.replay.discard(partition.key, name)
        answer = make_reservation_answer(request, partition, slot)
        answer.kv_hint = self.decisions.make_hint(partition, slot, prompt, name)
        return answer

    def book_placed(
        self,
        partition: Partition,
        slot: int,
        prompt: Prompt,
        request: SelectAndReserveRequest,
        now: float,
    ) -> str:
        """Book the partition's last placement, made with the default configuration; return the id.

        Completes a placement like `select_and_reserve` does.  Raises Conflict or CapacityExceeded,
        without having changed anything.
        """
        if request.reservation_id is not None:
            self.gate.waiting.check_id_not_waiting(request.reservation_id)
        return self.decisions.book_placed(partition, slot, prompt, request, now)

    def may_book(self, partition: Partition, blocks: int) -> bool:
        """Return whether booking `blocks` blocks is a bounded step now; if not, retry next turn."""
        return self.ledger.may_book(partition.account.load, blocks)

    def may_book_prompt(self, request: PromptFields, now: float) -> bool:
        """Return whether the booking of a request, if accepted, is a bounded step now."""
        partition = self.prompt_resolver.find_partition(request)
        # A request without workers is refused later, and untracked bookings have no blocks.
        if partition is None or not self.decisions.config.track_active_blocks:
            return True
        if isinstance(request, ReservationRequest) and request.is_replay:
            return self.may_book(partition, self.replay.count_blocks(request, now))
        return self.may_book(partition, estimate_blocks(request, partition.block_size))

    # Admission

    def set_thresholds(self, change: BusyThresholdChange) -> BusyThresholdView:
        """Set thresholds (POST /busy_threshold).  Raises NotFound for a model without workers."""
        if change.resolved_model not in self.fleet.catalog.models:
            raise NotFound(
                f"model `{change.resolved_model}` not found: no worker is registered for it"
            )
        changed = self.gate.busy_check.thresholds.change_thresholds(change)
        self.gate.mark_all_queues()
        return changed

    def list_thresholds(self) -> BusyThresholdList:
        """Return the thresholds (GET /busy_threshold)."""
        views = self.gate.busy_check.thresholds.list_views(self.fleet.catalog.models.keys())
        return BusyThresholdList(thresholds=views)

    def set_shed_tier(self, tier: str | None) -> AdmissionState:
        """Set the shed tier (POST /admission/shed).  Raises BadRequest for an unknown tier."""
        self.gate.set_shed_tier(tier)
        return make_admission_state(self.gate, self.list_thresholds().thresholds)

    def get_admission_state(self) -> AdmissionState:
        """Return the admission state (GET /admission)."""
        return make_admission_state(self.gate, self.list_thresholds().thresholds)

    def admission_scene(self, key: PartitionKey, now: float) -> WorkerAdmissionContext:
        """Return the data from which `worker_admission` renders workers of a partition.  O(its
        slots)
        """
        return worker_admission_context(self.gate.busy_check, self.fleet.partitions[key], now)

    # Lifecycle of reservations

    def complete_prefill(self, reservation_id: str, now: float) -> None:
        """Release the booked prefill tokens; repeating changes no load.  Raises NotFound."""
        self.ledger.complete_by_id(reservation_id, "client", now)

    def add_output_block(
        self, reservation_id: str, decay_fraction: float | None, now: float
    ) -> None:
        """Add an output block, then apply the decay.  Raises BadRequest, NotFound."""
        if decay_fraction is not None and not 0.0 <= decay_fraction <= 1.0:
            raise BadRequest(f"decay_fraction must be between 0.0 and 1.0, got {decay_fraction}")
        # Without tracking, an output block still proves that the client is alive.
        config = self.decisions.config
        if config.track_output_blocks and config.track_active_blocks:
            self.ledger.add_output_block(reservation_id, decay_fraction, now)
        else:
            self.ledger.renew_lease(reservation_id, now)

    def report_first_token(self, reservation_id: str, now: float) -> None:
        """End the transfer of a pair, and its prefill if still running.  Raises NotFound."""
        # First, as completing begins the time that a transfer has without a first token.
        self.pairs.book.report_first_token(reservation_id, now)
        self.ledger.complete_by_id(reservation_id, "client", now)

    def renew_reservation(self, reservation_id: str, now: float) -> None:
        """Restart the lease.  Raises NotFound."""
        self.ledger.renew_lease(reservation_id, now)

    def free_reservation(self, reservation_id: str, now: float) -> None:
        """Remove the whole load of a reservation.  Raises NotFound."""
        self.ledger.free_by_id(reservation_id, "client", now)

    # Time, and pending work

    def run_pending(self, now: float) -> None:
        """Run one turn of pending work, as `wake` requests; request another turn for the rest."""
        self.fleet.dirty.begin_turn()
        self.drain_removed_ranks(now)
        self.ledger.prepare_step()
        if self.health is not None:
            self.health.run_turn(now)
        self.pairs.book.run_turn(now)
        self.gate.serve_waiting(now)

    def drain_removed_ranks(self, now: float, work_max: int = TURN_WORK_MAX) -> bool:
        """Release reservations on ranks that have left.  Return whether more remains."""
        leaving = self.fleet.leaving
        while leaving and work_max > 0:
            first = leaving[0]
            work_max -= 1 + self.ledger.empty_slot(first.account, first.slot, now, work_max)
            work_max -= first.drop_assumed(now)
            # A slot may be reused only when empty; a large slot may take several turns.
            if first.is_empty:
                self.fleet.retire_first_leaving()
        self.fleet.dirty.request_turn_if(leaving)
        return bool(leaving)

    def expire_reservations(self, now: float, work_max: int = TURN_WORK_MAX) -> ExpiryResult:
        """Release reservations after the end of their lease, up to the budget of a turn."""
        return self.ledger.expire_leases(now, work_max)

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the periodic tasks, besides `expire`."""
        by_name = {
            "engines": self.engine_readings.expire_stale,
            "admission": self.gate.run_every_second,
            "endings": self.followers.replicas.tombstones.drop_expired,
            "shares": self.followers.replicas.shares.run_turn,
            "recovered": self.fleet.recovered_blocks.drop_expired,
            "selections": self.replay.pending.drop_expired,
            "observation": self.followers.traffic.close_slots,
            "transfers": self.pairs.book.expire_transfers,
            "prefill_legs": self.pairs.book.release_orphans,
            "sessions": self.followers.sessions.run_turn,
            "silence": self.followers.assumptions.silent.run_turn,
        }
        if self.health is not None:
            by_name["health"] = self.health.advance_timers
        tasks = [PeriodicTask(name, SECOND_S, step) for name, step in by_name.items()]
        tasks.append(PeriodicTask("assumed", TURN_S, self.followers.assumptions.run_turn))
        return tasks + self.followers.evaluation.periodic_tasks()

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        replicas, traffic, evaluation, *_ = self.followers
        exchange = self.followers.sessions
        parts = (self.fleet, self.ledger, replicas, self.gate, self.engine_readings, evaluation)
        self.replay.pending.check_invariants()
        own = (self.draining, self.health, exchange, self.pairs.book)
        for part in (*parts, traffic, *own):
            if part is not None:
                part.check_invariants()
        for booking in self.ledger.reservations:
            if booking.is_leaving:
                assert (booking.account, booking.slot) in (left[:2] for left in self.fleet.leaving)
            else:
                partition = self.fleet.partitions[booking.key]
                assert partition.account is booking.account
                assert partition.table.find_slot(booking.rank) == booking.slot
