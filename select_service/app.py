"""Opens the sockets of a process that was built, and lives from start to signal."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import uvloop
import zmq

from select_service.api.application import Application
from select_service.api.live_history import SAMPLE_S
from select_service.api.service import Service
from select_service.building import Parts, build, doctor_of
from select_service.core.due_task import DueTask
from select_service.edge.due_tasks import due_tasks
from select_service.edge.engine_metrics import EngineMetrics
from select_service.edge.file_changes import FileWatch, FollowedFiles
from select_service.edge.hangup import Hangup
from select_service.edge.http_client import HttpClient
from select_service.edge.keeping.index_keeping import IndexKeeping, Keeping
from select_service.edge.keys_watch import KeysWatch
from select_service.edge.replicas.sync import ReplicaSync
from select_service.edge.tls_watch import TlsWatch
from select_service.errors import SelectError
from select_service.http.server import Drain, Front, Server, duplicates, server_of
from select_service.settings.config import Config, Unusable
from select_service.settings.reach import allowed_hosts, replica_host, usual_hosts
from select_service.starting.announcing import announce
from select_service.starting.collector import Freezing
from select_service.starting.listening import address_of, leave_to_others, listen, siblings
from select_service.starting.tls_files import warn_of_tls
from select_service.starting.wanted import Wanted

if TYPE_CHECKING:
    from select_service.edge.tracing.tracing import Tracing
    from select_service.fast.answerer import Answerer
    from select_service.fast.protocol import Lean
    from select_service.loops.loops import Loops

log = logging.getLogger("select_service")

THREAD_SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while another wants it.  With the default of 5 ms a
busy ingest thread holds up every answer; measured with scripts/bench/ingest.py."""


class _Loop(uvloop.Loop):
    """The event loop, which ends its threads itself.

    Otherwise it begins one more thread for that, and waits for ever for one that found no memory
    when it began.
    """

    threads: ThreadPoolExecutor | None = None

    def set_default_executor(self, executor: ThreadPoolExecutor) -> None:  # type: ignore[override]
        super().set_default_executor(executor)
        self.threads = executor

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait as long as the threads of the service say, whatever `timeout` is."""
        if self.threads is not None:
            self.threads.shutdown()


def opened(wanted: Wanted, listener: socket.socket) -> Parts:
    """A service whose sockets are open, for `run`.  Raises Unusable."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    parts = build(wanted)
    try:
        if parts.replicas is not None:
            _open_replicas(parts.replicas, wanted.config)
        listen(listener)
    except Unusable:
        parts.service.ingest.close()
        raise
    announce(wanted.config, wanted.version, *listener.getsockname()[:2])
    warn_of_tls(wanted.server_tls, wanted.client_tls)
    return parts


def run(parts: Parts, listener: socket.socket, threads: ThreadPoolExecutor) -> int:
    """Serve until a signal.  Returns the exit status.

    threads: for what would block the event loop
    """
    try:
        return uvloop.run(_run(parts, listener, threads), loop_factory=_Loop)
    finally:
        parts.service.ingest.close()
        log.info("stopped")


def _open_replicas(replicas: ReplicaSync, config: Config) -> None:
    """Take the port of the replica plane and connect to its first peers.  Raises Unusable."""
    host, port = replica_host(config), config["replica_sync_port"]
    try:
        replicas.bind(port, address_of(host, port))
        for endpoint in config["replica_sync_peers"] or ():
            replicas.expect(endpoint)
    except zmq.ZMQError as error:
        replicas.close()
        reason = f"cannot bind {host}:{port}: {zmq.strerror(error.errno or 0)}"
        raise Unusable(f"--replica-sync-port: {reason}") from None
    except SelectError as error:
        replicas.close()
        raise Unusable(f"--replica-sync-peers: {error}") from None


async def _run(parts: Parts, listener: socket.socket, threads: ThreadPoolExecutor) -> int:
    """Serve until a signal, or until a background task fails; the supervisor of both."""
    asyncio.get_running_loop().set_default_executor(threads)
    service, follower, replicas, logged, watch, discovery, state, tracing = parts
    front = _front(service, listener.getsockname()[1], _traced(tracing))
    loops = _loops(service, listener, front) if service.config["input_loops"] else None
    server = _server(service, listener, front if loops is None else loops)
    service.open_connections = lambda: _open_connections(service, server)
    http = _http_client(service)
    service.doctor = doctor_of(service, http, state)
    if replicas is not None:
        replicas.start(
            listener.getsockname()[1], http, is_tls=service.config["tls_cert"] is not None
        )
    following = follower.start()
    if state is not None:
        await state.restored(service.config["indexer_peers"] or (), http)
    keeping = _keeping(service, http)
    if keeping is not None:
        keeping.start(service.ingest, follower)
    engines = _engines(service, http)
    watches = _watches(service)
    followed: list[FollowedFiles] = []
    hangup = Hangup(lambda: followed)
    if logged is not None:
        logged.files.start()
    Freezing()
    try:
        background = [following, engines.start()]
        background += [each.start() for each in watches]
        hangup.start()
        if replicas is not None:
            background += replicas.background()
        if loops is not None:
            background.append(loops.watched())
        if discovery is not None:
            background += discovery.start(http)
        followed += [each.files for each in watches]
        followed += [each for plane in (replicas, discovery) if plane for each in plane.followed()]
        service.followed = followed
        listeners = duplicates(listener) if loops is None else []
        return await _supervised(parts, server, listeners, background)
    finally:
        await engines.stop()
        if discovery is not None:
            await discovery.stop()
        if state is not None:
            await state.stop()
        hangup.stop()
        for each in watches:
            await each.stop()
        if watch is not None:
            await watch.stop()
        if keeping is not None:
            await keeping.stop()
        await follower.stop()
        if replicas is not None:
            replicas.close()
        await http.close()
        if tracing is not None:
            await tracing.end()
        if service.audit is not None:
            await service.audit.close()
        if logged is not None:
            logged.files.close(logged.decisions.rest(monotonic()))


def _server(service: Service, listener: socket.socket, front: Front | None) -> Server:
    """front: who meets the bytes of connections first"""
    drain = Drain(service.config["drain_s"], lambda: _leave_address(service.config, listener))
    tls = service.server_tls
    handshakes = None if tls is None else tls.handshakes
    keep_alive_s = service.config["keep_alive_s"]
    return server_of(Application(service), front, drain, handshakes, keep_alive_s)


def _open_connections(service: Service, server: Server) -> int:
    of_loops = sum(each.connections for each in service.input_loops())
    return len(server.server_state.connections) + of_loops


def _http_client(service: Service) -> HttpClient:
    """How all others are asked."""
    names, asking_max = service.ingest.names, service.ingest.asking_max
    key_file = service.config["peer_api_key_file"]
    return HttpClient(names, asking_max, Path(key_file) if key_file else None, service.client_tls)


def _watches(service: Service) -> list[FileWatch]:
    """Who follows files that may change while the process runs."""
    path = service.config["api_keys_file"]
    keys: list[FileWatch] = [] if path is None else [KeysWatch(Path(path), service.guard)]
    return [*keys, *(TlsWatch(kept, side) for side, kept in service.tls())]


def _leave_address(config: Config, listener: socket.socket) -> None:
    """To the process that takes over, where one may."""
    if config["reuse_port"]:
        leave_to_others(listener, max(1, config["input_loops"]))


def _traced(tracing: "Tracing | None") -> "Callable[[Answerer], Answerer] | None":
    """What stands before every answerer, so that requests get their spans."""
    if tracing is None:
        return None
    from select_service.fast.traced import Traced

    return lambda inner: Traced(inner, tracing.counts, tracing.may_sample)


def _front(
    service: Service, port: int, before: "Callable[[Answerer], Answerer] | None"
) -> "Lean | None":
    """Who answers usual requests before the application sees them.

    port: that clients name;  before: answerers, None: nothing
    """
    if service.config["no_fast_path"]:
        return None
    from select_service.fast.protocol import Lean
    from select_service.fast.service_answerer import ServiceAnswerer

    if service.guard.is_on:
        from select_service.fast.keyed import KeyedLean, Passes

        passes = Passes(service.guard, service.selector, service.metrics)
        passes.ask_hosts(_usual_hosts(service, port))
        return KeyedLean(passes, before)
    answerer = ServiceAnswerer(service.selector, service.metrics)
    if (hosts := _usual_hosts(service, port)) is not None:
        answerer.ask_hosts(hosts)
    return Lean(answerer, before)


def _usual_hosts(service: Service, port: int) -> list[bytes] | None:
    """What compiled code compares; None: all hosts are served."""
    names = allowed_hosts(service.config)
    return None if names is None else usual_hosts(names, port)


def _loops(service: Service, listener: socket.socket, lean: "Lean | None") -> "Loops":
    """Who accepts connections instead of the server.  Raises Unusable."""
    from select_service.loops.loop import Limits
    from select_service.loops.loops import Loops

    assert lean is not None, "see settings.config"
    listeners = siblings(listener, service.config["input_loops"])
    for each in listeners:
        listen(each)
    limits = Limits(idle_s=service.config["keep_alive_s"])
    loops = Loops(listeners, lean, service.selector, service.metrics, limits=limits)
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
        int(config["file_mode"], 8),
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
            for each in (parts.watch, parts.discovery, parts.state, service.audit)
            if each is not None
            for task in each.tasks()
        ]
        + [DueTask("history", SAMPLE_S, service.history.step)],
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
