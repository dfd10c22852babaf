"""Builds the core and the edges, joins them, and lives from start to signal."""

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

import uvloop
import zmq

from indexer.index.prefix_index import PrefixIndex
from indexer.sockets.ingest import Ingest
from select_service.access.guard import Guard
from select_service.api.application import Application
from select_service.api.service import Service
from select_service.core.admission.rules import AdmissionRules
from select_service.core.decide.policies import choice_named
from select_service.core.decide.router_config import RouterConfig
from select_service.core.fleet.recovered import RecoveryStatus
from select_service.core.selector import Selector, SelectorConfig
from select_service.edge.audit_log import AuditFiles
from select_service.edge.catalog_follower import CatalogFollower
from select_service.edge.due_tasks import due_tasks
from select_service.edge.engine_metrics import EngineMetrics
from select_service.edge.http_client import HttpClient
from select_service.edge.keeping.index_keeping import IndexKeeping, Keeping
from select_service.edge.keeping.kept_policies import KeptPoliciesFile
from select_service.edge.keys_watch import KeysWatch
from select_service.edge.replicas.publisher import ReplicaPublisher
from select_service.edge.replicas.sync import ReplicaSync
from select_service.edge.supervised import Callbacks
from select_service.edge.waker import Waker
from select_service.errors import SelectError
from select_service.http.server import Drain, Server, duplicates, server_of
from select_service.metrics.decision_log import LogCounts
from select_service.metrics.service_metrics import Metrics
from select_service.settings.config import Config, Unusable
from select_service.settings.health_settings import HealthSettings
from select_service.settings.reach import allowed_hosts, usual_hosts
from select_service.starting.announcing import announce
from select_service.starting.collector import Freezing
from select_service.starting.listening import leave_to_others, listen, siblings

if TYPE_CHECKING:
    from select_service.core.decision_log import DecisionLog
    from select_service.core.degrading.capacity_watch import CapacityWatch
    from select_service.edge.decision_log import DecisionFiles
    from select_service.edge.discovery.discovery import Discovery
    from select_service.edge.health_watch import HealthWatch
    from select_service.edge.keeping.state_file import StateFile
    from select_service.fast.protocol import Lean
    from select_service.loops.loops import Loops
    from select_service.settings.discovery import SourceSettings

log = logging.getLogger("select_service")

THREAD_SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while another wants it.  With the default of 5 ms a
busy ingest thread holds up every answer; measured with scripts/bench/ingest.py."""


class Parts(NamedTuple):
    """One process: what handlers use, and of that what only its start, its life and its end use."""

    service: Service
    follower: CatalogFollower
    replicas: ReplicaSync | None
    logged: "Logged | None"
    watch: "HealthWatch | None"
    discovery: "Discovery | None" = None
    state: "StateFile | None" = None


class Logged(NamedTuple):
    """Makes lines of decisions, and writes them."""

    decisions: "DecisionLog"
    files: "DecisionFiles"

    def counts(self) -> LogCounts:
        return replace(self.files.counts, missed=self.decisions.missed)


def build(
    config: Config,
    rules: AdmissionRules,
    version: str,
    health: HealthSettings | None = None,
    guard: Guard | None = None,
) -> Parts:
    """All parts of a process, none of them running but the ingest threads.

    guard: None: everybody may call everything
    """
    waker, callbacks = Waker(), Callbacks()
    router = RouterConfig(**{name: config[name] for name in RouterConfig._fields})
    publisher = None if config["replica_sync_port"] is None else ReplicaPublisher(callbacks)
    recovers = bool(config["indexer_peers"] or config["snapshot_path"])
    ingest = Ingest(config["threads"], held=recovers)
    selector = Selector(
        SelectorConfig(
            router=router,
            admission=rules,
            use_kv_events=config["use_kv_events"],
            ranks_max=ingest.ranks_max,
            reservation_ttl_s=config["reservation_ttl_s"],
            decisions_kept=config["decisions"],
            shadow=choice_named(config["shadow_policy"]) if config["shadow_policy"] else None,
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
    watch = None
    if health is not None:
        watch = _keep_fit(selector, health, ingest, callbacks)
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
        )
    follower = CatalogFollower(selector.fleet, ingest, callbacks)
    service = Service(config, version, selector, ingest, follower, Metrics(version), replicas)
    if guard is not None:
        service.guard = guard
    if health is not None:
        service.reporters = health.reporters
        service.capacity = _watch_capacity(selector, health)
    service.audit = _audited(config["audit_log"], ingest)
    service.callback_failures, service.callback_failed = callbacks.failures, callbacks.failed
    if config["snapshot_path"]:
        kept = KeptPoliciesFile(Path(config["snapshot_path"]), selector.fleet.policies)
        kept.read()
        service.kept_policies = kept
    if recovers:
        service.recovery = RecoveryStatus("running", begun_at=monotonic())
    return Parts(service, follower, replicas, _logged(service), watch)


def _audited(path: str | None, ingest: Ingest) -> AuditFiles | None:
    """Raises Unusable."""
    try:
        return None if path is None else AuditFiles(Path(path))
    except OSError as error:
        ingest.close()
        raise Unusable(f"--audit-log: cannot write `{path}`: {error.strerror}") from None


def _keep_fit(
    selector: Selector, health: HealthSettings, ingest: Ingest, callbacks: Callbacks
) -> "HealthWatch":
    """Ranks are checked, and those that are sick get no requests."""
    from select_service.core.fitness.fitness import Fitness
    from select_service.edge.health_watch import HealthWatch

    canaries, fleet = health.canaries, selector.fleet
    selector.fitness = Fitness(
        health.rules,
        lambda key: canaries.of(key.model_name).prompts,
        fleet,
        selector.ledger,
        selector.touched,
    )
    return HealthWatch(health, selector.fitness, fleet, ingest.names, callbacks)


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
    """Raises Unusable."""
    path = service.config["decision_log"]
    if path is None:
        return None
    from select_service.core.decision_log import DecisionLog
    from select_service.edge.decision_log import DecisionFiles

    selector = service.selector
    assert selector.ring is not None, "see settings.config"
    try:
        files = DecisionFiles(Path(path))
    except OSError as error:
        service.ingest.close()
        raise Unusable(f"--decision-log: cannot write `{path}`: {error.strerror}") from None
    lines = DecisionLog(
        selector.ring, selector.held, selector.fleet.partitions, files.offer, time() - monotonic()
    )
    logged = Logged(lines, files)
    service.decision_log = logged.counts
    return logged


def opened(
    config: Config,
    rules: AdmissionRules,
    listener: socket.socket,
    version: str,
    health: HealthSettings | None = None,
    guard: Guard | None = None,
) -> Parts:
    """A service whose sockets are open, for `run`.  Raises Unusable."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    parts = build(config, rules, version, health, guard)
    try:
        if parts.replicas is not None:
            _open_replicas(parts.replicas, config)
        listen(listener)
    except Unusable:
        parts.service.ingest.close()
        raise
    announce(config, version, *listener.getsockname()[:2])
    return parts


def discovering(parts: Parts, sources: "Sequence[SourceSettings]") -> Parts:
    """With sources of workers, if there are any, and with the file that keeps workers."""
    service, discovery = parts.service, None
    if sources:
        from select_service.edge.discovery.discovery import Discovery

        discovery = service.discovery = Discovery(
            sources, service.selector, parts.follower.look, service.config["drain_timeout_s"]
        )
    return parts._replace(discovery=discovery, state=_state_file(service, discovery))


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
    )


def run(parts: Parts, listener: socket.socket, threads: ThreadPoolExecutor) -> int:
    """Serve until a signal.  Returns the exit status.

    threads: for what would block the event loop
    """
    try:
        return uvloop.run(_run(parts, listener, threads))
    finally:
        parts.service.ingest.close()
        log.info("stopped")


def _open_replicas(replicas: ReplicaSync, config: Config) -> None:
    """Take the port of the replica plane and connect to its first peers.  Raises Unusable."""
    port = config["replica_sync_port"]
    try:
        replicas.bind(port)
        for endpoint in config["replica_sync_peers"] or ():
            replicas.register(endpoint)
    except zmq.ZMQError as error:
        replicas.close()
        reason = f"cannot bind tcp://*:{port}: {zmq.strerror(error.errno or 0)}"
        raise Unusable(f"--replica-sync-port: {reason}") from None
    except SelectError as error:
        replicas.close()
        raise Unusable(f"--replica-sync-peers: {error}") from None


async def _run(parts: Parts, listener: socket.socket, threads: ThreadPoolExecutor) -> int:
    """Serve until a signal, or until a background task fails; the supervisor of both."""
    asyncio.get_running_loop().set_default_executor(threads)
    service, follower, replicas, logged, watch, discovery, state = parts
    front = _front(service, listener.getsockname()[1])
    loops = _loops(service, listener, front) if service.config["input_loops"] else None
    drain = Drain(service.config["drain_s"], lambda: _leave_address(service.config, listener))
    server = server_of(Application(service), front if loops is None else loops, drain)
    key_file = service.config["peer_api_key_file"]
    http = HttpClient(
        service.ingest.names, service.ingest.asking_max, Path(key_file) if key_file else None
    )
    if replicas is not None:
        replicas.start(listener.getsockname()[1], http)
    following = follower.start()
    if state is not None:
        await state.restored(service.config["indexer_peers"] or (), http)
    keeping = _keeping(service, http)
    if keeping is not None:
        keeping.start(service.ingest, follower)
    engines = _engines(service, http)
    keys = (
        KeysWatch(Path(path), service.guard) if (path := service.config["api_keys_file"]) else None
    )
    if logged is not None:
        logged.files.start()
    Freezing()
    try:
        background = [following, engines.start()]
        if keys is not None:
            background.append(keys.start())
        if loops is not None:
            background.append(loops.watched())
        if discovery is not None:
            background += discovery.start(http)
        listeners = duplicates(listener) if loops is None else []
        return await _supervised(parts, server, listeners, background)
    finally:
        await engines.stop()
        if discovery is not None:
            await discovery.stop()
        if state is not None:
            await state.stop()
        if keys is not None:
            await keys.stop()
        if watch is not None:
            await watch.stop()
        if keeping is not None:
            await keeping.stop()
        await follower.stop()
        if replicas is not None:
            replicas.close()
        await http.close()
        if isinstance(service.audit, AuditFiles):
            service.audit.close()
        if logged is not None:
            logged.files.close(logged.decisions.rest(monotonic()))


def _leave_address(config: Config, listener: socket.socket) -> None:
    """To the process that takes over, where one may."""
    if config["reuse_port"]:
        leave_to_others(listener, max(1, config["input_loops"]))


def _front(service: Service, port: int) -> "Lean | None":
    """Who answers usual requests before the application sees them.  port: that clients name"""
    if service.config["no_fast_path"]:
        return None
    from select_service.fast.protocol import Lean
    from select_service.fast.service_answerer import ServiceAnswerer

    if service.guard.is_on:
        from select_service.fast.keyed import KeyedLean, Passes

        passes = Passes(service.guard, service.selector, service.metrics)
        passes.ask_hosts(_usual_hosts(service, port))
        return KeyedLean(passes)
    answerer = ServiceAnswerer(service.selector, service.metrics)
    if (hosts := _usual_hosts(service, port)) is not None:
        answerer.ask_hosts(hosts)
    return Lean(answerer)


def _usual_hosts(service: Service, port: int) -> list[bytes] | None:
    """What compiled code compares; None: all hosts are served."""
    names = allowed_hosts(service.config)
    return None if names is None else usual_hosts(names, port)


def _loops(service: Service, listener: socket.socket, lean: "Lean | None") -> "Loops":
    """Who accepts connections instead of the server.  Raises Unusable."""
    from select_service.loops.loops import Loops

    assert lean is not None, "see settings.config"
    listeners = siblings(listener, service.config["input_loops"])
    for each in listeners:
        listen(each)
    loops = Loops(listeners, lean, service.selector, service.metrics)
    if (hosts := _usual_hosts(service, listener.getsockname()[1])) is not None:
        loops.ask_hosts(hosts)
    service.input_loops = loops.counts
    return loops


def _engines(service: Service, http: HttpClient) -> EngineMetrics:
    config = service.config
    engines = EngineMetrics(
        service.selector.engines,
        http,
        interval_s=config["engine_metrics_interval_s"],
        timeout_s=config["engine_metrics_timeout_s"],
    )
    service.engine_scrapes = engines.counts
    return engines


def _keeping(service: Service, http: HttpClient) -> IndexKeeping | None:
    config = service.config
    if not service.recovery.running:
        return None
    wanted = Keeping(
        config["indexer_peers"] or (),
        config["snapshot_path"],
        config["snapshot_interval_s"],
        config["index_blocks_max"],
    )
    return IndexKeeping(wanted, service.selector, service.recovery, service.snapshot, http)


async def _supervised(
    parts: Parts,
    server: Server,
    listeners: list[socket.socket],
    background: Sequence[asyncio.Task[None]],
) -> int:
    """background: tasks that were started elsewhere and shall not end by themselves"""
    service = parts.service
    due = due_tasks(
        service.selector,
        service.ingest,
        parts.follower,
        parts.replicas,
        None if parts.logged is None else parts.logged.decisions,
        [
            task
            for each in (parts.watch, parts.discovery, parts.state)
            if each is not None
            for task in each.tasks()
        ],
    )
    service.tasks = due.counts
    ticker = asyncio.create_task(due.run())
    serving = asyncio.create_task(server.serve(listeners))
    await asyncio.wait((ticker, *background, serving), return_when=asyncio.FIRST_COMPLETED)
    for task in (ticker, *background):
        if task.done():
            log.error("a background task failed; stopping", exc_info=task.exception())
            server.should_exit = True
            await serving
            return 1
    ticker.cancel()
    await serving
    return 0
