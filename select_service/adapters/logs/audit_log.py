"""Audit log files: one JSON line per audited request, written before the request is answered."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from select_service.auth.audit_lines import AuditBudget, AuditLine, AuditSum
from select_service.base.daemon_threads import DaemonThreads
from select_service.base.errors import AuditUnavailable
from select_service.core.periodic_task import SECOND_S, PeriodicTask
from select_service.files.atomic_file import PRIVATE_MODE
from select_service.files.rotating_file import RotatingFile
from select_service.metrics.access import AuditCounts

WRITE_S = 5.0
"""Time limit for a request to get its line written, in seconds."""
QUEUED_WRITES_MAX = 1024
"""Maximum number of writes queued for a slow file system; further writes fail."""
CLOSE_S = 2.0
"""Time limit for the last lines at shutdown, in seconds."""

log = logging.getLogger("select_service.audit")


class AuditLogFiles:
    """Rotating audit log: the newest lines are in FILE, older lines in FILE.1, FILE.2 and so on.

    Belongs to the event loop; a separate thread writes the files.
    """

    def __init__(self, path: Path, *, is_required: bool = False, mode: int = PRIVATE_MODE) -> None:
        """Open the log.

        is_required: True refuses actions without a written audit line
        mode: permission bits of the files
        Raises OSError when the file cannot be written, RuntimeError when no thread can be started.
        """
        self.is_required = is_required
        self._counts = AuditCounts()
        self._path = path
        self._files = RotatingFile(path, tuple, mode=mode)
        self._threads = DaemonThreads(1, "audit-log")
        self._budget = AuditBudget()
        self._writes: list[Future[None]] = []
        self._summing: asyncio.Task[bool] | None = None
        self._is_failing = False

    @property
    def current_counts(self) -> AuditCounts:
        """Counters for the metrics."""
        self._counts.summed = self._budget.n_summed
        return self._counts

    async def record_answered(self, line: AuditLine, *, has_begun: bool) -> None:
        """Write the line of an answered request, or count it in a summary line.

        A write error is logged and does not block requests: the audited action has already
        happened.
        has_begun: True when a begin line was written before; such a line is never summarised
        """
        # A begin line without an end would look like an action that never finished, so the end
        # bypasses the budget.
        if has_begun or self._budget.admit_line(line, monotonic()):
            await self._write_on_thread([line])

    async def record_begin(self, line: AuditLine) -> None:
        """Write the line of an action to disk before the action is carried out.

        Raises AuditUnavailable, which is counted as a refusal.
        """
        if not self._budget.take_line(line.key, monotonic()):
            self._budget.count_line(line, monotonic())
            fault = f"audit log limit reached for the key `{line.key}`"
        elif await self._write_on_thread([line], is_durable=True):
            return
        else:
            fault = "audit log is not writable"
        self._counts.refusals += 1
        raise AuditUnavailable(f"{fault}; --audit-required is set, so nothing was done")

    def periodic_tasks(self) -> list[PeriodicTask]:
        """Return the periodic tasks of this log."""
        return [PeriodicTask("audit", SECOND_S, self._write_summaries)]

    async def close_log(self) -> None:
        """Write the summary lines that are left, within CLOSE_S, and close the files."""
        try:
            # Summary lines are the only trace of merged requests, so shutdown waits a moment for
            # them.
            async with asyncio.timeout(CLOSE_S):
                await self._write_on_thread(
                    list(self._budget.take_due_sums(monotonic(), is_end=True))
                )
                await self._on_thread(self._files.close)
        except TimeoutError:
            log.error("audit log not closed", extra={"fields": {"path": str(self._path)}})
        # The writer may hang in the file system; a daemon thread does not keep the process alive.
        self._threads.shutdown(wait=False)

    def _write_summaries(self, now: float) -> bool:
        sums = list(self._budget.take_due_sums(now))
        if sums:
            self._summing = asyncio.create_task(self._write_on_thread(sums))
        return False

    async def _write_on_thread(
        self, lines: Sequence[AuditLine | AuditSum], *, is_durable: bool = False
    ) -> bool:
        """Write lines on the thread; return whether the write succeeded.

        Only the first of consecutive failures is logged.
        """
        try:
            # The write itself cannot be cancelled; only the request stops waiting for it.
            async with asyncio.timeout(WRITE_S):
                await self._on_thread(self._write_lines, lines, is_durable)
        except OSError as error:  # TimeoutError is an OSError
            self._counts.failures += len(lines)
            if not self._is_failing:
                text = str(error) or f"no answer within {WRITE_S:g} s"
                fields = {"path": str(self._path), "error": text}
                log.error("audit log write failed", extra={"fields": fields})
            self._is_failing = True
            return False
        self._counts.lines += len(lines)
        self._is_failing = False
        return True

    async def _on_thread(self, act: Callable[..., None], *arguments: Any) -> None:
        """Run a function on the writer thread and wait for its end.  Raises OSError."""
        # A write to a hanging disk never returns: without a limit, every request would leave one
        # more queued write behind, although its own wait has timed out.
        if len(self._writes) >= QUEUED_WRITES_MAX:
            self._writes = [each for each in self._writes if not each.done()]
            if len(self._writes) >= QUEUED_WRITES_MAX:
                raise TimeoutError(f"{QUEUED_WRITES_MAX} writes are already queued")
        self._writes.append(self._threads.submit(act, *arguments))
        await asyncio.wrap_future(self._writes[-1])

    def _write_lines(self, lines: Sequence[AuditLine | AuditSum], is_durable: bool) -> None:
        """Write lines and flush the file.  Raises OSError."""
        for line in lines:
            self._files.add_line(msgspec.json.encode(line))
        self._files.flush(is_durable=is_durable)
