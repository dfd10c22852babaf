"""Builds the core and the edges, and joins them; nothing runs yet but the ingest threads."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

from indexer.index.prefix_index import PrefixIndex
from indexer.sockets.boundary import Boundary
from indexer.sockets.ingest import Ingest
from select_service.access.quotas import BookingLimits
from select_service.api.limits import Limits
from select_service.api.service import Examine, Service
from select_service.bodies.doctor import DoctorReport
from select_service.core.decide.policies import choice_named
from select_service.core.decide.router_config import RouterConfig
from select_service.core.fleet.recovered import RecoveryStatus
from select_service.core.selector import Selector, SelectorConfig
from select_service.core.workers.catalog import Worker
from select_service.core.workers.places import Places
from select_service.edge.audit_log import AuditFiles
from select_service.edge.catalog_follower import CatalogFollower
from select_service.edge.http_client import HttpClient
from select_service.edge.keeping.kept_policies import KeptPoliciesFile
from select_service.edge.replicas.publisher import ReplicaPublisher
from select_service.edge.replicas.sync import ReplicaSync
from select_service.edge.supervised import Callbacks
from select_service.edge.waker import Waker
from select_service.metrics.decision_log import LogCounts
from select_service.metrics.service_metrics import Metrics
from select_service.settings.config import Config, Unusable
from select_service.settings.discovery import SourceSettings
from select_service.settings.health_settings import HealthSettings
from select_service.starting.wanted import Wanted

if TYPE_CHECKING:
    from select_service.core.decision_log import DecisionLog
    from select_service.core.degrading.capacity_watch import CapacityWatch
    from select_service.edge.decision_log import DecisionFiles
    from select_service.edge.discovery.discovery import Discovery
    from select_service.edge.health_watch import HealthWatch
    from select_service.edge.keeping.state_file import StateFile
    from select_service.edge.tracing.tracing import Tracing


_EXAMINING = "select_service.examining"
"""Imported for the first examination."""


class Parts(NamedTuple):
    """One process: what handlers use, and of that what only its start, its life and its end use."""

    service: Service
    follower: CatalogFollower
    replicas: ReplicaSync | None
    logged: "Logged | None"
    watch: "HealthWatch | None"
    discovery: "Discovery | None"
    state: "StateFile | None"
    tracing: "Tracing | None"


class Logged(NamedTuple):
    """Makes lines of decisions, and writes them."""

    decisions: "DecisionLog"
    files: "DecisionFiles"

    def counts(self) -> LogCounts:
        return replace(self.files.counts, missed=self.decisions.missed)


def build(wanted: Wanted) -> Parts:
    """All parts of a process, none of them running but the ingest threads, and the one of spans.

    Raises ConfigError.
    """
    config, health = wanted.config, wanted.health
    tracing = _tracing(wanted)
    waker, callbacks = Waker(), Callbacks()
    publisher = None if config["replica_sync_port"] is None else ReplicaPublisher(callbacks)
    recovers = bool(config["indexer_peers"] or config["snapshot_path"])
    boundary = Boundary(wanted.destinations.refusal)
    ingest = Ingest(config["threads"], held=recovers, boundary=boundary, own=wanted.engine_pair)
    selector = _selector(wanted, ingest.ranks_max, publisher, waker)
    selector.fleet.places = Places(wanted.destinations, asks_engines=health is not None)
    watch = None
    if health is not None:
        watch = _keep_fit(wanted, selector, ingest, callbacks)
        _let_move(selector, health)
    waker.bind(callbacks.supervised("waker", selector.settle))
    replicas = None
    if publisher is not None:
        replicas = ReplicaSync(
            selector.replicas,
            publisher,
            callbacks,
            ingest.names,
            repair=config["replica_sync_repair"],
            url=config["advertise_url"],
            destinations=wanted.destinations,
            keys=wanted.plane_keys,
            believes_urls=config["replica_sync_insecure"],
        )
    follower = CatalogFollower(selector.fleet, ingest, callbacks)
    limits = Limits(selector, ingest.ranks_max)
    service = Service(
        config, wanted.version, selector, ingest, follower, Metrics(wanted.version), limits
    )
    service.replicas = replicas
    service.guard, service.tracing = wanted.guard, tracing
    if service.guard.is_on:
        service.guard.bound_by(_booking_limits(limits, selector))
    service.server_tls, service.client_tls = wanted.server_tls, wanted.client_tls
    if health is not None:
        service.reporters = health.reporters
        service.capacity = _watch_capacity(selector, health)
    if config["audit_log"] is not None:
        is_required, mode = config["audit_required"], _mode(config)
        service.audit = AuditFiles(Path(config["audit_log"]), is_required=is_required, mode=mode)
    service.callback_failures, service.callback_failed = callbacks.failures, callbacks.failed
    if config["snapshot_path"]:
        service.kept_policies = _kept_policies(config, selector)
    if recovers:
        service.recovery = RecoveryStatus("running", begun_at=monotonic())
    discovery = _discovery(wanted.sources, service, follower)
    state = _state_file(service, discovery)
    logged = _logged(service)
    return Parts(service, follower, replicas, logged, watch, discovery, state, tracing)


def _booking_limits(limits: Limits, selector: Selector) -> BookingLimits:
    held = selector.held
    return BookingLimits(limits.reservations, limits.reserved_blocks, held.memory, held.sums)


def _selector(
    wanted: Wanted, ranks_max: int, publisher: ReplicaPublisher | None, waker: Waker
) -> Selector:
    config = wanted.config
    return Selector(
        SelectorConfig(
            router=RouterConfig(**{name: config[name] for name in RouterConfig._fields}),
            admission=wanted.rules,
            use_kv_events=config["use_kv_events"],
            ranks_max=ranks_max,
            reservation_ttl_s=config["reservation_ttl_s"],
            decisions_kept=config["decisions"],
            shadow=choice_named(config["shadow_policy"]) if config["shadow_policy"] else None,
            router_mark=None if wanted.plane_keys is None else wanted.plane_keys.router_mark,
        ),
        lambda: PrefixIndex(
            config["index_blocks_max"],
            bytes_max=config["index_bytes_max"],
            copy_lock=threading.Lock(),
        ),
        rng=Random(SystemRandom().getrandbits(128)),
        emit=None if publisher is None else publisher.offer,
        wake=waker,
    )


def _tracing(wanted: Wanted) -> "Tracing | None":
    """Raises ConfigError, for variables of OpenTelemetry that make no sense."""
    if not wanted.config["otel"]:
        return None
    try:
        from select_service.edge.tracing.tracing import Tracing
    except ImportError as error:  # an api of another package beside it, mostly
        raise Unusable(
            f"--otel: the installed packages of OpenTelemetry do not fit each other ({error}): "
            "pip install --upgrade 'select-service[otel]'"
        ) from None

    return Tracing(wanted.version)


def _mode(config: Config) -> int:
    """Of the files that the service creates."""
    return int(config["file_mode"], 8)


def _kept_policies(config: Config, selector: Selector) -> KeptPoliciesFile:
    policies = selector.fleet.policies
    kept = KeptPoliciesFile(Path(config["snapshot_path"]), policies, _mode(config))
    kept.read()
    return kept


def _keep_fit(
    wanted: Wanted, selector: Selector, ingest: Ingest, callbacks: Callbacks
) -> "HealthWatch":
    """Ranks are checked, and those that are sick get no requests."""
    from select_service.core.fitness.fitness import Fitness
    from select_service.edge.health_watch import HealthWatch

    health = wanted.health
    assert health is not None
    canaries, fleet = health.canaries, selector.fleet
    selector.fitness = Fitness(
        health.rules,
        lambda key: canaries.of(key.model_name).prompts,
        fleet,
        selector.ledger,
        selector.touched,
    )
    tls, mode = wanted.client_tls, _mode(wanted.config)
    return HealthWatch(health, selector.fitness, fleet, ingest.names, callbacks, tls, mode)


def _let_move(selector: Selector, health: HealthSettings) -> None:
    """Reservations leave ranks that are not fit."""
    from select_service.core.load.move_wishes import KeptWishes
    from select_service.core.moving.learnt import Learnt
    from select_service.core.moving.mover import Mover
    from select_service.core.moving.targets import Layouts

    fitness, learnt = selector.fitness, Learnt(KeptWishes())
    assert fitness is not None
    selector.decisions.keeps_wishes = True
    selector.ledger.follow(learnt, tells_moves=False)
    selector.mover = Mover(
        fitness.monitor,
        selector.fleet.partitions,
        selector.ledger,
        learnt,
        Layouts(selector.fleet.catalog, lambda name: health.canaries.of(name).kv_layout).of,
        selector.touched,
        tracks_prefill=selector.router.track_prefill_tokens,
        begin=int(time() * 1000.0),
    )
    fitness.followers.append(selector.mover)


def _watch_capacity(selector: Selector, health: HealthSettings) -> "CapacityWatch | None":
    """What ranks that are left can carry, and the brakes that follow if they are to."""
    if health.degradation == "off":
        return None
    from select_service.core.degrading.capacity_watch import CapacityWatch

    fitness, mover = selector.fitness, selector.mover
    assert fitness is not None
    assert mover is not None
    gate = selector.gate if health.degradation == "auto" else None
    watch = CapacityWatch(
        fitness.monitor, selector.fleet.partitions, mover.learnt.pace, health.promises, gate
    )
    fitness.followers.append(watch)
    fitness.capacity_of = watch.of
    return watch


def _logged(service: Service) -> Logged | None:
    path = service.config["decision_log"]
    if path is None:
        return None
    from select_service.core.decision_log import DecisionLog
    from select_service.edge.decision_log import DecisionFiles

    selector = service.selector
    assert selector.ring is not None, "see settings.config"
    files = DecisionFiles(Path(path), mode=_mode(service.config))
    lines = DecisionLog(
        selector.ring, selector.held, selector.fleet.partitions, files.offer, time() - monotonic()
    )
    logged = Logged(lines, files)
    service.decision_log = logged.counts
    return logged


def _discovery(
    sources: Sequence[SourceSettings], service: Service, follower: CatalogFollower
) -> "Discovery | None":
    if not sources:
        return None
    from select_service.edge.discovery.discovery import Discovery

    service.discovery = Discovery(
        sources, service.selector, follower.look, service.config["drain_timeout_s"]
    )
    return service.discovery


def _state_file(service: Service, discovery: "Discovery | None") -> "StateFile | None":
    path = service.config["state_path"]
    if path is None:
        return None
    from select_service.core.kept_state import changes_of, kept_state, restoring
    from select_service.edge.keeping.state_file import StateFile

    of = service.selector, None if discovery is None else discovery.following
    return StateFile(
        Path(path),
        lambda: kept_state(*of),
        lambda: changes_of(*of),
        lambda state: restoring(state, *of),
        _mode(service.config),
    )


def doctor_of(service: Service, http: HttpClient, state: "StateFile | None") -> Examine:
    """Looks at the service and its workers when somebody asks for it; imports nothing before."""

    async def examined(workers: Sequence[Worker], with_service: bool, probes: bool) -> DoctorReport:
        module = await asyncio.to_thread(import_module, _EXAMINING)
        report: DoctorReport = await module.examination_of(service, http, state).of(
            workers, with_service, probes
        )
        return report

    return examined
