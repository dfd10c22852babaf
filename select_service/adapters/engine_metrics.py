"""Scrapes the load of every engine that serves Prometheus metrics.

Every worker is scraped once per interval; scrapes are spread over the interval so that a large
fleet causes no burst.  A slow worker is not scraped a second time in parallel and delays no other
worker.  Any error of an endpoint is one failed scrape: the failure is counted and passed to the
core, and the log has one line for the first failure and one for the recovery.  A reading that is
not renewed becomes stale in the core.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Protocol

from select_service.adapters.http_get import HttpClient
from select_service.core.workers.engine_load import ERROR_CHARS_MAX, EngineReading, EngineTarget
from select_service.core.workers.metrics_parser import MetricsTextError, parse_in_steps
from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.reading_budget import reading_budget

BODY_BYTES_MAX = 4 << 20
"""Size limit of a metrics page; vLLM writes about 50 KB per engine core."""
SCRAPES_MAX = 256
"""Maximum number of concurrent scrapes.

With more hanging endpoints, others are scraped less often.
"""
ACCEPT = "text/plain; version=0.0.4"
RESULTS = (
    "ok",
    "timeout",
    "unreachable",
    "http_status",
    "too_large",
    "unreadable",
    "no_metric",
    "not_allowed",
)

log = logging.getLogger("select_service.engine_metrics")


class EngineLoadOwner(Protocol):
    """Owner of the engine readings; called on the event loop only.

    The owner ignores the result of a target removed during the scrape.
    """

    def workers_to_read(self) -> list[int]:
        """Return the ids of the workers that have metrics."""

    def find_target(self, worker_id: int) -> EngineTarget | None:
        """Return the scrape target of a worker, or None when the worker must not be scraped."""

    def accept_readings(
        self, target: EngineTarget, readings: Mapping[int, EngineReading], now: float
    ) -> None: ...
    def record_failure(self, target: EngineTarget, error: str, now: float) -> None: ...


class EngineMetricsScraper:
    """Scraper of all engines.  Belongs to the thread of the event loop."""

    def __init__(
        self, owner: EngineLoadOwner, http: HttpClient, *, interval_s: float, timeout_s: float
    ) -> None:
        """interval_s: seconds between two scrapes of a worker
        timeout_s: time limit of a whole scrape, seconds
        """
        self.counts = dict.fromkeys(RESULTS, 0)
        """Completed scrapes by result."""
        self._owner = owner
        self._http = http
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._running_scrapes: set[int] = set()
        self._broken: dict[int, str] = {}
        """URL of the logged failure, by worker id.

        The entry is dropped without a log line when the worker leaves or its metrics URL changes.
        """
        self._free = asyncio.Semaphore(SCRAPES_MAX)

    def start(self) -> asyncio.Task[None]:
        """Start the task, which ends only by `stop` or with an unexpected exception."""
        assert self._task is None
        self._task = asyncio.create_task(self._scrape_forever())
        return self._task

    async def stop(self) -> None:
        """Cancel running scrapes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _scrape_forever(self) -> None:
        async with asyncio.TaskGroup() as scrapes:
            while True:
                due = monotonic() + self._interval_s
                workers = self._owner.workers_to_read()
                # Without this, a fleet with changing ids would grow the table for ever.
                for worker_id in self._broken.keys() - set(workers):
                    del self._broken[worker_id]
                await self._scrape_all(workers, scrapes)
                await asyncio.sleep(due - monotonic())

    async def _scrape_all(self, workers: Sequence[int], scrapes: asyncio.TaskGroup) -> None:
        """Start one scrape per worker, spread evenly over the interval."""
        begun = monotonic()
        for i, worker_id in enumerate(workers):
            wait_s = begun + i * self._interval_s / len(workers) - monotonic()
            await asyncio.sleep(max(0.0, wait_s))
            # The previous scrape still runs; a second one would only load a slow engine more.
            if worker_id in self._running_scrapes:
                continue
            # Acquired before `target`, which may change or disappear while this waits.
            await self._free.acquire()
            target = self._owner.find_target(worker_id)
            if target is None:
                self._free.release()
                continue
            self._running_scrapes.add(worker_id)
            scrapes.create_task(self._scrape_worker(target))

    async def _scrape_worker(self, target: EngineTarget) -> None:
        try:
            text = await self._http.get_body(
                target.url,
                accept=ACCEPT,
                bytes_max=BODY_BYTES_MAX,
                timeout_s=self._timeout_s,
                purpose="metrics",
            )
            steps = parse_in_steps(text, target.dp_ranks)
            readings = await reading_budget().run_steps(steps)
        except HttpError as error:
            self._record_failure(target, error.metric_label, str(error)[:ERROR_CHARS_MAX])
        except MetricsTextError as error:
            self._record_failure(target, error.result, str(error)[:ERROR_CHARS_MAX])
        else:
            self._record_success(target, readings)
        finally:
            self._running_scrapes.discard(target.worker_id)
            self._free.release()

    def _record_success(self, target: EngineTarget, readings: Mapping[int, EngineReading]) -> None:
        self.counts["ok"] += 1
        self._owner.accept_readings(target, readings, monotonic())
        if self._broken.pop(target.worker_id, None) == target.url:
            fields = {"worker_id": target.worker_id, "url": target.url}
            log.info("engine metrics recovered", extra={"fields": fields})

    def _record_failure(self, target: EngineTarget, result: str, error: str) -> None:
        self.counts[result] += 1
        self._owner.record_failure(target, error, monotonic())
        if self._broken.get(target.worker_id) == target.url:
            return
        if self._owner.find_target(target.worker_id) != target:
            return  # the worker left during the scrape
        self._broken[target.worker_id] = target.url
        fields = {"worker_id": target.worker_id, "url": target.url, "error": error}
        log.warning("engine metrics scrape failed", extra={"fields": fields})
