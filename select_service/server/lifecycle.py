"""Life cycle of the service process: opens its sockets, runs until a signal, shuts down."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from time import monotonic
from typing import TYPE_CHECKING

import uvloop
import zmq

from select_service.adapters.periodic_tasks import PeriodicTasks
from select_service.adapters.reload.sighup import SighupReload
from select_service.adapters.replicas.replica_sync import ReplicaSync
from select_service.api.application import ApiApplication
from select_service.api.service_context import ServiceContext
from select_service.base.errors import SelectError
from select_service.config.open_interfaces import allowed_hosts, host_header_values, replica_host
from select_service.config.settings_loader import Config, UnusableSetting
from select_service.http.http_server import (
    DrainingServer,
    DrainPeriod,
    duplicate_listener,
    make_http_server,
)
from select_service.server.build import ServiceComponents, build_service
from select_service.server.gc_tuning import GcFreezer
from select_service.server.listening_socket import (
    redirect_new_connections,
    resolve_address,
    start_listening,
)
from select_service.server.startup_log import log_startup
from select_service.server.startup_settings import StartupSettings
from select_service.server.tls_setup import warn_of_expiry

if TYPE_CHECKING:
    from select_service.adapters.tracing.tracer import Tracer
    from select_service.fastpath.fast_handler import FastHandler
    from select_service.fastpath.fast_path import FastPath

log = logging.getLogger("select_service")

THREAD_SWITCH_S = 0.0005
"""Interpreter switch interval in seconds.

With the default of 5 ms, a busy ingest thread delays every response.
"""


class _Loop(uvloop.Loop):
    """Event loop that shuts down its executor itself.

    The base class would start another thread for that, and wait for ever for one that found no
    memory when it started.
    """

    threads: ThreadPoolExecutor | None = None

    def set_default_executor(self, executor: ThreadPoolExecutor) -> None:  # type: ignore[override]
        super().set_default_executor(executor)
        self.threads = executor

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Shut down the executor, which has its own time limit; `timeout` is ignored."""
        # Our own limit (JOIN_S) counts: a thread that hangs in a file system must not stop the
        # exit.
        if self.threads is not None:
            self.threads.shutdown()


def open_sockets(startup: StartupSettings, listener: socket.socket) -> ServiceComponents:
    """Return a service with open sockets, for `run`.  Raises Unusable."""
    # Set before the ingest threads start in `build_service`, since they compete with the event
    # loop.
    sys.setswitchinterval(THREAD_SWITCH_S)
    parts = build_service(startup)
    try:
        if parts.optional.replicas is not None:
            _open_replicas(parts.optional.replicas, startup.config)
        start_listening(listener)
    except UnusableSetting:
        parts.service.ingest.close()
        raise
    log_startup(startup.config, startup.version, *listener.getsockname()[:2])
    warn_of_expiry(startup.server_tls, startup.client_tls)
    return parts


def run_service(
    parts: ServiceComponents, listener: socket.socket, threads: ThreadPoolExecutor
) -> int:
    """Serve until a signal; return the exit status.

    threads: executor for blocking calls
    """
    try:
        return uvloop.run(_serve(parts, listener, threads), loop_factory=_Loop)
    finally:
        parts.service.ingest.close()
        log.info("stopped")


def _open_replicas(replicas: ReplicaSync, config: Config) -> None:
    """Bind the replica port and register the configured peers.  Raises Unusable."""
    host, port = replica_host(config), config["replica_sync_port"]
    try:
        replicas.bind_publisher(port, resolve_address(host, port))
        for endpoint in config["replica_sync_peers"] or ():
            replicas.add_peer(endpoint)
    except zmq.ZMQError as error:
        replicas.close()
        reason = f"cannot bind {host}:{port}: {zmq.strerror(error.errno or 0)}"
        raise UnusableSetting(f"--replica-sync-port: {reason}") from None
    except SelectError as error:
        replicas.close()
        raise UnusableSetting(f"--replica-sync-peers: {error}") from None


async def _serve(
    parts: ServiceComponents, listener: socket.socket, threads: ThreadPoolExecutor
) -> int:
    """Serve until a signal or until a background task fails."""
    asyncio.get_running_loop().set_default_executor(threads)
    server = _make_server(parts, listener)
    # The stack stops in reverse order of the start: producers of changes stop before the files
    # that record them.
    async with AsyncExitStack() as stops:
        _start_outputs(parts, stops)
        background = await _start_fleet(parts, listener.getsockname()[1], stops)
        background += await _start_inputs(parts, stops)
        # Once most long-lived objects exist: they are frozen together.
        GcFreezer()
        return await _supervise(parts.tasks, server, duplicate_listener(listener), background)


def _start_outputs(parts: ServiceComponents, stops: AsyncExitStack) -> None:
    """Start the logs, the tracing and the HTTP client, which the other components write to."""
    optional = parts.optional
    if (logged := optional.decision_logging) is not None:
        logged.files.start()
        stops.callback(lambda: logged.files.close_log(logged.decisions.drain_lines(monotonic())))
    if optional.audit is not None:
        stops.push_async_callback(optional.audit.close_log)
    if optional.tracing is not None:
        stops.push_async_callback(optional.tracing.shut_down)
    stops.push_async_callback(parts.http.close)
    if optional.shared_caches is not None:
        stops.push_async_callback(optional.shared_caches.close)


async def _start_fleet(
    parts: ServiceComponents, http_port: int, stops: AsyncExitStack
) -> list[asyncio.Task[None]]:
    """Start replicas, catalog follower and persistence; return tasks that must not end."""
    config, optional = parts.service.config, parts.optional
    background: list[asyncio.Task[None]] = []
    if (replicas := optional.replicas) is not None:
        stops.callback(replicas.close)
        replicas.start(http_port, parts.http, is_tls=config["tls_cert"] is not None)
        background += replicas.background_tasks()
    background.append(parts.follower.start())
    stops.push_async_callback(parts.follower.stop)
    if optional.state_file is not None:
        # Before the first request is answered: it must see the workers of the previous process.
        await optional.state_file.restore_state(config["indexer_peers"] or (), parts.http)
    if (persistence := optional.index_persistence) is not None:
        persistence.start(parts.service.ingest, parts.follower)
        # Stops before the follower, which it may still wait for.
        stops.push_async_callback(persistence.stop)
    return background


async def _start_inputs(
    parts: ServiceComponents, stops: AsyncExitStack
) -> list[asyncio.Task[None]]:
    """Start what changes workers and settings; return tasks that must not end."""
    optional = parts.optional
    if optional.health_runner is not None:
        stops.push_async_callback(optional.health_runner.stop)
    background = []
    for watch in optional.file_watches:
        background.append(watch.start())
        stops.push_async_callback(watch.stop)
    hangup = SighupReload(optional.followed_files)
    hangup.start()
    stops.callback(hangup.stop)
    if optional.state_file is not None:
        stops.push_async_callback(optional.state_file.stop)
    if (discovery := optional.discovery) is not None:
        background += discovery.start(parts.http)
        stops.push_async_callback(discovery.stop)
    background.append(parts.engine_metrics.start())
    stops.push_async_callback(parts.engine_metrics.stop)
    return background


def _make_server(parts: ServiceComponents, listener: socket.socket) -> DrainingServer:
    """Return the HTTP server."""
    service = parts.service
    wrap_handler = _tracing_wrapper(parts.optional.tracing)
    front = _make_fast_path(service, listener.getsockname()[1], wrap_handler)
    drain = DrainPeriod(service.config["drain_s"], lambda: _leave_address(service.config, listener))
    handshakes = None if service.tls.server is None else service.tls.server.handshakes
    keep_alive_s = service.config["keep_alive_s"]
    server = make_http_server(ApiApplication(service), front, drain, handshakes, keep_alive_s)
    service.process.open_connections = server.server_state.connections
    return server


def _leave_address(config: Config, listener: socket.socket) -> None:
    """Leave the port to a successor process, with --reuse-port."""
    if config["reuse_port"]:
        redirect_new_connections(listener)


def _tracing_wrapper(tracing: "Tracer | None") -> "Callable[[FastHandler], FastHandler] | None":
    """Return a wrapper that adds tracing to handlers of the fast path; None without tracing."""
    if tracing is None:
        return None
    from select_service.fastpath.tracing_filter import TracingFilter

    return lambda inner: TracingFilter(inner, tracing.counts, tracing.may_sample)


def _make_fast_path(
    service: ServiceContext, port: int, before: "Callable[[FastHandler], FastHandler] | None"
) -> "FastPath | None":
    """Return the fast path, which answers common requests before the application; None if disabled.

    port: port in Host headers
    before: wrapper of handlers; None means no wrapper
    """
    if service.config["no_fast_path"]:
        return None
    from select_service.fastpath.fast_path import FastPath
    from select_service.fastpath.service_handler import ServiceHandler

    if service.guard.is_on:
        from select_service.fastpath.authenticated import AuthenticatedFastPath, FastPathAuth

        passes = FastPathAuth(service.guard, service.selector, service.metrics)
        passes.restrict_hosts(_host_header_values(service, port))
        return AuthenticatedFastPath(passes, before)
    answerer = ServiceHandler(service.selector, service.metrics)
    if (hosts := _host_header_values(service, port)) is not None:
        answerer.restrict_hosts(hosts)
    ready = None
    if before is None and sys.platform == "linux":
        from select_service.fastpath.ready_connections import ReadyConnections

        ready = ReadyConnections(answerer)
    return FastPath(answerer, before, ready)


def _host_header_values(service: ServiceContext, port: int) -> list[bytes] | None:
    """Return the Host header values that compiled code compares.

    None means all hosts are accepted.
    """
    names = allowed_hosts(service.config)
    return None if names is None else host_header_values(names, port)


async def _supervise(
    tasks: PeriodicTasks,
    server: DrainingServer,
    listeners: list[socket.socket],
    background: Sequence[asyncio.Task[None]],
) -> int:
    """Run the server, the scheduler and the background tasks until one of them ends.

    background: tasks started elsewhere that must not end by themselves
    """
    ticker = asyncio.create_task(tasks.run_tasks())
    serving = asyncio.create_task(server.serve(listeners))
    await asyncio.wait((ticker, *background, serving), return_when=asyncio.FIRST_COMPLETED)
    for task in (ticker, *background):
        if task.done():
            log.error("background task failed, stopping", exc_info=task.exception())
            # The other tasks cannot be trusted after this: an orderly exit lets the supervisor
            # restart all.
            server.should_exit = True
            await serving
            return 1
    ticker.cancel()
    await serving
    return 0
