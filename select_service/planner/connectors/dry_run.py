"""Decisions that are only written down: one JSON line each, what is there is what was decided."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import time

import msgspec

from select_service.numbered_files import looks_like_lines
from select_service.planner.connectors.base import (
    ConnectorError,
    ConnectorUnavailable,
    Counts,
    Decision,
    ReadyCounts,
    RoleDecision,
    Status,
    check_counts,
)
from select_service.planner.core.inputs import Replicas, Role
from select_service.whole_file import PRIVATE, append_to_file

log = logging.getLogger("select_service.planner.connectors")


class DryRun:
    """path: lines are appended; None: only the log has them.  initial: replicas to begin with.

    seen: replicas that serve, by role; what is decided counts while it says None.
    mode: of the file
    """

    def __init__(
        self,
        path: Path | None,
        initial: Counts,
        seen: ReadyCounts | None = None,
        *,
        mode: int = PRIVATE,
        clock: Callable[[], float] = time,
    ) -> None:
        self._path, self._mode = path, mode
        self._counts = dict(initial)
        self._seen = seen
        self._clock = clock

    async def read(self) -> Mapping[Role, Replicas]:
        """See Connector."""
        seen = None if self._seen is None else await self._seen()
        counts = self._counts if seen is None else {r: seen.get(r, 0) for r in self._counts}
        return {role: Replicas(ready=count, expected=count) for role, count in counts.items()}

    def faults(self) -> Mapping[Role, str]:
        """See Connector."""
        return {}

    async def scale(self, wanted: Counts) -> Decision:
        """See Connector.  Raises ConnectorUnavailable when the line cannot be written."""
        check_counts(wanted)
        changed = {role: count for role, count in wanted.items() if self._counts.get(role) != count}
        if changed:
            line = {"at": self._clock(), "scale_to": changed, "from": self._counts}
            await self._written(msgspec.json.encode(line) + b"\n")
            self._counts |= changed
        decided = {
            role: RoleDecision(
                wanted=count, status=Status.APPLIED if role in changed else Status.UNCHANGED
            )
            for role, count in wanted.items()
        }
        return Decision(roles=decided)

    async def _written(self, line: bytes) -> None:
        """Raises ConnectorUnavailable."""
        if self._path is None:
            log.info("would scale", extra={"fields": {"decision": line.decode().strip()}})
            return
        try:
            await asyncio.to_thread(_append, self._path, self._mode, line)
        except OSError as error:
            raise ConnectorUnavailable(f"{self._path}: {error.strerror or error}") from None

    async def wait(self, timeout_s: float) -> bool:
        """See Connector.  Everything is done at once."""
        return True

    async def validate(self) -> None:
        """See Connector."""
        if self._path is not None and not self._path.parent.is_dir():
            raise ConnectorError(f"{self._path}: there is no directory {self._path.parent}")
        if self._path is not None and self._path.exists():
            await asyncio.to_thread(_check_lines, self._path)

    async def pause(self) -> None:
        """See Connector.  Nothing is ever under way."""

    async def close(self) -> None:
        """See Connector."""


def _check_lines(path: Path) -> None:
    """Raises ConnectorError for a file of something else."""
    try:
        if not looks_like_lines(path):
            raise ConnectorError(f"{path}: it holds no JSON lines, name another file")
    except OSError as error:
        raise ConnectorError(f"{path}: {error.strerror}") from None


def _append(path: Path, mode: int, line: bytes) -> None:
    """Raises OSError."""
    with os.fdopen(append_to_file(path, mode), "ab") as file:
        file.write(line)
