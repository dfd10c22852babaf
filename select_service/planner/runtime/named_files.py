"""Everything that a configuration names besides itself, read without changing anything."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from select_service.base.command_line import file_error_text
from select_service.base.suggestions import printable_name
from select_service.files.request_trace import TraceError
from select_service.files.rotating_file import looks_like_lines
from select_service.net.tls.current_tls import ClientTls
from select_service.net.token_file import read_api_key
from select_service.planner.config import (
    DeploymentConfig,
    DryRunConnectorConfig,
    PlannerConfig,
    VirtualConnectorConfig,
)
from select_service.planner.config_loader import ConfigProfile
from select_service.planner.connectors.connector import ConnectorError
from select_service.planner.connectors.dry_run_connector import DryRunConnector
from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.core.tick_input import Role
from select_service.planner.profile_files import ProfileFileError, read_profile
from select_service.planner.runtime.forward_pass_source import ForwardPassReceiver
from select_service.planner.runtime.report_writer import find_report_error
from select_service.planner.runtime.watched_tls import client_files
from select_service.planner.wiring import build_deployment, build_models


def find_named_faults(config: PlannerConfig, profile: ConfigProfile) -> Iterator[str]:
    """Yield a line for everything that is named and cannot be used."""
    yield from _key_faults("api_key_file", config.api_key_file)
    client = config.client_cert_file, config.client_key_file
    yield from _tls_faults("ca_file, client_cert_file", config.ca_file, *client)
    if config.decision_log is not None:
        yield from _log_faults("decision_log", Path(config.decision_log))
    if config.report is not None and (fault := find_report_error(Path(config.report.path))):
        yield f"report: {fault}"
    for each in config.deployments:
        for fault in _deployment_faults(each, profile):
            yield f"deployment `{printable_name(each.name)}`: {fault}"


def _deployment_faults(deployment: DeploymentConfig, profile: ConfigProfile) -> Iterator[str]:
    """Yield the faults of a deployment."""
    if deployment.prometheus is not None:
        yield from _key_faults("prometheus.token_file", deployment.prometheus.token_file)
        yield from _tls_faults("prometheus.ca_file", deployment.prometheus.ca_file)
    if deployment.fpm is not None:
        try:
            ForwardPassReceiver(deployment.fpm).close()
        except ValueError as error:
            yield str(error)
    try:
        # Reads the profile and the trace as a planner does at its start.
        build_deployment(deployment, 0.0, warmup_trace=deployment.warmup_trace)
        yield from _profile_faults(deployment)
    except ProfileFileError as error:
        yield f"profile_results_dir: {error}"
    except TraceError as error:
        yield str(error)
    try:
        asyncio.run(_validate_connector(deployment, profile))
    except ConnectorError as error:
        yield str(error)


def _profile_faults(deployment: DeploymentConfig) -> Iterator[str]:
    """Yield the roles that a profile was measured for and gives no model. Raises ProfileFileError.

    Without a half the planner waits for samples, as it does without a profile.
    """
    if deployment.profile_results_dir is None:
        return
    profile = read_profile(deployment.profile_results_dir)
    for role, model in build_models(deployment).items():
        half = profile.prefill if role is Role.PREFILL else profile.decode
        if half is not None and not model.is_ready:
            yield (
                f"profile_results_dir: no model of {role}: expected at least "
                f"{deployment.load_min_observations} points whose times rise with the load"
            )


async def _validate_connector(deployment: DeploymentConfig, profile: ConfigProfile) -> None:
    """Read the file of a connector. Raises ConnectorError."""
    chosen = deployment.connector
    if not isinstance(chosen, VirtualConnectorConfig | DryRunConnectorConfig):
        return  # a cluster is no file: its targets are checked at the start
    path = None if chosen.path is None else Path(chosen.path)
    if isinstance(chosen, VirtualConnectorConfig):
        await VirtualConnector(path, profile=profile).validate()
    else:
        await DryRunConnector(path, {}).validate()


def _key_faults(setting: str, path: str | None) -> Iterator[str]:
    """Yield why a file has no key."""
    if path is None:
        return
    try:
        read_api_key(Path(path))
    except ValueError as error:
        yield f"{setting}: {error}"


def _tls_faults(
    setting: str, ca: str | None, certificate: str | None = None, key: str | None = None
) -> Iterator[str]:
    """Yield why files of TLS cannot be used."""
    files = client_files(ca, certificate, key)
    if not files.all_paths():
        return
    try:
        ClientTls(files)
    except ValueError as error:
        yield f"{setting}: {error}"


def _log_faults(setting: str, path: Path) -> Iterator[str]:
    """Yield why lines cannot be appended to a file."""
    if not path.parent.is_dir():
        yield f"{setting}: directory {path.parent} does not exist"
        return
    try:
        if not looks_like_lines(path):
            yield f"{setting}: `{path}` is no log of a planner: name another file"
    except FileNotFoundError:
        if not os.access(path.parent, os.W_OK):
            yield f"{setting}: directory {path.parent} cannot be written"
    except OSError as error:
        yield f"{setting}: {file_error_text(path, error)}"
