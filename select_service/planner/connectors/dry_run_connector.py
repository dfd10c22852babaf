"""Connector that only writes decisions, one JSON line each, and reports them as the replicas."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import time

import msgspec

from select_service.files.atomic_file import PRIVATE_MODE, append_to_file
from select_service.files.rotating_file import looks_like_lines
from select_service.planner.connectors.connector import (
    ConnectorDecision,
    ConnectorError,
    ConnectorStatus,
    ConnectorUnavailable,
    DesiredCounts,
    PlatformConnector,
    ReadReadyCounts,
    RoleOutcome,
    check_counts,
)
from select_service.planner.core.tick_input import Role, RoleReplicas

log = logging.getLogger("select_service.planner.connectors")


class DryRunConnector(PlatformConnector):
    """Dry-run connector.

    path:    file to append lines to; None means only the log
    initial: replicas at the start
    seen:    function for serving replicas by role; while it returns None, decisions count
    mode:    mode of the file
    """

    def __init__(
        self,
        path: Path | None,
        initial: DesiredCounts,
        seen: ReadReadyCounts | None = None,
        *,
        mode: int = PRIVATE_MODE,
        clock: Callable[[], float] = time,
    ) -> None:
        self._path, self._mode = path, mode
        self._counts = dict(initial)
        self._read_ready = seen
        self._clock = clock

    async def read(self) -> Mapping[Role, RoleReplicas]:
        """See Connector."""
        seen = None if self._read_ready is None else await self._read_ready()
        counts = self._counts if seen is None else {r: seen.get(r, 0) for r in self._counts}
        return {role: RoleReplicas(ready=count, expected=count) for role, count in counts.items()}

    async def scale(self, wanted: DesiredCounts, lost: tuple[int, ...] = ()) -> ConnectorDecision:
        """See Connector.  Raises ConnectorUnavailable if the line cannot be written."""
        check_counts(wanted)
        changed = {role: count for role, count in wanted.items() if self._counts.get(role) != count}
        if changed or lost:
            line = {"at": self._clock(), "scale_to": changed, "from": self._counts}
            line |= {"replace": lost} if lost else {}
            await self._write_line(msgspec.json.encode(line) + b"\n")
            # After the write, so that a failed line is tried again with the next tick.
            self._counts |= changed
        decided = {
            role: RoleOutcome(
                wanted=count,
                status=ConnectorStatus.APPLIED if role in changed else ConnectorStatus.UNCHANGED,
            )
            for role, count in wanted.items()
        }
        return ConnectorDecision(roles=decided)

    async def _write_line(self, line: bytes) -> None:
        """Append or log a line. Raises ConnectorUnavailable."""
        if self._path is None:
            log.info(
                "decision not applied (dry run)",
                extra={"fields": {"decision": line.decode().strip()}},
            )
            return
        try:
            # In a thread: a network file system may block for seconds.
            await asyncio.to_thread(_append_line, self._path, self._mode, line)
        except OSError as error:
            raise ConnectorUnavailable(f"{self._path}: {error.strerror or error}") from None

    async def validate(self) -> None:
        """See Connector."""
        if self._path is not None and not self._path.parent.is_dir():
            raise ConnectorError(f"{self._path}: directory {self._path.parent} does not exist")
        if self._path is not None and self._path.exists():
            await asyncio.to_thread(_check_file_format, self._path)


def _check_file_format(path: Path) -> None:
    """Raise ConnectorError for a file with other content."""
    try:
        if not looks_like_lines(path):
            raise ConnectorError(f"{path}: file does not contain JSON lines: name another file")
    except OSError as error:
        raise ConnectorError(f"{path}: {error.strerror}") from None


def _append_line(path: Path, mode: int, line: bytes) -> None:
    """Append a line. Raises OSError."""
    with os.fdopen(append_to_file(path, mode), "ab") as file:
        file.write(line)
