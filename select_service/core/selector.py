"""The root of the core: one short method per verb of the API.

Every refusal is raised before the first write.  Nothing here waits, reads a clock or does I/O:
`now` is given, in seconds of a monotonic clock, and randomness comes from the generator given at
the start.  Verbs note in `Touched` what they left to do, and the one outlet, `wake`, asks for a
call of `settle` soon; it must not block, raise or call back.
"""

from collections.abc import Callable, Container, Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from indexer.index.prefix_index import PrefixIndex
from select_service.bodies.admission import (
    AdmissionState,
    BusyThresholdChange,
    BusyThresholdList,
    BusyThresholdView,
)
from select_service.bodies.decisions import DecisionView
from select_service.bodies.inspection import (
    OverlapRow,
    OverlapScores,
    PartitionLoads,
    RankLoad,
)
from select_service.bodies.prompts import PromptFields, PromptQuery
from select_service.bodies.reservations import (
    Reservation,
    ReservationPage,
    ReservationRequest,
    ReservationRow,
)
from select_service.bodies.selection import SelectAndReserveRequest, SelectRequest
from select_service.bodies.workers import Deletion, WorkerPatch, WorkerRecord, WorkerRegistration
from select_service.core.admission.admission_state import admission_state
from select_service.core.admission.asking import allowed_by
from select_service.core.admission.busy import BusyJudge
from select_service.core.admission.engine_readings import EngineReadings
from select_service.core.admission.gate import Gate
from select_service.core.admission.priority_tiers import PriorityTiers
from select_service.core.admission.rules import AdmissionRules
from select_service.core.admission.thresholds import ThresholdTable
from select_service.core.admission.waiting import Ticket
from select_service.core.admission.worker_view import AdmissionScene, admission_scene
from select_service.core.decide.decision_ring import DecisionRing
from select_service.core.decide.policies import PolicyChoice
from select_service.core.decide.prompt import Prompt, PromptRead, booked_prompt_of, n_blocks_of
from select_service.core.decide.router_config import RouterConfig, overridden
from select_service.core.decisions import (
    Decision,
    Decisions,
    Job,
    Wanted,
    booked_answer,
    booked_tokens,
    refuse_unless_told,
    work_on,
)
from select_service.core.draining import Draining
from select_service.core.due_task import SECOND_S, DueTask
from select_service.core.engines.engine_load import EngineLoads
from select_service.core.explanations import Explanations
from select_service.core.fleet.fleet import Fleet
from select_service.core.fleet.partition import Partition
from select_service.core.hindsight import Hindsight, HindsightConfig
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.ledger import TURN_WORK_MAX, Expired, Ledger
from select_service.core.load.reservations import ReservationFilter, Reservations
from select_service.core.observing.observing import Observing, Sources
from select_service.core.prompts import Prompts
from select_service.core.repeats import Repeats
from select_service.core.replicas.events import LoadEvent
from select_service.core.replicas.router_ids import new_router_id
from select_service.core.replicas.state import ReplicaState
from select_service.core.touched import Touched
from select_service.core.views.dump_parts import DumpPart, dump_parts
from select_service.core.views.hints import worker_hints
from select_service.core.views.ranks import loads_within, overlap_of, potential_loads_of
from select_service.core.workers.catalog import Tombstone, Worker
from select_service.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from select_service.core.fitness.fitness import Fitness
    from select_service.core.moving.mover import Mover


class SelectorConfig(NamedTuple):
    """What two selectors would be given differently.

    ranks_max:         how many ranks can be listened to
    reservation_ttl_s: seconds without renewal after which a reservation expires; 0: never
    decisions_kept: newest decisions that can be looked up; 0: none
    shadow: a policy that looks at them, too
    router_mark: of our key among replicas; None: there is none
    """

    router: RouterConfig = RouterConfig()
    admission: AdmissionRules = AdmissionRules()
    use_kv_events: bool = True
    ranks_max: int = 1 << 32
    reservation_ttl_s: float = 3600.0
    decisions_kept: int = 0
    shadow: PolicyChoice | None = None
    router_mark: int | None = None


class Selector:
    """Workers, partitions and reservations of one process."""

    def __init__(
        self,
        config: SelectorConfig,
        new_index: Callable[[], PrefixIndex],
        *,
        rng: Random,
        emit: Callable[[LoadEvent], None] | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """emit: is told of what clients book, complete and free (see ReplicaState.tell)"""
        rules = config.admission
        self._config = config.router
        self.router_id = new_router_id(rng, config.router_mark)
        self.touched = Touched(wake)
        ring = None
        if config.decisions_kept:
            fades = config.router.overlap_score_credit_decay != 0.0
            ring = DecisionRing(config.decisions_kept, credit_fades=fades)
        self.fleet = Fleet(
            new_index,
            config.use_kv_events,
            router=config.router,
            ranks_max=config.ranks_max,
            queueing=rules.queue is not None,
            touched=self.touched,
            decisions=ring,
        )
        self.held = Reservations(config.reservation_ttl_s, self.router_id)
        self.ledger = Ledger(self.held, self.touched)
        self.replicas = ReplicaState(self.fleet, self.ledger, self.router_id)
        if emit is not None:
            self.replicas.tell(emit)
        self.decisions, self.ring, self.random = Decisions(self.ledger, rng, ring), ring, rng.random
        self.fitness: Fitness | None = None
        self.mover: Mover | None = None
        """Of both None: health is off."""
        self.draining = Draining(self.fleet, self.touched, lambda: self.fitness)
        self.gate = Gate(
            self.fleet.partitions,
            BusyJudge(
                ThresholdTable(rules.thresholds), EngineLoads(rules.engine_stale_s), self.touched
            ),
            PriorityTiers(rules.tiers, rules.default_tier),
            rules.queue,
            self.decisions,
            self.touched,
        )
        self.engines = EngineReadings(self.fleet, self.gate.judge)
        self.explanations = Explanations(ring, self.gate, self.random)
        self.prompts = Prompts(self.fleet, self.gate.tally)
        self.repeats = Repeats(self.prompts, self.ledger, self._config)
        counted = self.fleet.partitions, self.held.sums.observed, self.gate.waiting.of
        self.observing = Observing(Sources(*counted, self.gate.tally.take_refused))
        self.gate.tally.keeps = self.observing.counts
        self.hindsight = Hindsight(
            HindsightConfig(config.use_kv_events, config.shadow, config.router),
            ring,
            self.fleet,
            self.ledger,
            self.random,
        )

    # --- workers

    def register(self, given: WorkerRegistration) -> WorkerRecord:
        """POST /workers.  Raises BadRequest, CapacityExceeded."""
        return self._put(self.fleet.registered(given), is_registration=True)

    def patch(self, worker_id: int, patch: WorkerPatch) -> WorkerRecord:
        """PATCH /workers/{worker_id}.  Raises BadRequest, CapacityExceeded, NotFound.

        It brings a deleted worker back, as the reference does; the answer says so.
        """
        tombstone = self.fleet.catalog.deleted().get(worker_id)
        record = self._put(self.fleet.patched(worker_id, patch))
        if tombstone is not None:
            record.revived = f"worker {worker_id} had been deleted ({tombstone.reason}); it is back"
        return record

    def delete(self, worker_id: int, now: float, reason: str | None = None) -> WorkerRecord:
        """DELETE /workers/{worker_id}: its record stays readable for a while.  Raises NotFound.

        reason: what removed the worker; None: that request
        """
        worker = self.fleet.catalog.get(worker_id)
        self.fleet.delete(worker, Tombstone(now, reason or f"DELETE /workers/{worker_id}"))
        self.engines.forget(worker_id)
        self._changed(worker_id)
        return worker.record()

    def deletion(self, worker_id: int, now: float) -> Deletion | None:
        """When and why a deleted worker left whose record is kept."""
        if (tombstone := self.fleet.catalog.deleted().get(worker_id)) is None:
            return None
        return Deletion(seconds_ago=round(now - tombstone.at, 3), reason=tombstone.reason)

    def workers(self, model_name: str | None = None, tenant_id: str | None = None) -> list[Worker]:
        """By model, tenant and worker id."""
        return [w for w in self.fleet.catalog if w.key.within(model_name, tenant_id)]

    def worker(self, worker_id: int) -> Worker:
        """GET /workers/{worker_id}.  Raises NotFound."""
        return self.fleet.catalog.get(worker_id)

    def _put(self, worker: Worker, is_registration: bool = False) -> WorkerRecord:
        old = self.fleet.catalog.find(worker.worker_id)
        self.fleet.put(worker)
        self.engines.changed(old, worker)
        self._changed(worker.worker_id, is_registration)
        return self.record(worker)

    def _changed(self, worker_id: int, is_registration: bool = False) -> None:
        self.touched.wake_if(self.fleet.leaving)
        if self.fitness is not None:
            self.fitness.changed(worker_id, is_registration)
        self.draining.changed(worker_id, is_registration)

    def record(self, worker: Worker) -> WorkerRecord:
        """What the worker said, and what of it is probably not meant."""
        record = worker.record()
        same_engine = self.fleet.catalog.same_engine(worker)
        record.hints = worker_hints(worker, self.fleet.event_users, same_engine) or UNSET
        return record

    # --- selection

    def select(
        self,
        request: SelectRequest,
        now: float,
        policy_class: str | None = None,
        explain: bool = False,
        read: PromptRead | None = None,
    ) -> Decision | Ticket:
        """POST /select: a decision, or a ticket that becomes one (see Gate).

        policy_class: what the client asked for in its header
        explain:      the decision says what every candidate would have cost
        read:         the prompt, if it was read ahead
        Raises BadRequest, CapacityShed, NoWorkers, InvalidBody, NoEligibleRank, Overloaded,
        QueueFull, QueueTimeout.
        """
        job = self._job(request, explain, read)
        return self.gate.admit(job, allowed_by(job, self.gate.tally), now, policy_class)

    def select_and_reserve(
        self,
        request: SelectAndReserveRequest,
        now: float,
        policy_class: str | None = None,
        explain: bool = False,
        read: PromptRead | None = None,
    ) -> Decision | Ticket:
        """POST /select_and_reserve: choosing and booking are one step.

        Raises like `select`, and Conflict, CapacityExceeded.
        """
        if (again := self.repeats.selection(request, read, now)) is not None:
            return Decision(again)
        job = self._job(request, explain, read, True, request.reservation_id)
        if request.reservation_id is not None:
            self.ledger.refuse_unless_free(request.reservation_id)
            self.gate.waiting.refuse_if_waiting(request.reservation_id)
        return self.gate.admit(job, allowed_by(job, self.gate.tally), now, policy_class)

    def explain(
        self, request: SelectRequest, policy_class: str | None, read: PromptRead | None
    ) -> DecisionView:
        """POST /explain: what `select` would decide now; changes nothing.  Raises like it."""
        partition, prompt = self.prompts.read(request, read)
        config = overridden(self._config, request.router_config_override)
        return self.explanations.asked(Job(partition, prompt, request, config), policy_class)

    def _job(
        self,
        request: SelectRequest,
        explains: bool,
        read: PromptRead | None,
        reserves: bool = False,
        reservation_id: str | None = None,
    ) -> Job:
        self.gate.refuse_shed(request)
        partition, prompt = self.prompts.asked(request, read)
        refuse_unless_told(request, prompt)
        config = overridden(self._config, request.router_config_override)
        return Job(partition, prompt, request, config, reserves, reservation_id, explains)

    def reserve(
        self, request: ReservationRequest, now: float, read: PromptRead | None = None
    ) -> Reservation:
        """POST /reservations: the caller chose the rank.

        Raises NoWorkers, BadRequest, InvalidBody, what `slot_of` does, Conflict, CapacityExceeded.
        """
        if (again := self.repeats.reservation(request, read, now)) is not None:
            return again
        partition, prompt = self.prompts.read(request, read, booked_prompt_of)
        config = overridden(self._config, request.router_config_override)
        tokens = booked_tokens(request, prompt, config)
        slot = self.fleet.slot_of(partition, Rank(request.worker_id, request.dp_rank))
        self.ledger.refuse_unless_free(request.reservation_id)
        self.gate.waiting.refuse_if_waiting(request.reservation_id)
        self.held.refuse_unless_room(len(prompt.sequence_hashes))
        output, lora = request.expected_output_tokens, request.lora_name
        work = work_on(partition, slot, prompt, config, tokens)
        booked = Wanted(request.reservation_id, tokens, output, lora, *work, request)
        self.decisions.book(partition, slot, prompt, config, booked, now)
        return booked_answer(request.reservation_id, partition, slot)

    @property
    def router(self) -> RouterConfig:
        """By which prompts are placed and booked unless a request says otherwise."""
        return self._config

    def new_reservation_id(self) -> str:
        """For a client that gives none."""
        return self.decisions.new_id()

    def book_placed(
        self,
        partition: Partition,
        slot: int,
        prompt: Prompt,
        reservation_id: str | None,
        expected_output_tokens: int | None,
        now: float,
    ) -> str:
        """Book the last placement of the partition, which was made by the configuration; its id.

        As `select_and_reserve` does what it has placed.  Raises Conflict, CapacityExceeded, and
        then has changed nothing.
        """
        if reservation_id is not None:
            self.gate.waiting.refuse_if_waiting(reservation_id)
        return self.decisions.book_placed(
            partition, slot, prompt, self._config, reservation_id, expected_output_tokens, now
        )

    def may_book(self, partition: Partition, blocks: int) -> bool:
        """Is a booking of so many blocks a bounded step now?  If not, ask in the next turn."""
        return self.ledger.may_book(partition.account.load, blocks)

    def may_book_prompt(self, request: PromptFields) -> bool:
        """As `may_book`, of what a request would book if nothing refuses it."""
        partition = self.prompts.partition(request)
        if partition is None or not self._config.track_active_blocks:
            return True
        return self.may_book(partition, n_blocks_of(request, partition.block_size))

    # --- admission

    def set_thresholds(self, change: BusyThresholdChange) -> BusyThresholdView:
        """POST /busy_threshold.  Raises NotFound for a model that no worker serves."""
        if change.of_model not in self.fleet.catalog.models:
            raise NotFound(f"model `{change.of_model}` not found: no worker is registered for it")
        changed = self.gate.judge.thresholds.change(change)
        self.gate.look_everywhere()
        return changed

    def thresholds(self) -> BusyThresholdList:
        """GET /busy_threshold."""
        views = self.gate.judge.thresholds.views(self.fleet.catalog.models.keys())
        return BusyThresholdList(thresholds=views)

    def shed(self, tier: str | None) -> AdmissionState:
        """POST /admission/shed.  Raises BadRequest for an unknown tier."""
        self.gate.shed(tier)
        return admission_state(self.gate, self.thresholds().thresholds)

    def admission(self) -> AdmissionState:
        """GET /admission."""
        return admission_state(self.gate, self.thresholds().thresholds)

    def admission_scene(self, key: PartitionKey, now: float) -> AdmissionScene:
        """What `worker_admission` shows the workers of a partition by.  O(its slots)"""
        return admission_scene(self.gate.judge, self.fleet.partitions[key], now)

    # --- lifecycle of reservations

    def prefill_complete(self, reservation_id: str, now: float) -> None:
        """Give back the booked prefill tokens; repeating it changes nothing.  Raises NotFound."""
        self.ledger.complete(reservation_id, "client", now)

    def output_block(self, reservation_id: str, decay_fraction: float | None, now: float) -> None:
        """One more output block, then the decay.  Raises BadRequest, NotFound."""
        if decay_fraction is not None and not 0.0 <= decay_fraction <= 1.0:
            raise BadRequest(f"decay_fraction must be between 0.0 and 1.0, got {decay_fraction}")
        if self._config.track_output_blocks and self._config.track_active_blocks:
            self.ledger.add_output_block(reservation_id, decay_fraction, now)
        else:
            self.ledger.renew(reservation_id, now)

    def renew(self, reservation_id: str, now: float) -> None:
        """Start the lease anew.  Raises NotFound."""
        self.ledger.renew(reservation_id, now)

    def free(self, reservation_id: str, now: float) -> None:
        """Take the whole load of a reservation back.  Raises NotFound."""
        self.ledger.free(reservation_id, "client", now)

    # --- time, and what verbs left to do

    def settle(self, now: float) -> None:
        """One turn of what verbs left to do, as `wake` asked for; it asks again for the rest."""
        self.touched.turn_begins()
        self.empty_leaving(now)
        self.ledger.prepare()
        if self.fitness is not None:
            self.fitness.settle(now)
        self.gate.serve(now)

    def empty_leaving(self, now: float, work_max: int = TURN_WORK_MAX) -> bool:
        """Release what is booked on ranks that have left.  Returns whether more is to be done."""
        leaving = self.fleet.leaving
        while leaving and work_max > 0:
            first = leaving[0]
            work_max -= 1 + self.ledger.empty_slot(first.account, first.slot, now, work_max)
            if first.is_empty:
                self.fleet.retire()
        self.touched.wake_if(leaving)
        return bool(leaving)

    def expire(self, now: float, work_max: int = TURN_WORK_MAX) -> Expired:
        """Free what nobody renewed in time, as much as one turn may."""
        return self.ledger.expire(now, work_max)

    def upkeep(self) -> list[DueTask]:
        """What is due besides `expire`."""
        by_name = {
            "engines": self.engines.tick,
            "admission": self.gate.tick,
            "endings": self.replicas.endings.tick,
            "shares": self.replicas.shares.tick,
            "recovered": self.fleet.recovered.tick,
            "observation": self.observing.step,
        }
        if self.fitness is not None:
            by_name["health"] = self.fitness.tick
        tasks = [DueTask(name, SECOND_S, step) for name, step in by_name.items()]
        return tasks + self.hindsight.upkeep()

    # --- inspection

    def reservation(self, reservation_id: str, now: float) -> ReservationRow:
        """GET /reservations/{reservation_id}.  Raises NotFound."""
        return self.held.row(reservation_id, now)

    def reservations(self, wanted: ReservationFilter, now: float) -> ReservationPage:
        return self.held.page(wanted, now)

    def loads(
        self,
        model_name: str | None = None,
        tenant_id: str | None = None,
        among: Container[int] | None = None,
    ) -> Iterator[PartitionLoads | None]:
        """See `loads_within`."""
        scope = model_name, tenant_id
        return loads_within(self.fleet.partitions, self.gate.waiting.of, *scope, among)

    def potential_loads(
        self, query: PromptQuery, read: PromptRead | None = None
    ) -> Iterator[RankLoad]:
        """By worker and rank.  Raises like `select`."""
        partition, prompt = self.prompts.read(query, read)
        config = overridden(self._config, query.router_config_override)
        return potential_loads_of(partition, prompt, config)

    def overlap_scores(
        self, query: PromptQuery, read: PromptRead | None = None
    ) -> tuple[OverlapScores, Iterator[OverlapRow]]:
        """The scores without their rows, and the rows.  Raises like `select`."""
        partition, prompt = self.prompts.read(query, read)
        config = overridden(self._config, query.router_config_override)
        return overlap_of(partition, prompt, config)

    def dumps(self) -> list[DumpPart]:
        """All that is known of the index."""
        return dump_parts(self.fleet.partitions, self.fleet.recovered)

    def check_invariants(self) -> None:
        """For tests."""
        parts = (self.fleet, self.ledger, self.replicas, self.gate, self.engines, self.hindsight)
        for part in (*parts, self.observing, self.draining, self.fitness):
            if part is not None:
                part.check_invariants()
        for booking in self.held:
            if booking.is_leaving:
                assert (booking.account, booking.slot) in (left[:2] for left in self.fleet.leaving)
            else:
                partition = self.fleet.partitions[booking.key]
                assert partition.account is booking.account
                assert partition.table.find(booking.rank) == booking.slot
