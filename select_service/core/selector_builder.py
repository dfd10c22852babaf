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
from select_service.core.decision_maker import DecisionMaker
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.draining import DrainRegistry
from select_service.core.idempotency import IdempotentRetries
from select_service.core.load.ledger import Ledger
from select_service.core.load.reservations import Reservations
from select_service.core.placement.decision_ring import DecisionRing
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.placement.router_config import RouterConfig
from select_service.core.prompt_resolver import PromptResolver
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.registration_rules import RegistrationRules
from select_service.core.replication.load_events import LoadEvent
from select_service.core.replication.replica_state import ReplicaState
from select_service.core.replication.router_ids import new_router_id
from select_service.core.selector import CoreFollowers, SelectorCore
from select_service.core.traffic.traffic_observer import CounterSources, TrafficObserver
from select_service.core.workers.engine_load import EngineLoads

if TYPE_CHECKING:
    from select_service.core.health.fleet_health.health_service import HealthService


class SelectorConfig(NamedTuple):
    """Settings of a core.

    ranks_max: maximum number of ranks with listeners
    reservation_ttl_s: seconds without renewal after which a reservation expires; 0 means never
    decisions_kept: number of recorded decisions; 0 means no recording
    shadow: policy compared with the real decisions, or None
    router_mark: mark of our key among replicas; None means no key
    """

    router: RouterConfig = RouterConfig()
    admission: AdmissionSettings = AdmissionSettings()
    use_kv_events: bool = True
    ranks_max: int = 1 << 32
    reservation_ttl_s: float = 3600.0
    decisions_kept: int = 0
    shadow: PolicyChoice | None = None
    router_mark: int | None = None


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
    rules, dirty = config.admission, DirtyPartitions(wake)
    router_id = new_router_id(rng, config.router_mark)
    ring = _build_ring(config)
    fleet = WorkerFleet(
        new_index,
        RegistrationRules(config.use_kv_events, rules.queue is not None, config.ranks_max),
        router=config.router,
        dirty=dirty,
        decisions=ring,
    )
    ledger = Ledger(Reservations(config.reservation_ttl_s, router_id), dirty)
    replicas = ReplicaState(fleet, ledger, router_id)
    if emit is not None:
        replicas.start_sending(emit)
    health = None if make_health is None else make_health(fleet, ledger)
    decisions = DecisionMaker(ledger, rng, config.router, ring)
    gate = AdmissionGate(
        fleet.partitions,
        BusyCheck(ThresholdTable(rules.thresholds), EngineLoads(rules.engine_stale_s), dirty),
        PriorityTiers(rules.tiers, rules.default_tier),
        rules.queue,
        decisions,
        dirty,
    )
    prompts = PromptResolver(fleet, gate.tally, config.router)
    return SelectorCore(
        fleet,
        ledger,
        decisions,
        gate,
        prompts,
        IdempotentRetries(prompts, ledger),
        EngineReadings(fleet, gate.busy_check),
        DrainRegistry(fleet, health),
        health,
        CoreFollowers(
            replicas,
            _build_traffic(fleet, ledger, gate),
            PolicyEvaluation(
                EvaluationConfig(config.use_kv_events, config.shadow, config.router),
                ring,
                fleet,
                ledger,
                rng.random,
            ),
            Explanations(ring, gate, prompts, rng.random),
        ),
    )


def _build_ring(config: SelectorConfig) -> DecisionRing | None:
    if not config.decisions_kept:
        return None
    # Only a fading credit depends on the least prefill tokens, which are costly to record.
    fades = config.router.overlap_score_credit_decay != 0.0
    return DecisionRing(config.decisions_kept, credit_fades=fades)


def _build_traffic(fleet: WorkerFleet, ledger: Ledger, gate: AdmissionGate) -> TrafficObserver:
    traffic = TrafficObserver(
        CounterSources(
            fleet.partitions,
            ledger.reservations.sums.find_observed,
            gate.waiting.backlog_of,
            gate.tally.take_refused,
        )
    )
    # Refusals are counted only for partitions that traffic observation follows.
    gate.tally.should_count = traffic.counts_refusals
    return traffic
