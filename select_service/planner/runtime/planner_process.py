"""Process with the loop and the API server, from start to signal."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic, time

import uvicorn
from msgspec.structs import replace

from select_service.adapters.reload.sighup import SighupReload, ignore_hangups
from select_service.base import log_format as logs
from select_service.base.command_line import file_error_text
from select_service.base.daemon_threads import DaemonThreads
from select_service.files.request_trace import TraceError
from select_service.net.allowed_hosts import host_names_for
from select_service.net.tls.current_tls import ClientTls
from select_service.net.token_file import read_api_key
from select_service.planner.config import PlannerConfig
from select_service.planner.config_loader import ConfigProfile, PlannerConfigError
from select_service.planner.connectors.connector import ConnectorError
from select_service.planner.connectors.factory import ConnectorEnvironment
from select_service.planner.core.settings import with_reported_gpus
from select_service.planner.core.tick_input import reported_gpus
from select_service.planner.deployment_status import DeploymentStatuses
from select_service.planner.planner_http import PlannerHttpClient
from select_service.planner.plugins.plugin_loader import PluginLoadError
from select_service.planner.profile_files import ProfileFileError
from select_service.planner.runtime.deployment_runner import DeploymentRunner
from select_service.planner.runtime.file_locks import lock_files
from select_service.planner.runtime.member_factory import MemberFactory
from select_service.planner.runtime.planner_api import build_application
from select_service.planner.runtime.planner_decision_log import PlannerDecisionLog
from select_service.planner.runtime.report_writer import find_report_error, write_reports
from select_service.planner.runtime.tick_loop import TickListener, TickLoop
from select_service.planner.runtime.watched_tls import WatchedTls, client_files
from select_service.planner.validation import find_config_faults
from select_service.planner.wiring import build_cluster

log = logging.getLogger("select_service.planner")

CONNECTIONS_MAX = 1024
SHUTDOWN_S = 1
"""Time for open requests after a signal, seconds."""
THREADS = 8
"""Number of threads for files and long computations."""
EXIT_FAILED = 1


def run_planner(config: PlannerConfig, profile: ConfigProfile, kubeconfig: Path | None) -> int:
    """Run until SIGINT or SIGTERM and return the exit status.

    Raises PlannerConfigError before anything is scaled.
    """
    ignore_hangups()
    logs.configure_logging(config.log_level, config.log_format)
    return asyncio.run(_run_until_signal(config, profile, kubeconfig))


def monotonic_wallclock() -> Callable[[], float]:
    """Return a monotonic clock of seconds since 1970, set at the start."""
    started, wall = monotonic(), time()
    # Schedules would break if the system clock were set back.
    return lambda: wall + (monotonic() - started)


async def _run_until_signal(
    config: PlannerConfig, profile: ConfigProfile, kubeconfig: Path | None
) -> int:
    """Build everything, run and close everything."""
    clock = monotonic_wallclock()
    asyncio.get_running_loop().set_default_executor(DaemonThreads(THREADS, "blocking"))
    async with AsyncExitStack() as closing:
        followed = await closing.enter_async_context(WatchedTls())
        hangup = SighupReload(lambda: [each.files for each in followed.running_watches()])
        hangup.start()
        closing.callback(hangup.stop)
        tls = _make_client_tls(config, followed)
        mode = int(config.file_mode, 8)
        around = ConnectorEnvironment(
            config.selectors, kubeconfig, profile, config.api_key_file, tls, mode
        )
        http = await closing.enter_async_context(PlannerHttpClient(tls))
        _check_configured_files(config)
        # The port comes first: a second planner there must fail before locking or writing any file.
        listener = closing.enter_context(_bind_port(config))
        for lock in lock_files(config):
            closing.enter_context(lock)
        try:
            connecting = MemberFactory(config, around, followed, http, clock)
        except PluginLoadError as error:
            raise PlannerConfigError(str(error)) from None
        closing.push_async_callback(connecting.plugins.close)
        members = await make_runners(config, connecting, closing)
        statuses = DeploymentStatuses(len(config.deployments))
        listeners: list[TickListener] = [statuses]
        if config.decision_log is not None:
            listeners.append(_open_decision_log(config.decision_log, mode, closing))
        try:
            cluster = build_cluster(config, clock())
        except TraceError as error:
            raise PlannerConfigError(str(error)) from None
        except ProfileFileError as error:
            raise PlannerConfigError(f"profile_results_dir: {error}") from None
        loop = TickLoop(config, cluster, members, listeners, clock)
        connecting.plugins.start_heartbeats()
        _log_start(config, listener)
        return await _serve_until_signal(config, loop, statuses, listener)


def _check_configured_files(config: PlannerConfig) -> None:
    """Raise PlannerConfigError now for files that would fail in every tick or every hour."""
    try:
        if config.api_key_file is not None:
            read_api_key(Path(config.api_key_file))
    except ValueError as error:
        text = f"token file {error}; create a key with `select-service keys new`"
        raise PlannerConfigError(text) from None
    if config.report is not None and (fault := find_report_error(Path(config.report.path))):
        raise PlannerConfigError(f"report: {fault}")


async def make_runners(
    config: PlannerConfig, factory: MemberFactory, closing: AsyncExitStack
) -> dict[str, DeploymentRunner]:
    """Build the runners. The GPUs reported by the platform must fit the budgets, too."""
    members, completed = {}, []
    for own in config.deployments:
        try:
            members[own.name] = await factory.member(own)
            closing.push_async_callback(members[own.name].close)
            said = reported_gpus(await members[own.name].connector.read())
        except (ConnectorError, ValueError) as error:
            raise PlannerConfigError(f"deployment `{own.name}`: {error}") from None
        completed.append(with_reported_gpus(own, said))
    for fault in find_config_faults(replace(config, deployments=tuple(completed))):
        raise PlannerConfigError(fault)
    return members


async def _serve_until_signal(
    config: PlannerConfig, loop: TickLoop, statuses: DeploymentStatuses, listener: socket.socket
) -> int:
    """Serve until a signal, or until the loop or the server ends."""
    names = host_names_for(config.api.host, config.api.allowed_hosts, needs_key=False)
    server = _PlannerServer(
        uvicorn.Config(
            build_application(loop, statuses, names),
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=SHUTDOWN_S,
        ),
        loop.end_polls,
    )
    ticking = asyncio.create_task(loop.run(), name="ticks")
    # A loop that ends for any reason must end the process, or the deployment would stay unattended.
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
        log.error("tick loop ended unexpectedly", exc_info=ended[0])
        return EXIT_FAILED
    log.info("planner stopped")
    return 0


class _PlannerServer(uvicorn.Server):
    """Server that ends with 0, while uvicorn would send itself the signal again.

    ending: coroutine function that answers waiting callers
    """

    def __init__(self, config: uvicorn.Config, ending: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer waiting callers, then shut down."""
        await self._ending()
        await super().shutdown(sockets)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve without the signal at the end."""
        with self.capture_signals():
            await self._serve(sockets)
            # uvicorn would raise the signal again after the shutdown, and the exit status would not
            # be 0.
            self._captured_signals.clear()


def _make_client_tls(config: PlannerConfig, watched_tls: WatchedTls) -> ClientTls | None:
    """Return the TLS settings for selectors and plugins."""
    files = client_files(config.ca_file, config.client_cert_file, config.client_key_file)
    try:
        return watched_tls.tls_for(files)
    except ValueError as error:
        raise PlannerConfigError(f"ca_file, client_cert_file, client_key_file: {error}") from None


def _bind_port(config: PlannerConfig) -> socket.socket:
    """Bind the port before anything else, so that a second planner on the port does not start."""
    family = socket.AF_INET6 if ":" in config.api.host else socket.AF_INET
    result = socket.socket(family, socket.SOCK_STREAM)
    result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        result.bind((config.api.host, config.api.port))
    except OSError as error:
        result.close()
        where = f"{config.api.host}:{config.api.port}"
        raise PlannerConfigError(
            f"api: {where} cannot be bound: {error.strerror or error}; choose another port with "
            "--port N, or any free one with --port 0"
        ) from None
    return result


def _open_decision_log(path: str, mode: int, closing: AsyncExitStack) -> PlannerDecisionLog:
    """Open the decision log. Raises PlannerConfigError."""
    try:
        result = PlannerDecisionLog(Path(path), mode=mode)
    except OSError as error:
        raise PlannerConfigError(
            f"decision_log: {file_error_text(path, error, 'written')}"
        ) from None
    closing.callback(result.close)
    return result


def _log_start(config: PlannerConfig, listener: socket.socket) -> None:
    """Log the deployments and the address."""
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
        log.info("deployment configured", extra={"fields": fields})
    for plugin in config.plugins:
        of_plugin = {"plugin": plugin.name, "stage": plugin.stage, "priority": plugin.priority}
        log.info("plugin configured", extra={"fields": of_plugin})
    log.info("listening", extra={"fields": {"host": host, "port": port}})
