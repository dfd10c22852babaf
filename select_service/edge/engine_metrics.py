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
from select_service.core.engines.engine_text import EngineTextError, readings_of
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError

BODY_BYTES_MAX = 4 << 20
"""vLLM writes 50 KB per engine core."""
SCRAPES_MAX = 256
"""At the same time.  Beyond so many endpoints that hang, the others are asked less often."""
ACCEPT = "text/plain; version=0.0.4"
RESULTS = ("ok", "timeout", "unreachable", "http_status", "too_large", "unreadable", "no_metric")

log = logging.getLogger("select_service.engine_metrics")


class EngineLoadOwner(Protocol):
    """What keeps the readings: the selector.  Called on the event loop only.

    A target that is no longer wanted when its answer comes is for the owner to ignore.
    """

    def engine_targets(self) -> list[EngineTarget]: ...
    def engine_read(
        self, target: EngineTarget, readings: Mapping[int, EngineReading], now: float
    ) -> None: ...
    def engine_failed(self, target: EngineTarget, error: str, now: float) -> None: ...


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
        self._broken: dict[int, str] = {}  # worker_id -> the URL whose failure has been logged
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
                targets = self._owner.engine_targets()
                self._forget_all_but(targets)
                await self._ask_all(targets, scrapes)
                await asyncio.sleep(due - monotonic())

    async def _ask_all(
        self,
        targets: Sequence[EngineTarget],
        scrapes: asyncio.TaskGroup,
    ) -> None:
        """Begin one scrape of each, evenly over the interval."""
        begun = monotonic()
        for i, target in enumerate(targets):
            wait_s = begun + i * self._interval_s / len(targets) - monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if target.worker_id not in self._asked:
                await self._free.acquire()
                self._asked.add(target.worker_id)
                scrapes.create_task(self._ask(target))

    async def _ask(self, target: EngineTarget) -> None:
        try:
            text = await self._http.body(
                target.url, accept=ACCEPT, bytes_max=BODY_BYTES_MAX, timeout_s=self._timeout_s
            )
            readings = readings_of(text, target.dp_ranks)
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
        self._owner.engine_read(target, readings, monotonic())
        if self._broken.pop(target.worker_id, None) is not None:
            fields = {"worker_id": target.worker_id, "url": target.url}
            log.info("engine metrics are readable again", extra={"fields": fields})

    def _failed(self, target: EngineTarget, result: str, error: str) -> None:
        self.counts[result] += 1
        self._owner.engine_failed(target, error, monotonic())
        if self._broken.get(target.worker_id) == target.url:
            return
        if target not in self._owner.engine_targets():
            return  # it left while it was asked
        self._broken[target.worker_id] = target.url
        fields = {"worker_id": target.worker_id, "url": target.url, "error": error}
        log.warning("engine metrics cannot be read", extra={"fields": fields})

    def _forget_all_but(self, targets: Sequence[EngineTarget]) -> None:
        """An episode ends without a word when the worker leaves or its metrics move."""
        urls = {target.worker_id: target.url for target in targets}
        for worker_id in [w for w, url in self._broken.items() if urls.get(w) != url]:
            del self._broken[worker_id]
