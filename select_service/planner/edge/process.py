"""EDGE: one process: the loop beside the server of its API, from start to signal."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic, time

import uvicorn
from msgspec.structs import replace

from select_service import log as logs
from select_service.allowed_names import names_at
from select_service.command_line import file_fault
from select_service.daemon_threads import DaemonThreads
from select_service.edge.hangup import Hangup, ignore_hangups
from select_service.planner.assembling import cluster_of
from select_service.planner.config import PlannerConfig
from select_service.planner.connectors.base import ConnectorError
from select_service.planner.connectors.opening import Surroundings
from select_service.planner.core.inputs import gpus_said
from select_service.planner.core.settings import with_gpus
from select_service.planner.edge.api import application
from select_service.planner.edge.claims import claims
from select_service.planner.edge.connecting import Connecting
from select_service.planner.edge.decision_log import DecisionLog
from select_service.planner.edge.followed_tls import FollowedTls, client_files
from select_service.planner.edge.loop import Listener, Loop
from select_service.planner.edge.member import Member
from select_service.planner.edge.recording import Recorder
from select_service.planner.edge.reports import report_error, write_reports
from select_service.planner.judging import faults
from select_service.planner.outbound import Outbound, Unreachable, check_token
from select_service.planner.profiles import ProfileError
from select_service.planner.reading import ConfigError, Profile
from select_service.planner.status import Statuses
from select_service.request_trace import TraceError
from select_service.tls.kept import ClientTls

log = logging.getLogger("select_service.planner")

CONNECTIONS_MAX = 1024
SHUTDOWN_S = 1
"""Time that requests in flight may take to end after a signal."""
THREADS = 8
"""For files and what computes long."""
FAILED = 1


def run(config: PlannerConfig, profile: Profile, kubeconfig: Path | None) -> int:
    """Until SIGINT or SIGTERM. Exit status; raises ConfigError before anything is scaled."""
    ignore_hangups()
    logs.configure(config.log_level, config.log_format)
    return asyncio.run(_lived(config, profile, kubeconfig))


def never_back() -> Callable[[], float]:
    """Seconds since 1970 as they were at the start, and from then on of a clock of its own."""
    started, wall = monotonic(), time()
    return lambda: wall + (monotonic() - started)


async def _lived(config: PlannerConfig, profile: Profile, kubeconfig: Path | None) -> int:
    clock = never_back()
    asyncio.get_running_loop().set_default_executor(DaemonThreads(THREADS, "blocking"))
    async with AsyncExitStack() as closing:
        followed = await closing.enter_async_context(FollowedTls())
        hangup = Hangup(lambda: [each.files for each in followed.watches()])
        hangup.start()
        closing.callback(hangup.stop)
        tls = _tls_of(config, followed)
        mode = int(config.file_mode, 8)
        around = Surroundings(config.selectors, kubeconfig, profile, config.api_key_file, tls, mode)
        http = await closing.enter_async_context(Outbound(tls))
        _check_files(config)
        listener = closing.enter_context(_bound(config))
        for lock in claims(config):
            closing.enter_context(lock)
        connecting = Connecting(config, around, followed, http, clock)
        members = await members_of(config, connecting, closing)
        statuses = Statuses(len(config.deployments))
        listeners: list[Listener] = [statuses]
        if config.decision_log is not None:
            listeners.append(Recorder(_decision_log(config.decision_log, mode, closing)))
        try:
            cluster = cluster_of(config, clock())
        except TraceError as error:
            raise ConfigError(str(error)) from None
        except ProfileError as error:
            raise ConfigError(f"profile_results_dir: {error}") from None
        loop = Loop(config, cluster, members, listeners, clock)
        _tell_start(config, listener)
        return await _served(config, loop, statuses, listener)


def _check_files(config: PlannerConfig) -> None:
    """Raises ConfigError now for what would else be a fault of every tick, or of every hour."""
    try:
        if config.api_key_file is not None:
            check_token(config.api_key_file)
    except Unreachable as error:
        raise ConfigError(str(error)) from None
    if config.report is not None and (fault := report_error(Path(config.report.path))):
        raise ConfigError(f"report: {fault}")


async def members_of(
    config: PlannerConfig, connecting: Connecting, closing: AsyncExitStack
) -> dict[str, Member]:
    """What the platform says of replicas must fit the budgets, too."""
    members, completed = {}, []
    for own in config.deployments:
        try:
            members[own.name] = await connecting.member(own)
            closing.push_async_callback(members[own.name].close)
            said = gpus_said(await members[own.name].connector.read())
        except (ConnectorError, ValueError) as error:
            raise ConfigError(f"deployment `{own.name}`: {error}") from None
        completed.append(with_gpus(own, said))
    for fault in faults(replace(config, deployments=tuple(completed))):
        raise ConfigError(fault)
    return members


async def _served(
    config: PlannerConfig, loop: Loop, statuses: Statuses, listener: socket.socket
) -> int:
    """Signals are the server's; whichever part ends first ends the others."""
    names = names_at(config.api.host, config.api.allowed_hosts, asks_for_key=False)
    server = _Server(
        uvicorn.Config(
            application(loop, statuses, names),
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=SHUTDOWN_S,
        ),
        loop.end_polls,
    )
    ticking = asyncio.create_task(loop.run(), name="ticks")
    ticking.add_done_callback(lambda _: setattr(server, "should_exit", True))
    reporting = asyncio.create_task(write_reports(config.report, statuses), name="reports")
    try:
        await server.serve(sockets=[listener])
    finally:
        has_failed = ticking.done() and not ticking.cancelled()
        for task in (ticking, reporting):
            task.cancel()
        ended = await asyncio.gather(ticking, reporting, return_exceptions=True)
    if has_failed:
        log.error("the loop of ticks has ended", exc_info=ended[0])
        return FAILED
    log.info("stopped")
    return 0


class _Server(uvicorn.Server):
    """A server that ends with 0, where uvicorn sends itself the signal again that has ended it.

    ending: answers those who wait
    """

    def __init__(self, config: uvicorn.Config, ending: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._ending()
        await super().shutdown(sockets)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self.capture_signals():
            await self._serve(sockets)
            self._captured_signals.clear()


def _tls_of(config: PlannerConfig, followed: FollowedTls) -> ClientTls | None:
    """Of selectors and proposers."""
    files = client_files(config.ca_file, config.client_cert_file, config.client_key_file)
    try:
        return followed.tls_of(files)
    except ValueError as error:
        raise ConfigError(f"ca_file, client_cert_file, client_key_file: {error}") from None


def _bound(config: PlannerConfig) -> socket.socket:
    """Taken before anything else, so that a second planner on this port does not begin."""
    family = socket.AF_INET6 if ":" in config.api.host else socket.AF_INET
    result = socket.socket(family, socket.SOCK_STREAM)
    result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        result.bind((config.api.host, config.api.port))
    except OSError as error:
        result.close()
        where = f"{config.api.host}:{config.api.port}"
        raise ConfigError(
            f"api: {where} cannot be used: {error.strerror or error}; another port: --port N, any "
            "free one: --port 0"
        ) from None
    return result


def _decision_log(path: str, mode: int, closing: AsyncExitStack) -> DecisionLog:
    try:
        result = DecisionLog(Path(path), mode=mode)
    except OSError as error:
        raise ConfigError(f"decision_log: {file_fault(path, error, 'written')}") from None
    closing.callback(result.close)
    return result


def _tell_start(config: PlannerConfig, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    for own in config.deployments:
        fields = {
            "deployment": own.name,
            "model_name": own.model_name,
            "mode": own.mode,
            "connector": own.connector.__struct_config__.tag,
            "advisory": own.advisory,
            "predictor": own.load_predictor,
        }
        log.info("planning", extra={"fields": fields})
    log.info("listening", extra={"fields": {"host": host, "port": port}})
