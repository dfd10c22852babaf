"""EDGE: the audit log: lines of JSON, each in the file before its request is answered."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from select_service.access.audit import AuditBudget, AuditLine, AuditSum
from select_service.core.due_task import SECOND_S, DueTask
from select_service.daemon_threads import DaemonThreads
from select_service.errors import AuditUnavailable
from select_service.metrics.access import AuditCounts
from select_service.numbered_files import NumberedFiles
from select_service.whole_file import PRIVATE

WRITE_S = 5.0
"""How long a request waits for its line."""
WAITING_MAX = 1024
"""Lines that wait for a file system that is slow; others cannot be written."""
CLOSE_S = 2.0
"""How long the end of the process waits for the last lines."""

log = logging.getLogger("select_service.audit")


class AuditFiles:
    """The newest lines are in FILE, older ones in FILE.1, FILE.2 and so on.

    Belongs to the event loop; the files belong to a thread of their own.
    """

    def __init__(self, path: Path, *, is_required: bool = False, mode: int = PRIVATE) -> None:
        """is_required: what cannot be written is not done;  mode: of the files

        Raises OSError when the file cannot be written to, RuntimeError where there is no thread.
        """
        self.is_required = is_required
        self._counts = AuditCounts()
        self._path = path
        self._files = NumberedFiles(path, tuple, mode=mode)
        self._threads = DaemonThreads(1, "audit-log")
        self._budget = AuditBudget()
        self._writes: list[Future[None]] = []
        self._summing: asyncio.Task[bool] | None = None
        self._is_failing = False

    @property
    def counts(self) -> AuditCounts:
        self._counts.summed = self._budget.summed
        return self._counts

    async def note(self, line: AuditLine, *, has_begun: bool) -> None:
        """Write the line of an answer, or count it.

        A file system that refuses it is told of, and stops nobody: what the line is about is done.
        has_begun: it has a line of its begin, and is never counted instead
        """
        if has_begun or self._budget.admit(line, monotonic()):
            await self._written([line])

    async def begin(self, line: AuditLine) -> None:
        """Have the line of an action on the disk before it is carried out.

        Raises AuditUnavailable, and counts it.
        """
        if not self._budget.take(line.key, monotonic()):
            self._budget.count(line, monotonic())
            fault = f"the audit log has had too many lines of the key `{line.key}`"
        elif await self._written([line], is_durable=True):
            return
        else:
            fault = "the audit log cannot be written"
        self._counts.refusals += 1
        raise AuditUnavailable(f"{fault}, and --audit-required is given; nothing was done")

    def tasks(self) -> list[DueTask]:
        """What is to be done again and again."""
        return [DueTask("audit", SECOND_S, self._step)]

    async def close(self) -> None:
        """Write what was counted, for CLOSE_S at most."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._written(list(self._budget.due(monotonic(), is_end=True)))
                await self._on_thread(self._files.close)
        except TimeoutError:
            log.error("audit log not closed", extra={"fields": {"path": str(self._path)}})
        self._threads.shutdown(wait=False)

    def _step(self, now: float) -> bool:
        sums = list(self._budget.due(now))
        if sums:
            self._summing = asyncio.create_task(self._written(sums))
        return False

    async def _written(
        self, lines: Sequence[AuditLine | AuditSum], *, is_durable: bool = False
    ) -> bool:
        """Whether the lines are in the file.  What went wrong is logged once."""
        try:
            async with asyncio.timeout(WRITE_S):
                await self._on_thread(self._write, lines, is_durable)
        except OSError as error:  # a timeout is one
            self._counts.failures += len(lines)
            if not self._is_failing:
                text = str(error) or f"it did not answer within {WRITE_S:g} s"
                fields = {"path": str(self._path), "error": text}
                log.error("the audit log cannot be written", extra={"fields": fields})
            self._is_failing = True
            return False
        self._counts.lines += len(lines)
        self._is_failing = False
        return True

    async def _on_thread(self, act: Callable[..., None], *arguments: Any) -> None:
        """Raises OSError."""
        if len(self._writes) >= WAITING_MAX:
            self._writes = [each for each in self._writes if not each.done()]
            if len(self._writes) >= WAITING_MAX:
                raise TimeoutError(f"{WAITING_MAX} lines wait for it")
        self._writes.append(self._threads.submit(act, *arguments))
        await asyncio.wrap_future(self._writes[-1])

    def _write(self, lines: Sequence[AuditLine | AuditSum], is_durable: bool) -> None:
        """Raises OSError."""
        for line in lines:
            self._files.write(msgspec.json.encode(line))
        self._files.flush(is_durable=is_durable)
