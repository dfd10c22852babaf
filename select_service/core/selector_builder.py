"""Builder of the core: makes the parts of a `SelectorCore` and connects them."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from indexer.index.prefix_index import PrefixIndex
from select_service.core.admission.admission_gate import AdmissionGate
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.busy_check import BusyCheck
from select_service.core.admission.busy_thresholds import ThresholdTable
from select_service.core.admission.engine_readings import EngineReadings
from select_service.core.admission.priority_tiers import PriorityTiers
from select_service.core.analysis.explanations import Explanations
from select_service.core.analysis.policy_evaluation import EvaluationConfig, PolicyEvaluation
from select_service.core.assumed.assumption_follower import AssumptionFollower
from select_service.core.assumed.rank_modes import AssumptionRules
from select_service.core.assumption_service import AssumptionService
from select_service.core.decision_maker import DecisionMaker
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.draining import DrainRegistry
from select_service.core.idempotency import IdempotentRetries
from select_service.core.kv_hints import KvHints
from select_service.core.kv_sources import FetchSources
from select_service.core.load.ledger import Ledger
from select_service.core.load.reservations import Reservations
from select_service.core.pairs.pair_book import PairBook
from select_service.core.pairs.pair_decisions import PairDecisions
from select_service.core.pairs.pair_replication import PairReplication
from select_service.core.placement.decision_ring import DecisionRing
from select_service.core.placement.pending_selections import (
    PendingSelections,
    SelectionCacheLimits,
)
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.placement.router_config import RouterConfig
from select_service.core.prompt_resolver import PromptResolver
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.registration_rules import RegistrationRules
from select_service.core.replication.load_events import LoadEvent
from select_service.core.replication.replica_state import ReplicaState
from select_service.core.replication.router_ids import new_router_id
from select_service.core.replication.session_exchange import SessionExchange
from select_service.core.selection_answers import AnsweredBusyThresholds
from select_service.core.selection_replay import SelectionReplay
from select_service.core.selector import CoreFollowers, SelectorCore
from select_service.core.sessions.session_directory import SessionDirectory
from select_service.core.sessions.session_pages import SessionViews
from select_service.core.sessions.session_router import SessionRouter
from select_service.core.sessions.session_settings import SessionSettings
from select_service.core.state_inspection import StateInspection
from select_service.core.traffic.traffic_observer import CounterSources, TrafficObserver
from select_service.core.workers.engine_load import EngineLoads

if TYPE_CHECKING:
    from select_service.core.health.fleet_health.health_service import HealthService


class SelectorConfig(NamedTuple):
    """Settings of a core.

    ranks_max: maximum number of ranks with listeners
    assumptions: which ranks assume their bookings, apart from `use_kv_events`
    reservation_ttl_s: seconds without renewal after which a reservation expires; 0 means never
    decisions_kept: number of recorded decisions; 0 means no recording
    selection_cache: limits of the selections that a later booking may take over
    shadow: policy compared with the real decisions, or None
    router_mark: mark of our key among replicas; None means no key
    busy_thresholds: thresholds by which answers call the chosen rank busy
    names_kv_sources: whether answers name a rank to fetch from
    shared_models: models with prompts that are looked up in a shared cache
    """

    router: RouterConfig = RouterConfig()
    admission: AdmissionSettings = AdmissionSettings()
    use_kv_events: bool = True
    ranks_max: int = 1 << 32
    reservation_ttl_s: float = 3600.0
    assumptions: AssumptionRules = AssumptionRules()
    decisions_kept: int = 0
    selection_cache: SelectionCacheLimits = SelectionCacheLimits()
    shadow: PolicyChoice | None = None
    router_mark: int | None = None
    sessions: SessionSettings = SessionSettings()
    busy_thresholds: AnsweredBusyThresholds = AnsweredBusyThresholds()
    names_kv_sources: bool = False
    shared_models: frozenset[str] = frozenset()


def build_selector(
    config: SelectorConfig,
    new_index: Callable[[], PrefixIndex],
    *,
    rng: Random,
    emit: Callable[[LoadEvent], None] | None = None,
    wake: Callable[[], None] = lambda: None,
    make_health: "Callable[[WorkerFleet, Ledger], HealthService] | None" = None,
) -> SelectorCore:
    """Return a core with connected parts, without workers.

    emit: receives bookings, completions and releases of clients, see `ReplicaState.start_sending`
    wake: requests a call of `run_pending` soon; must not block, raise or call back
    make_health: returns the health service of the fleet; None means that health checks are off
    """
    dirty, ring = DirtyPartitions(wake), _build_ring(config)
    router_id = new_router_id(rng, config.router_mark)
    fleet = _build_fleet(config, new_index, dirty, ring)
    ledger = Ledger(Reservations(config.reservation_ttl_s, router_id), dirty)
    directory = _build_directory(config, fleet, ledger, router_id)
    replicas = ReplicaState(fleet, ledger, router_id)
    replicas.sessions = directory
    if emit is not None:
        replicas.start_sending(emit)
    health = None if make_health is None else make_health(fleet, ledger)
    pending = PendingSelections(config.selection_cache)
    decisions = DecisionMaker(ledger, rng, config.router, ring, config.busy_thresholds, pending)
    decisions.kv_sources = FetchSources() if config.names_kv_sources else None
    decisions.sessions = SessionRouter(directory, config.use_kv_events)
    assumptions = _build_assumptions(config, fleet, ledger, replicas, directory)
    decisions.sessions.silent_ranks = assumptions.silent.silent
    gate = _build_gate(config.admission, fleet, decisions, dirty)
    pairs = _build_pairs(decisions, dirty, replicas, config.decisions_kept)
    prompts = PromptResolver(fleet, gate.tally, config.router)
    evaluated = EvaluationConfig(config.use_kv_events, config.shadow, config.router)
    followers = CoreFollowers(
        replicas,
        _build_traffic(fleet, ledger, gate, pairs),
        PolicyEvaluation(evaluated, ring, fleet, ledger, rng.random),
        Explanations(ring, gate, prompts, rng.random, pairs),
        SessionExchange(directory, fleet.partitions, router_id),
        assumptions,
    )
    return SelectorCore(
        fleet,
        ledger,
        decisions,
        gate,
        prompts,
        IdempotentRetries(prompts, ledger, config.busy_thresholds),
        SelectionReplay(pending, fleet, ledger, decisions, gate.waiting),
        EngineReadings(fleet, gate.busy_check),
        DrainRegistry(fleet, health),
        health,
        pairs,
        followers,
        SessionViews(directory, fleet.has_rank, router_id),
        StateInspection(fleet, ledger.reservations, gate, prompts),
    )


def _assumption_rules(config: SelectorConfig) -> AssumptionRules:
    return config.assumptions._replace(use_kv_events=config.use_kv_events)


def _build_fleet(
    config: SelectorConfig,
    new_index: Callable[[], PrefixIndex],
    dirty: DirtyPartitions,
    ring: DecisionRing | None,
) -> WorkerFleet:
    queues = config.admission.queue is not None
    rules = RegistrationRules(
        config.use_kv_events, queues, config.ranks_max, _assumption_rules(config)
    )
    fleet = WorkerFleet(new_index, rules, router=config.router, dirty=dirty, decisions=ring)
    if config.names_kv_sources or config.shared_models:
        names_all, models = config.names_kv_sources, config.shared_models
        fleet.needs_full_path = lambda name: names_all or name in models
    return fleet


def _build_directory(
    config: SelectorConfig, fleet: WorkerFleet, ledger: Ledger, router_id: int
) -> SessionDirectory:
    directory = SessionDirectory(config.sessions, ledger.reservations.memory, router_id)
    directory.scopes = fleet.partitions
    ledger.on_session_moved = directory.on_moved
    ledger.reservations.find_session_id = directory.session_id_of
    return directory


def _build_assumptions(
    config: SelectorConfig,
    fleet: WorkerFleet,
    ledger: Ledger,
    replicas: ReplicaState,
    directory: SessionDirectory,
) -> AssumptionService:
    assumptions = AssumptionService(
        fleet,
        ledger.reservations,
        AssumptionFollower(fleet.partitions, ledger),
        _assumption_rules(config),
        directory.forget_contexts,
    )
    assumptions.on_cache_cleared = replicas.cleared_caches.record_clear
    replicas.cleared_caches.forget = assumptions.forget_cache
    return assumptions


def _build_gate(
    rules: AdmissionSettings, fleet: WorkerFleet, decisions: DecisionMaker, dirty: DirtyPartitions
) -> AdmissionGate:
    busy_check = BusyCheck(
        ThresholdTable(rules.thresholds), EngineLoads(rules.engine_stale_s), dirty
    )
    decisions.hints = KvHints(busy_check.all_free_ranks)
    tiers = PriorityTiers(rules.tiers, rules.default_tier)
    return AdmissionGate(fleet.partitions, busy_check, tiers, rules.queue, decisions, dirty)


def _build_ring(config: SelectorConfig) -> DecisionRing | None:
    if not config.decisions_kept:
        return None
    # Only a fading credit depends on the least prefill tokens, which are costly to record.
    fades = config.router.overlap_score_credit_decay != 0.0
    return DecisionRing(config.decisions_kept, credit_fades=fades)


def _build_pairs(
    decisions: DecisionMaker, dirty: DirtyPartitions, replicas: ReplicaState, decisions_kept: int
) -> PairDecisions:
    ledger = decisions.ledger
    book = PairBook(ledger, dirty)
    book.is_replica_gone = replicas.liveness.is_orphan
    book.is_successor_of = replicas.is_successor_of
    pairs = PairDecisions(decisions, book, decisions_kept)
    exchange = PairReplication(ledger, book, pairs.links, decisions.config)
    replicas.on_leg_booked, replicas.on_pair_booked = exchange.receive_leg, exchange.receive_pair
    ledger.reservations.find_pair_record = exchange.find_record
    return pairs


def _build_traffic(
    fleet: WorkerFleet, ledger: Ledger, gate: AdmissionGate, pairs: PairDecisions
) -> TrafficObserver:
    traffic = TrafficObserver(
        CounterSources(
            fleet.partitions,
            ledger.reservations.sums.find_observed,
            gate.waiting.backlog_of,
            gate.tally.take_refused,
            pairs.links.find_traffic,
            pairs.links.find_current_traffic,
        )
    )
    # Refusals are counted only for partitions that traffic observation follows.
    gate.tally.should_count = traffic.counts_refusals
    return traffic
