"""Builds the core and the edges, routes requests, and lives from start to signal."""

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic

import uvicorn
import uvloop
import zmq
from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from indexer.index.prefix_index import PrefixIndex
from indexer.sockets.ingest import Ingest
from select_service import log as logs
from select_service.api import (
    admission,
    documentation,
    inspection,
    probes,
    replica_peers,
    reservations,
    selection,
    workers,
)
from select_service.api.route_table import ROUTES
from select_service.api.service import (
    Handler,
    InternalError,
    Resource,
    Service,
    no_such_route,
    trace_of,
)
from select_service.core.decide.cost import RouterConfig
from select_service.core.fleet.recovered import RecoveryStatus
from select_service.core.replicas.events import Event
from select_service.core.selector import Selector
from select_service.edge.engine_metrics import EngineMetrics
from select_service.edge.keeping.index_keeping import IndexKeeping, Keeping
from select_service.edge.keeping.snapshot_file import path_error
from select_service.edge.replicas.publisher import ReplicaPublisher
from select_service.edge.replicas.sync import ReplicaSync
from select_service.edge.ticker import tick_forever
from select_service.edge.waker import Waker
from select_service.errors import SelectError, ShuttingDown
from select_service.http.codec import error_response
from select_service.http.protocol import BoundedProtocol
from select_service.metrics.service_metrics import Metrics
from select_service.settings.admission_rules import admission_rules
from select_service.settings.config import Config, ConfigError

log = logging.getLogger("select_service")

GRACE_S = 1
"""How long requests in flight may take to end after a signal."""
KEEP_ALIVE_S = 75
USAGE_ERROR = 2
"""Exit status for a setting that makes no sense."""
LISTEN_BACKLOG = 2048
ACCEPTS_PER_TURN = 16
"""libuv accepts one connection per listening socket and turn of the event loop, and under load
every turn serves all who are connected already: of many clients that come at once the last waited
seconds.  So the loop gets this many duplicates of the one socket."""
THREAD_SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while another wants it.  With the default of 5 ms a
busy ingest thread holds up every answer; measured with scripts/bench/ingest.py."""
LOGGED_PATH_CHARS_MAX = 256

HANDLERS: Mapping[str, Handler] = {
    "select_and_reserve": selection.select_and_reserve,
    "select": selection.select,
    "create_reservation": reservations.create,
    "list_reservations": reservations.listing,
    "prefill_complete": reservations.prefill_complete,
    "output_block": reservations.output_block,
    "renew_reservation": reservations.renew,
    "free_reservation": reservations.free,
    "set_busy_threshold": admission.set_threshold,
    "busy_thresholds": admission.thresholds,
    "shed": admission.shed,
    "admission_state": admission.state,
    "register_worker": workers.register,
    "list_workers": workers.listing,
    "patch_worker": workers.patch,
    "delete_worker": workers.delete,
    "register_peer": replica_peers.register,
    "deregister_peer": replica_peers.deregister,
    "list_peers": replica_peers.listing,
    "replica_status": replica_peers.status,
    "loads": inspection.loads,
    "potential_loads": inspection.potential_loads,
    "overlap_scores": inspection.overlap_scores,
    "dump": inspection.dump,
    "config": inspection.config,
    "health": probes.health,
    "ready": probes.ready,
    "metrics": probes.metrics,
    "openapi": documentation.openapi,
    "docs": documentation.docs,
}


class Application:
    """The ASGI application: routes on the raw path, and is the supervisor of every request."""

    def __init__(self, service: Service) -> None:
        self._service = service
        resources = {path: Resource(path, handlers) for path, handlers in _by_path().items()}
        self._plain = {path: each for path, each in resources.items() if "{" not in path}
        self._router = Router(
            [Route(path, each) for path, each in resources.items() if "{" in path],
            redirect_slashes=False,
            default=no_such_route,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        scope["service"] = self._service
        # A reservation id may hold an encoded slash, so segments are split before they are decoded.
        scope["path"] = path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        try:
            await self._plain.get(path, self._router)(scope, receive, send)
        except Exception:
            await self._failed(scope, receive, send)

    def refused(self, status: int) -> None:
        """Count an answer that the connection gave before a request had come in."""
        self._service.metrics.request("unknown", "any", status)

    async def _failed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The one log line of a bug, and its answer unless another one has begun."""
        request = Request(scope)
        fields = {"method": request.method, "path": scope["path"][:LOGGED_PATH_CHARS_MAX]}
        log.exception("request failed", extra={"fields": fields | trace_of(request)})
        if "answering" in scope:
            return  # uvicorn closes the connection, so that the client sees an answer cut short
        resource = scope.get("resource", "unknown")
        self._service.metrics.request(resource, request.method, InternalError.status)
        error = InternalError("internal error; the log of the service has more")
        await error_response(error)(scope, receive, send)


def _by_path() -> dict[str, dict[str, Handler]]:
    """Path -> method -> handler, as the route table has them."""
    found: dict[str, dict[str, Handler]] = {}
    for route in ROUTES:
        found.setdefault(route.path, {})[route.method] = HANDLERS[route.operation_id]
    return found


class _Server(uvicorn.Server):
    """Ends with status 0 after a signal; uvicorn would raise the signal again."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self.capture_signals():
            await self._serve(sockets)
            self._captured_signals.clear()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Requests that wait for a worker are answered at once."""
        error = ShuttingDown("the service is ending; nothing was done")
        self._service.selector.gate.dismiss(error)
        await super().shutdown(sockets)


def build(config: Config, version: str) -> Service:
    """All parts of a process, none of them running but the ingest threads.  Raises ConfigError."""
    rules, waker = admission_rules(config), Waker()
    router = RouterConfig(**{name: config[name] for name in RouterConfig._fields})
    publisher = None if config["replica_sync_port"] is None else ReplicaPublisher()
    selector = Selector(
        router,
        lambda: PrefixIndex(config["index_blocks_max"], lock=threading.Lock()),
        rng=Random(SystemRandom().getrandbits(128)),
        use_kv_events=config["use_kv_events"],
        reservation_ttl_s=config["reservation_ttl_s"],
        admission=rules,
        emit=_nobody_listens if publisher is None else publisher.offer,
        wake=waker,
    )
    waker.bind(selector.serve_waiting)
    replicas = None if publisher is None else _replica_sync(config, selector, publisher)
    recovers = bool(config["indexer_peers"] or config["snapshot_path"])
    ingest = Ingest(config["threads"], held=recovers)
    service = Service(config, version, selector, ingest, Metrics(version), replicas)
    if recovers:
        service.recovery = RecoveryStatus("running", begun_at=monotonic())
    return service


def _nobody_listens(event: Event) -> None:
    """Without a replica plane."""


def _replica_sync(config: Config, selector: Selector, publisher: ReplicaPublisher) -> ReplicaSync:
    repair, url = config["replica_sync_repair"], config["advertise_url"]
    return ReplicaSync(selector.replicas, publisher, repair=repair, url=url)


def _plane(service: Service) -> ReplicaSync | None:
    """The replica plane as `build` made it."""
    assert service.replicas is None or isinstance(service.replicas, ReplicaSync)
    return service.replicas


def serve(config: Config, version: str) -> int:
    """Run until a signal.  Returns the exit status."""
    logs.configure(config["log_level"], config["log_format"])
    sys.setswitchinterval(THREAD_SWITCH_S)
    path = config["snapshot_path"]
    unusable = None if path is None else path_error(Path(path))
    if unusable is not None:
        print(f"select-service: error: --snapshot-path: {unusable}", file=sys.stderr)
        return 1
    try:
        listener = _bind(config["host"], config["port"])
    except OSError as error:
        where = f"{config['host']}:{config['port']}"
        print(f"select-service: error: cannot listen on {where}: {error}", file=sys.stderr)
        return 1
    try:
        service = build(config, version)
    except ConfigError as error:
        print(f"select-service: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    try:
        if not _opened(service):
            return 1
        _announce(service, listener)
        return uvloop.run(_run(service, listener))
    finally:
        service.ingest.close()
        log.info("stopped")


def _opened(service: Service) -> bool:
    """Take the port of the replica plane and connect to its first peers."""
    replicas, config = _plane(service), service.config
    if replicas is None:
        return True
    port = config["replica_sync_port"]
    try:
        replicas.bind(port)
        for endpoint in config["replica_sync_peers"] or ():
            replicas.register(endpoint)
    except zmq.ZMQError as error:
        reason = f"cannot bind tcp://*:{port}: {zmq.strerror(error.errno or 0)}"
        print(f"select-service: error: --replica-sync-port: {reason}", file=sys.stderr)
    except SelectError as error:
        print(f"select-service: error: --replica-sync-peers: {error}", file=sys.stderr)
    else:
        return True
    replicas.close()
    return False


def _bind(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def duplicates(listener: socket.socket) -> list[socket.socket]:
    """The listener ACCEPTS_PER_TURN times; the first is itself."""
    return [listener, *(listener.dup() for _ in range(ACCEPTS_PER_TURN - 1))]


def _announce(service: Service, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    log.info(
        "listening", extra={"fields": {"host": host, "port": port, "version": service.version}}
    )
    settings = {
        name: f"{setting['value']} ({setting['origin']})"
        for name, setting in service.config.effective().items()
    }
    log.info("configuration", extra={"fields": settings})
    weight = service.config.values["overlap_score_weight"]
    if weight.value is not None:
        fields = {"setting": weight.origin, "instead": "DYN_ROUTER_PREFILL_LOAD_SCALE"}
        log.warning("deprecated variable", extra={"fields": fields})
    for variable in service.config.without_effect:
        log.warning("variable has no effect", extra={"fields": {"variable": variable}})


def server_of(service: Service) -> uvicorn.Server:
    """The HTTP server, with every bound and no feature that nobody uses."""
    config = uvicorn.Config(
        Application(service),
        http=BoundedProtocol,
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    return _Server(config, service)


async def _run(service: Service, listener: socket.socket) -> int:
    """Serve until a signal, or until a background task fails; the supervisor of both."""
    server, replicas = server_of(service), _plane(service)
    if replicas is not None:
        replicas.start(listener.getsockname()[1])
    keeping = _keeping(service)
    if keeping is not None:
        keeping.start(service.ingest, service.catalog_lock)
    engines = _engines(service)
    try:
        return await _supervised(service, server, listener, engines)
    finally:
        await engines.stop()
        if keeping is not None:
            await keeping.stop()
        if replicas is not None:
            replicas.close()


def _engines(service: Service) -> EngineMetrics:
    config = service.config
    engines = EngineMetrics(
        service.selector,
        interval_s=config["engine_metrics_interval_s"],
        timeout_s=config["engine_metrics_timeout_s"],
    )
    service.engine_scrapes = engines.counts
    return engines


def _keeping(service: Service) -> IndexKeeping | None:
    config = service.config
    if not service.recovery.running:
        return None
    wanted = Keeping(
        config["indexer_peers"] or (),
        config["snapshot_path"],
        config["snapshot_interval_s"],
        config["index_blocks_max"],
    )
    return IndexKeeping(wanted, service.selector, service.recovery, service.snapshot)


async def _supervised(
    service: Service,
    server: uvicorn.Server,
    listener: socket.socket,
    engines: EngineMetrics,
) -> int:
    ticker = asyncio.create_task(tick_forever(service.selector, service.ingest, _plane(service)))
    asking = engines.start()
    serving = asyncio.create_task(server.serve(duplicates(listener)))
    await asyncio.wait((ticker, asking, serving), return_when=asyncio.FIRST_COMPLETED)
    for task in (ticker, asking):
        if task.done():
            log.error("a background task failed; stopping", exc_info=task.exception())
            server.should_exit = True
            await serving
            return 1
    ticker.cancel()
    await serving
    return 0
