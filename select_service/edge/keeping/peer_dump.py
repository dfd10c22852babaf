"""One download of a peer's dump, a task of its own that nothing waits for.

A peer may stall, lie or never end: every wait has a time limit, what is read goes straight into a
loader that bounds it, on a thread, and whoever started the download may end it at any moment.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

from indexer.dumps.compact_dump import MEDIA_TYPE
from indexer.dumps.compact_load import CompactLoader, DumpError, LoadLimits
from indexer.dumps.held_blocks import DumpedPartition
from indexer.dumps.json_load import JsonLoader
from select_service.clocks import heard_by_peer
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError
from select_service.edge.keeping.reading import Reading
from select_service.outgoing.connection_pool import Answer

ANSWER_S_MAX = 30.0
"""For the head of the answer: the reference writes all of a large dump before it sends any."""
SILENCE_S_MAX = 5.0
"""Without a byte of the body for so long, a peer is given up."""
BODY_BYTES_MAX = 16 << 30
ERROR_CHARS_MAX = 200
ACCEPT = f"{MEDIA_TYPE}, application/json;q=0.5"


class DownloadedDump(NamedTuple):
    """A dump that was read to its end."""

    reading: Reading
    form: Literal["compact", "json"]
    partitions: list[DumpedPartition]
    bad_entries: int

    @property
    def blocks(self) -> int:
        return sum(partition.blocks for partition in self.partitions)


class Download:
    """Begins at once; `answer` or `error` is there once it `is_over`."""

    def __init__(self, url: str, limits: LoadLimits, http: HttpClient) -> None:
        self.url = url
        self.answer: DownloadedDump | None = None
        self.error = "the download broke off"
        self.reading = Reading(url)
        self._limits = limits
        self._http = http
        self._task = asyncio.create_task(self._run())

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        """End it, whatever it waits for; what it has read is forgotten."""
        self.reading.unwanted = True
        self._task.cancel()

    async def _run(self) -> None:
        try:
            self.answer = await self._read()
        except HttpError as error:
            self.error = str(error)[:ERROR_CHARS_MAX]
        except (DumpError, MemoryError) as error:  # the latter: the dump is too much
            self.error = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]

    async def _read(self) -> DownloadedDump:
        """Raises HttpError, DumpError, MemoryError."""
        try:
            async with (
                asyncio.timeout(ANSWER_S_MAX) as patience,
                self._http.get(
                    self.url.rstrip("/") + "/dump", ACCEPT, purpose="recovery", with_key=True
                ) as answer,
            ):
                patience.reschedule(None)
                return await self._load(answer)
        except TimeoutError:
            raise HttpError("timeout", f"no answer within {ANSWER_S_MAX:g} s") from None

    async def _load(self, answer: Answer) -> DownloadedDump:
        is_compact = answer.headers.get("content-type", "").startswith(MEDIA_TYPE)
        loader: CompactLoader | JsonLoader
        if is_compact:
            loader = CompactLoader(self._limits, heard_by_peer)
        else:
            loader = JsonLoader(self._limits)
        async for data in _chunks(answer):
            await asyncio.to_thread(loader.feed, data)
            self.reading.note(len(data), loader)
            if self.reading.bytes > BODY_BYTES_MAX:
                raise DumpError(f"more than {BODY_BYTES_MAX} bytes")
        await asyncio.to_thread(loader.finish)
        form: Literal["compact", "json"] = "compact" if is_compact else "json"
        return DownloadedDump(self.reading, form, loader.partitions, loader.bad_entries)


async def _chunks(answer: Answer) -> AsyncIterator[bytes]:
    """What has come, again and again until the end.  Raises HttpError when nothing comes."""
    while True:
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                data = await answer.read_some()
        except TimeoutError:
            raise HttpError("timeout", f"silent for {SILENCE_S_MAX:g} s") from None
        if not data:
            return
        yield data
