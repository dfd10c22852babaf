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

import aiohttp
from yarl import URL

from select_service.core.engines.engine_load import (
    ERROR_CHARS_MAX,
    EngineReading,
    EngineTarget,
)
from select_service.core.engines.engine_text import EngineTextError, readings_of

BODY_BYTES_MAX = 4 << 20
"""vLLM writes 50 KB per engine core."""
READ_BYTES = 1 << 17
SCRAPES_MAX = 256
"""At the same time.  Beyond so many endpoints that hang, the others are asked less often."""
HEADERS = {"accept": "text/plain; version=0.0.4", "accept-encoding": "identity"}
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


class ScrapeError(Exception):
    """An endpoint could not be read.  `result`: why, one of RESULTS."""

    def __init__(self, result: str, error: str) -> None:
        super().__init__(error)
        self.result = result


class EngineMetrics:
    """Belongs to the thread of the event loop."""

    def __init__(self, owner: EngineLoadOwner, *, interval_s: float, timeout_s: float) -> None:
        """interval_s: from one scrape of a worker to its next.  timeout_s: for one, as a whole."""
        self.counts = dict.fromkeys(RESULTS, 0)
        """Scrapes that ended, by result."""
        self._owner = owner
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
        async with _session() as session, asyncio.TaskGroup() as scrapes:
            while True:
                due = monotonic() + self._interval_s
                targets = self._owner.engine_targets()
                self._forget_all_but(targets)
                await self._ask_all(targets, session, scrapes)
                await asyncio.sleep(due - monotonic())

    async def _ask_all(
        self,
        targets: Sequence[EngineTarget],
        session: aiohttp.ClientSession,
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
                scrapes.create_task(self._ask(target, session))

    async def _ask(self, target: EngineTarget, session: aiohttp.ClientSession) -> None:
        try:
            text = await _fetch(session, target.url, self._timeout_s)
            readings = readings_of(text, target.dp_ranks)
        except (ScrapeError, EngineTextError) as error:
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


def _session() -> aiohttp.ClientSession:
    """No cookies, proxies or decompression; no limit of connections but that of scrapes."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=HEADERS,
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        read_bufsize=READ_BYTES,
    )


async def _fetch(session: aiohttp.ClientSession, url: str, timeout_s: float) -> bytes:
    """The body of a complete answer with status 200.  Raises ScrapeError."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(URL(url, encoded=True), allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise ScrapeError("http_status", f"status {response.status}")
            return await _body(response)
    except TimeoutError:
        raise ScrapeError("timeout", f"no complete answer within {timeout_s:g} s") from None
    except aiohttp.ClientResponseError as error:  # the rest of its text quotes the answer
        raise ScrapeError("unreadable", f"not HTTP: {error.message.partition(':')[0]}") from None
    except aiohttp.ClientPayloadError:
        raise ScrapeError("unreadable", "the answer breaks off") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # the last: of URLs
        raise ScrapeError("unreachable", f"{type(error).__name__}: {error}") from None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Raises ScrapeError, ClientError."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise ScrapeError("unreadable", f"the answer is encoded as {encoding}, which nobody asked")
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise ScrapeError("too_large", f"the answer has more than {BODY_BYTES_MAX} bytes")
    return bytes(body)
