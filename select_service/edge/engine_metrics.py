"""EDGE: asks every engine that serves Prometheus metrics about its load, again and again.

Every worker is asked once per interval; the workers are spread over the interval, so that a large
fleet is no burst.  A worker that takes long is not asked a second time meanwhile, and nobody waits
for it.  Whatever an endpoint does wrong is one failed scrape: it is counted, told to the core and,
at its beginning and its end, to the log.  A reading that is not renewed goes stale in the core.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Protocol

from select_service.core.engines.engine_load import (
    ERROR_CHARS_MAX,
    EngineReading,
    EngineTarget,
)
from select_service.core.engines.engine_text import EngineTextError, reading_steps
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError
from select_service.outgoing.reading_budget import reading_budget

BODY_BYTES_MAX = 4 << 20
"""vLLM writes 50 KB per engine core."""
SCRAPES_MAX = 256
"""At the same time.  Beyond so many endpoints that hang, the others are asked less often."""
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
    """What keeps the readings.  Called on the event loop only.

    A target that is no longer wanted when its answer comes is for the owner to ignore.
    """

    def workers(self) -> list[int]:
        """Those that have metrics, by id."""

    def target(self, worker_id: int) -> EngineTarget | None:
        """What to ask; None when this worker is not to be asked."""

    def read(
        self, target: EngineTarget, readings: Mapping[int, EngineReading], now: float
    ) -> None: ...
    def failed(self, target: EngineTarget, error: str, now: float) -> None: ...


class EngineMetrics:
    """Belongs to the thread of the event loop."""

    def __init__(
        self, owner: EngineLoadOwner, http: HttpClient, *, interval_s: float, timeout_s: float
    ) -> None:
        """interval_s: from one scrape of a worker to its next.  timeout_s: for one, as a whole."""
        self.counts = dict.fromkeys(RESULTS, 0)
        """Scrapes that ended, by result."""
        self._owner = owner
        self._http = http
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._asked: set[int] = set()
        self._broken: dict[int, str] = {}
        """By worker id, the URL whose failure has been logged.  An episode ends without a word when
        the worker leaves or its metrics move."""
        self._free = asyncio.Semaphore(SCRAPES_MAX)

    def start(self) -> asyncio.Task[None]:
        """The task ends only by `stop`, or with the error that should not have happened."""
        assert self._task is None
        self._task = asyncio.create_task(self._ask_forever())
        return self._task

    async def stop(self) -> None:
        """Break off what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _ask_forever(self) -> None:
        async with asyncio.TaskGroup() as scrapes:
            while True:
                due = monotonic() + self._interval_s
                workers = self._owner.workers()
                for worker_id in self._broken.keys() - set(workers):
                    del self._broken[worker_id]
                await self._ask_all(workers, scrapes)
                await asyncio.sleep(due - monotonic())

    async def _ask_all(self, workers: Sequence[int], scrapes: asyncio.TaskGroup) -> None:
        """Begin one scrape of each, evenly over the interval, and in a turn of its own."""
        begun = monotonic()
        for i, worker_id in enumerate(workers):
            wait_s = begun + i * self._interval_s / len(workers) - monotonic()
            await asyncio.sleep(max(0.0, wait_s))
            if worker_id in self._asked:
                continue
            await self._free.acquire()
            target = self._owner.target(worker_id)
            if target is None:
                self._free.release()
                continue
            self._asked.add(worker_id)
            scrapes.create_task(self._ask(target))

    async def _ask(self, target: EngineTarget) -> None:
        try:
            text = await self._http.body(
                target.url,
                accept=ACCEPT,
                bytes_max=BODY_BYTES_MAX,
                timeout_s=self._timeout_s,
                purpose="metrics",
            )
            steps = reading_steps(text, target.dp_ranks)
            readings = await reading_budget().result_of(steps)
        except HttpError as error:
            self._failed(target, error.failure, str(error)[:ERROR_CHARS_MAX])
        except EngineTextError as error:
            self._failed(target, error.result, str(error)[:ERROR_CHARS_MAX])
        else:
            self._succeeded(target, readings)
        finally:
            self._asked.discard(target.worker_id)
            self._free.release()

    def _succeeded(self, target: EngineTarget, readings: Mapping[int, EngineReading]) -> None:
        self.counts["ok"] += 1
        self._owner.read(target, readings, monotonic())
        if self._broken.pop(target.worker_id, None) == target.url:
            fields = {"worker_id": target.worker_id, "url": target.url}
            log.info("engine metrics are readable again", extra={"fields": fields})

    def _failed(self, target: EngineTarget, result: str, error: str) -> None:
        self.counts[result] += 1
        self._owner.failed(target, error, monotonic())
        if self._broken.get(target.worker_id) == target.url:
            return
        if self._owner.target(target.worker_id) != target:
            return  # it left while it was asked
        self._broken[target.worker_id] = target.url
        fields = {"worker_id": target.worker_id, "url": target.url, "error": error}
        log.warning("engine metrics cannot be read", extra={"fields": fields})
