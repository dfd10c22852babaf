"""The settings -> the sources of workers."""

from pathlib import Path
from typing import Literal, NamedTuple

from select_service.bodies.workers import WorkerRegistration
from select_service.core.discovery.workers_document import workers_of
from select_service.settings.config import Config, ConfigError
from select_service.yaml_document import read_document

WORKERS_BYTES_MAX = 16 << 20
"""Of a file of workers; 4,096 of many ranks take less."""


class SourceSettings(NamedTuple):
    """name: for metrics, log lines and /discovery;  place: what is read, for people"""

    name: str
    kind: Literal["file"]
    place: str
    path: Path


def source_settings(config: Config) -> list[SourceSettings]:
    """Those that count, first ones first.  Raises ConfigError."""
    path = config["workers_file"]
    if path is None:
        return []
    try:
        read_workers(Path(path))
    except ValueError as error:
        raise ConfigError(f"--workers-file {path}: {error}") from None
    return [SourceSettings("workers-file", "file", path, Path(path))]


def read_workers(path: Path) -> dict[int, WorkerRegistration]:
    """A file of workers, by id.  Raises ValueError with one line that names no file.  Blocks."""
    return workers_of(read_document(str(path), WORKERS_BYTES_MAX))
