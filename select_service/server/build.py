"""Composition root: builds and connects all components; only the ingest threads run afterwards."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

from indexer.index.prefix_index import PrefixIndex
from indexer.sockets.egress_guard import EgressGuard
from indexer.sockets.ingest import Ingest
from select_service.adapters.catalog_follower import CatalogFollower
from select_service.adapters.engine_metrics import EngineMetricsScraper
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.http_get import HttpClient
from select_service.adapters.logs.audit_log import AuditLogFiles
from select_service.adapters.periodic_tasks import PeriodicTasks
from select_service.adapters.persistence.index_persistence import (
    IndexPersistence,
    IndexPersistenceSettings,
)
from select_service.adapters.persistence.policies_file import PoliciesFile
from select_service.adapters.queue_waker import QueueWaker
from select_service.adapters.reload.api_keys_watch import ApiKeysWatch
from select_service.adapters.reload.file_watch import FileWatch, FollowedFiles
from select_service.adapters.reload.tls_watch import TlsFilesWatch
from select_service.adapters.replicas.event_publisher import ReplicaPublisher
from select_service.adapters.replicas.replica_sync import ReplicaSync, ReplicaSyncConfig
from select_service.adapters.service_tasks import make_service_tasks
from select_service.api.disabled_features import (
    DisabledDiscovery,
    DisabledPolicyStore,
    DisabledReplicaSync,
)
from select_service.api.live.live_history import SAMPLE_S, LiveHistory
from select_service.api.live.live_stream import FrameBroadcaster
from select_service.api.process_limits import SharedLimits
from select_service.api.service_context import (
    FigureSources,
    LiveFeed,
    PersistenceParts,
    ProcessState,
    ServiceContext,
    ServiceFeatures,
    ServiceTls,
)
from select_service.auth.quota_usage import BookingLimits
from select_service.config.assumption_settings import assumption_rules
from select_service.config.settings_loader import Config, UnusableSetting
from select_service.core.load.reservations import Reservations
from select_service.core.periodic_task import PeriodicTask
from select_service.core.placement.pending_selections import SelectionCacheLimits
from select_service.core.placement.policies.policy_registry import parse_policy_choice
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.recovered_blocks import RecoveryStatus, SnapshotStatus
from select_service.core.selection_answers import AnsweredBusyThresholds
from select_service.core.selector import SelectorCore
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.core.sessions.session_settings import SessionSettings
from select_service.core.workers.endpoint_policy import EndpointPolicy
from select_service.files.persisted_formats import SESSIONS_SUFFIX
from select_service.metrics.decision_log import DecisionLogCounts
from select_service.metrics.service_metrics import ServiceMetrics
from select_service.server.build_health import health_factory, start_health
from select_service.server.service_examiner import ServiceExaminer
from select_service.server.startup_settings import StartupSettings

if TYPE_CHECKING:
    from select_service.adapters.discovery.service_discovery import ServiceDiscovery
    from select_service.adapters.health.health_runner import HealthRunner
    from select_service.adapters.logs.decision_files import DecisionLogFiles
    from select_service.adapters.persistence.state_file import StateFile
    from select_service.adapters.shared_caches.shared_caches import SharedCaches
    from select_service.adapters.tracing.tracer import Tracer
    from select_service.core.analysis.decision_log import DecisionLogWriter


class OptionalComponents(NamedTuple):
    """Components of optional features; None, or no watches, when the feature is disabled."""

    replicas: ReplicaSync | None
    audit: AuditLogFiles | None
    decision_logging: "DecisionLogging | None"
    health_runner: "HealthRunner | None"
    discovery: "ServiceDiscovery | None"
    state_file: "StateFile | None"
    index_persistence: IndexPersistence | None
    tracing: "Tracer | None"
    file_watches: Sequence[FileWatch]
    shared_caches: "SharedCaches | None"

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the tasks of the enabled features."""
        owners = (self.health_runner, self.discovery, self.state_file, self.audit)
        return [task for owner in owners if owner is not None for task in owner.periodic_tasks()]

    def followed_files(self) -> list[FollowedFiles]:
        """Return the files that are reloaded; those of discovery once it has started."""
        owners = (self.replicas, self.discovery)
        return [watch.files for watch in self.file_watches] + [
            files for owner in owners if owner is not None for files in owner.followed_files()
        ]


class ServiceComponents(NamedTuple):
    """Components of a process: those handlers use, and those only start-up and shutdown use."""

    service: ServiceContext
    follower: CatalogFollower
    http: HttpClient
    engine_metrics: EngineMetricsScraper
    tasks: PeriodicTasks
    optional: OptionalComponents


class DecisionLogging(NamedTuple):
    """Decision log: the source of lines and the writer of files."""

    decisions: "DecisionLogWriter"
    files: "DecisionLogFiles"

    def current_counts(self) -> DecisionLogCounts:
        """Return the counters for the metrics."""
        return replace(self.files.counts, missed=self.decisions.missed)


class _Foundation(NamedTuple):
    """Components that all others are built on."""

    startup: StartupSettings
    callbacks: GuardedCallbacks
    ingest: Ingest
    selector: SelectorCore
    replicas: ReplicaSync | None
    follower: CatalogFollower
    http: HttpClient


def build_service(startup: StartupSettings) -> ServiceComponents:
    """Build all components; only the ingest threads and the tracing thread run.

    Raises ConfigError.
    """
    tracing = _build_tracer(startup)
    base, health_runner = _build_foundation(startup)
    persistence = _build_persistence(startup.config, base.selector)
    discovery = _build_discovery(base)
    optional = OptionalComponents(
        replicas=base.replicas,
        audit=_build_audit_log(startup.config),
        decision_logging=_build_decision_log(startup.config, base.selector),
        health_runner=health_runner,
        discovery=discovery,
        state_file=_build_state_file(startup.config, base.selector, discovery),
        index_persistence=_build_index_persistence(base, persistence),
        tracing=tracing,
        file_watches=_build_file_watches(startup),
        shared_caches=_build_shared_caches(base),
    )
    engine_metrics = _build_engine_metrics(base)
    live = LiveFeed(
        FrameBroadcaster(),
        LiveHistory(base.selector.fleet.partitions, base.selector.gate.waiting.backlog_of),
    )
    tasks = _build_tasks(base, optional, live)
    figures = FigureSources(
        engine_metrics.counts,
        tasks.counts,
        lambda: None if (log := optional.decision_logging) is None else log.current_counts(),
        optional.followed_files,
    )
    service = _build_context(base, optional, persistence, figures, live)
    return ServiceComponents(service, base.follower, base.http, engine_metrics, tasks, optional)


def _build_foundation(startup: StartupSettings) -> "tuple[_Foundation, HealthRunner | None]":
    """Return the foundation, and the runner of health checks, which the core must know early."""
    config = startup.config
    waker, callbacks = QueueWaker(), GuardedCallbacks()
    # Created before the selector, which publishes from the first reservation on.
    publisher = None if config["replica_sync_port"] is None else ReplicaPublisher(callbacks)
    ingest = Ingest(
        config["threads"],
        held=_recovers_index(config),
        egress_guard=EgressGuard(startup.destinations.address_refusal),
        own_pair=startup.engine_pair,
    )
    selector = _build_selector(startup, ingest.ranks_max, publisher, waker)
    # Set before any worker is registered, so that no endpoint escapes the egress policy.
    selector.fleet.endpoint_policy = EndpointPolicy(
        startup.destinations, probes_engines=startup.health is not None
    )
    health_runner = None
    if startup.health is not None:
        health_runner = start_health(startup, selector, ingest.resolver, callbacks)
    waker.bind_queue(callbacks.guard_callback("waker", selector.run_pending))
    replicas = None
    if publisher is not None:
        replicas = _build_replicas(startup, selector, publisher, callbacks, ingest)
    follower = CatalogFollower(selector.fleet, ingest, callbacks)
    http = _build_http_client(startup, ingest)
    base = _Foundation(startup, callbacks, ingest, selector, replicas, follower, http)
    return base, health_runner


def _build_context(
    base: _Foundation,
    optional: OptionalComponents,
    persistence: PersistenceParts,
    figures: FigureSources,
    live: LiveFeed,
) -> ServiceContext:
    startup, selector, health = base.startup, base.selector, base.startup.health
    limits = SharedLimits(selector.gate.waiting.bounds, base.ingest.ranks_max)
    if startup.guard.is_on:
        startup.guard.set_booking_limits(_make_booking_limits(limits, selector.ledger.reservations))
    return ServiceContext(
        config=startup.config,
        version=startup.version,
        selector=selector,
        fleet=selector.fleet,
        ledger=selector.ledger,
        gate=selector.gate,
        prompt_resolver=selector.prompt_resolver,
        draining=selector.draining,
        health=selector.health,
        mover=None if selector.health is None else selector.health.mover,
        followers=selector.followers,
        ingest=base.ingest,
        catalog_follower=base.follower,
        metrics=ServiceMetrics(startup.version),
        limits=limits,
        guard=startup.guard,
        reporter_networks=() if health is None else health.reporters,
        callbacks=base.callbacks,
        examiner=ServiceExaminer(base.http, optional.state_file),
        features=ServiceFeatures(
            optional.replicas or DisabledReplicaSync(selector.followers.replicas.router_id),
            optional.discovery or DisabledDiscovery(selector),
            optional.audit,
            optional.tracing,
            optional.shared_caches,
        ),
        tls=ServiceTls(startup.server_tls, startup.client_tls),
        persistence=persistence,
        figures=figures,
        live=live,
        process=ProcessState(),
    )


def _recovers_index(config: Config) -> bool:
    """Return whether the index is recovered from peers or a snapshot before events apply."""
    return bool(config["indexer_peers"] or config["snapshot_path"])


def _make_booking_limits(limits: SharedLimits, reservations: Reservations) -> BookingLimits:
    return BookingLimits(
        limits.reservations, limits.reserved_blocks, reservations.memory, reservations.sums
    )


def _session_settings(config: Config) -> SessionSettings:
    ttl_s, mode = config["session_affinity_ttl_s"], config["session_affinity_mode"]
    # A command line of Dynamo, with Dynamo's rule and flag, means Dynamo's sessions.
    is_dynamo = ttl_s is not None and config["policy"] == "reference"
    is_hard = mode == "hard" or (mode is None and is_dynamo)
    return SessionSettings(ttl_s, is_hard, epoch_s=time() - monotonic())


def _build_selector(
    startup: StartupSettings, ranks_max: int, publisher: ReplicaPublisher | None, waker: QueueWaker
) -> SelectorCore:
    config = startup.config
    return build_selector(
        SelectorConfig(
            router=RouterConfig(**{name: config[name] for name in RouterConfig._fields}),
            admission=startup.rules,
            use_kv_events=config["use_kv_events"],
            ranks_max=ranks_max,
            assumptions=assumption_rules(config),
            reservation_ttl_s=config["reservation_ttl_s"],
            decisions_kept=config["decisions"],
            selection_cache=SelectionCacheLimits(
                config["selection_cache_ttl_s"],
                config["selection_cache_max_entries"],
                config["selection_cache_max_bytes"],
            ),
            shadow=parse_policy_choice(config["shadow_policy"])
            if config["shadow_policy"]
            else None,
            router_mark=None if startup.plane_keys is None else startup.plane_keys.router_mark,
            sessions=_session_settings(config),
            busy_thresholds=AnsweredBusyThresholds(
                config["conditional_disagg_decode_busy_threshold"],
                config["conditional_disagg_prefill_busy_threshold"],
            ),
            names_kv_sources=config["kv_sources"],
            shared_models=frozenset(startup.shared_caches),
        ),
        lambda: PrefixIndex(
            config["index_blocks_max"],
            bytes_max=config["index_bytes_max"],
            copy_lock=threading.Lock(),
        ),
        # Seeded differently in each replica: equal choices would send all traffic to the same
        # ranks.
        rng=Random(SystemRandom().getrandbits(128)),
        emit=None if publisher is None else publisher.offer_event,
        wake=waker,
        make_health=None if startup.health is None else health_factory(startup.health),
    )


def _build_tracer(startup: StartupSettings) -> "Tracer | None":
    """Return the tracer, if enabled.  Raises ConfigError for invalid OTEL_* variables."""
    if not startup.config["otel"]:
        return None
    try:
        from select_service.adapters.tracing.tracer import Tracer
    except ImportError as error:  # usually an API package of another version
        raise UnusableSetting(
            f"--otel: the installed OpenTelemetry packages are incompatible ({error}): "
            "pip install --upgrade 'select-service[otel]'"
        ) from None

    return Tracer(startup.version)


def _build_policies_file(config: Config, selector: SelectorCore) -> PoliciesFile:
    policies = selector.fleet.policies
    kept = PoliciesFile(Path(config["snapshot_path"]), policies, config.created_file_mode)
    kept.restore_policies()
    return kept


def _build_replicas(
    startup: StartupSettings,
    selector: SelectorCore,
    publisher: ReplicaPublisher,
    callbacks: GuardedCallbacks,
    ingest: Ingest,
) -> ReplicaSync:
    config = startup.config
    return ReplicaSync(
        selector.followers.replicas,
        publisher,
        callbacks,
        ingest.resolver,
        ReplicaSyncConfig(
            repair=config["replica_sync_repair"],
            url=config["advertise_url"],
            destinations=startup.destinations,
            keys=startup.plane_keys,
            trusts_urls=config["replica_sync_insecure"],
        ),
        selector.followers.sessions,
    )


def _build_http_client(startup: StartupSettings, ingest: Ingest) -> HttpClient:
    """Return the client for outgoing GET requests."""
    path = startup.config["peer_api_key_file"]
    key_file = Path(path) if path else None
    return HttpClient(ingest.resolver, ingest.outgoing_http_max, key_file, startup.client_tls)


def _build_engine_metrics(base: _Foundation) -> EngineMetricsScraper:
    config = base.startup.config
    return EngineMetricsScraper(
        base.selector.engine_readings,
        base.http,
        interval_s=config["engine_metrics_interval_s"],
        timeout_s=config["engine_metrics_timeout_s"],
    )


def _build_file_watches(startup: StartupSettings) -> list[FileWatch]:
    """Return the watchers of files that may change while the process runs."""
    path, tls = startup.config["api_keys_file"], ServiceTls(startup.server_tls, startup.client_tls)
    keys: list[FileWatch] = [] if path is None else [ApiKeysWatch(Path(path), startup.guard)]
    return [*keys, *(TlsFilesWatch(kept, side) for side, kept in tls.files_by_side())]


def _build_tasks(base: _Foundation, optional: OptionalComponents, live: LiveFeed) -> PeriodicTasks:
    logged = optional.decision_logging
    history = PeriodicTask("history", SAMPLE_S, live.history.step)
    return make_service_tasks(
        base.selector,
        base.ingest,
        base.follower,
        optional.replicas,
        None if logged is None else logged.decisions,
        [*optional.periodic_tasks(), history],
    )


def _build_persistence(config: Config, selector: SelectorCore) -> PersistenceParts:
    """Return the persistence parts, with restored policies.  Raises ConfigError."""
    recovery = RecoveryStatus()
    if _recovers_index(config):
        recovery = RecoveryStatus("running", begun_at=monotonic())
    store = _build_policies_file(config, selector) if config["snapshot_path"] else None
    return PersistenceParts(recovery, SnapshotStatus(), store or DisabledPolicyStore())


def _build_index_persistence(
    base: _Foundation, persistence: PersistenceParts
) -> IndexPersistence | None:
    config, selector = base.startup.config, base.selector
    recovery, snapshot, _ = persistence
    if not recovery.is_running:
        return None
    settings = IndexPersistenceSettings(
        config["indexer_peers"] or (),
        config["snapshot_path"],
        config["snapshot_interval_s"],
        config["index_blocks_max"],
        config.created_file_mode,
    )
    return IndexPersistence(settings, selector, recovery, snapshot, base.http)


def _build_audit_log(config: Config) -> AuditLogFiles | None:
    path, mode = config["audit_log"], config.created_file_mode
    if path is None:
        return None
    return AuditLogFiles(Path(path), is_required=config["audit_required"], mode=mode)


def _build_decision_log(config: Config, selector: SelectorCore) -> DecisionLogging | None:
    path = config["decision_log"]
    if path is None:
        return None
    from select_service.adapters.logs.decision_files import DecisionLogFiles
    from select_service.core.analysis.decision_log import DecisionLogWriter

    ring = selector.decisions.ring
    assert ring is not None, "see settings.config"
    files = DecisionLogFiles(Path(path), mode=config.created_file_mode)
    lines = DecisionLogWriter(
        ring,
        selector.ledger.reservations,
        selector.fleet.partitions,
        files.offer_line,
        time() - monotonic(),
    )
    return DecisionLogging(lines, files)


def _build_shared_caches(base: _Foundation) -> "SharedCaches | None":
    if not base.startup.shared_caches:
        return None
    from select_service.server.build_shared_caches import build_shared_caches

    return build_shared_caches(base.startup, base.ingest.resolver)


def _build_discovery(base: _Foundation) -> "ServiceDiscovery | None":
    sources = base.startup.sources
    if not sources:
        return None
    from select_service.adapters.discovery.service_discovery import ServiceDiscovery

    drain_s = base.startup.config["drain_timeout_s"]
    return ServiceDiscovery(sources, base.selector, base.follower.wake_if_changed, drain_s)


def _build_state_file(
    config: Config, selector: SelectorCore, discovery: "ServiceDiscovery | None"
) -> "StateFile | None":
    path = config["state_path"]
    if path is None:
        return None
    from select_service.adapters.persistence.session_file import SessionFile
    from select_service.adapters.persistence.state_file import StateFile
    from select_service.core.state_persistence import change_count, persisted_state, restore_state

    of = selector, None if discovery is None else discovery.reconciler
    return StateFile(
        Path(path),
        lambda: persisted_state(*of),
        lambda: change_count(*of),
        lambda state: restore_state(state, *of),
        config.created_file_mode,
        SessionFile(
            Path(path + SESSIONS_SUFFIX),
            selector.followers.sessions.directory,
            config.created_file_mode,
        ),
    )
