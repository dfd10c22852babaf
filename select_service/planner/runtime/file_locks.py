"""Locks on the files that a planner writes, each a file of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from select_service.files.file_claims import FileLocked, claim_file
from select_service.planner.config import (
    DryRunConnectorConfig,
    PlannerConfig,
    VirtualConnectorConfig,
)
from select_service.planner.config_loader import PlannerConfigError


def lock_files(config: PlannerConfig) -> list[IO[bytes]]:
    """Return the locks, which the caller keeps open as long as the planner runs.

    Raises PlannerConfigError, also for a file named by two settings.
    """
    settings: dict[Path, str] = {}
    locks = []
    for setting, name in _written_files(config):
        # Resolved, so that two spellings of one file are found.
        path = Path(name).resolve()
        if path in settings:
            text = (
                f"{setting} and {settings[path]} both name `{name}`: give each setting its own file"
            )
            raise PlannerConfigError(text)
        settings[path] = setting
        try:
            locks.append(claim_file(path))
        except FileLocked as fault:
            raise PlannerConfigError(f"{setting}: {fault}") from None
    return locks


def _written_files(config: PlannerConfig) -> Iterator[tuple[str, str]]:
    """Yield setting and path of each written file."""
    if config.decision_log is not None:
        yield "decision_log", config.decision_log
    if config.report is not None:
        yield "report", config.report.path
    for own in config.deployments:
        connector = own.connector
        if (
            isinstance(connector, VirtualConnectorConfig | DryRunConnectorConfig)
            and connector.path is not None
        ):
            yield f"deployment `{own.name}`: connector.path", connector.path
