"""EDGE: the files that one planner writes: each a file of its own, and locked."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from select_service.file_claims import FileTaken, claim_file
from select_service.planner.config import DryRunConnector, PlannerConfig, VirtualConnector
from select_service.planner.reading import ConfigError


def claims(config: PlannerConfig) -> list[IO[bytes]]:
    """Return the locks, which the caller keeps open as long as the planner runs.

    Raises ConfigError, also for one file of two settings.
    """
    settings: dict[Path, str] = {}
    locks = []
    for setting, name in _written(config):
        path = Path(name).resolve()
        if path in settings:
            text = f"{setting} and {settings[path]} both mean `{name}`: give each its own file"
            raise ConfigError(text)
        settings[path] = setting
        try:
            locks.append(claim_file(path))
        except FileTaken as fault:
            raise ConfigError(f"{setting}: {fault}") from None
    return locks


def _written(config: PlannerConfig) -> Iterator[tuple[str, str]]:
    """Setting and file of all that is written."""
    if config.decision_log is not None:
        yield "decision_log", config.decision_log
    if config.report is not None:
        yield "report", config.report.path
    for own in config.deployments:
        connector = own.connector
        if isinstance(connector, VirtualConnector | DryRunConnector) and connector.path is not None:
            yield f"deployment `{own.name}`: connector.path", connector.path
