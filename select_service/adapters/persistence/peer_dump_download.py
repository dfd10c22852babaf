"""Download of a peer's dump, as a separate task.

A peer may stall, send garbage or never finish: every wait has a time limit, the data goes straight
into a size-limited loader on a thread, and the download can be cancelled at any moment.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

from indexer.dumps.compact_head import DumpError
from indexer.dumps.compact_reader import CompactReader, LoadLimits
from indexer.dumps.compact_writer import MEDIA_TYPE
from indexer.dumps.json_reader import JsonReader
from indexer.dumps.recovered_blocks import DumpedPartition
from select_service.adapters.http_get import HttpClient
from select_service.adapters.persistence.recovery_progress import RecoveryProgress
from select_service.base.clocks import peer_event_time
from select_service.net.http_client.connection_pool import HttpResponse
from select_service.net.http_client.http_error import HttpError

ANSWER_S_MAX = 30.0
"""Time limit for the response head, in seconds: Dynamo writes a large dump to the end before
sending the first byte.
"""
SILENCE_S_MAX = 5.0
"""Maximum pause between bytes of the body, in seconds."""
BODY_BYTES_MAX = 16 << 30
ERROR_CHARS_MAX = 200
ACCEPT = f"{MEDIA_TYPE}, application/json;q=0.5"


class DownloadedDump(NamedTuple):
    """Completely read dump."""

    progress: RecoveryProgress
    form: Literal["compact", "json"]
    partitions: list[DumpedPartition]
    bad_entries: int

    @property
    def blocks(self) -> int:
        return sum(partition.blocks for partition in self.partitions)


class PeerDumpDownload:
    """Download that starts at once; `answer` or `error` is set when `is_over`."""

    def __init__(self, url: str, limits: LoadLimits, http: HttpClient) -> None:
        self.url = url
        self.answer: DownloadedDump | None = None
        self.error = "download aborted"
        self.progress = RecoveryProgress(url)
        self._limits = limits
        self._http = http
        self._task = asyncio.create_task(self._download())

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        """Cancel the download and discard its data."""
        self.progress.is_cancelled = True
        self._task.cancel()

    async def _download(self) -> None:
        try:
            self.answer = await self._request_dump()
        except HttpError as error:
            self.error = str(error)[:ERROR_CHARS_MAX]
        except (DumpError, MemoryError) as error:  # MemoryError: the dump is too large
            self.error = f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX]

    async def _request_dump(self) -> DownloadedDump:
        """Request and load the dump.  Raises HttpError, DumpError, MemoryError."""
        try:
            async with (
                asyncio.timeout(ANSWER_S_MAX) as patience,
                self._http.open_get(
                    self.url.rstrip("/") + "/dump", ACCEPT, purpose="recovery", with_key=True
                ) as answer,
            ):
                # The limit covers the head only; the body has a limit per pause, since a dump may
                # be large.
                patience.reschedule(None)
                return await self._load_dump(answer)
        except TimeoutError:
            raise HttpError("timeout", f"no answer within {ANSWER_S_MAX:g} s") from None

    async def _load_dump(self, answer: HttpResponse) -> DownloadedDump:
        is_compact = answer.headers.get("content-type", "").startswith(MEDIA_TYPE)
        loader: CompactReader | JsonReader
        if is_compact:
            loader = CompactReader(self._limits, peer_event_time)
        else:
            loader = JsonReader(self._limits)
        async for data in _read_chunks(answer):
            # One chunk at a time: reading continues only after the loader has taken it, which slows
            # the peer.
            await asyncio.to_thread(loader.feed, data)
            self.progress.add_bytes(len(data), loader)
            if self.progress.bytes > BODY_BYTES_MAX:
                raise DumpError(f"dump exceeds {BODY_BYTES_MAX} bytes")
        await asyncio.to_thread(loader.finish)
        form: Literal["compact", "json"] = "compact" if is_compact else "json"
        return DownloadedDump(self.progress, form, loader.partitions, loader.bad_entries)


async def _read_chunks(answer: HttpResponse) -> AsyncIterator[bytes]:
    """Yield body chunks until the end.  Raises HttpError after a pause of SILENCE_S_MAX."""
    while True:
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                data = await answer.read_some()
        except TimeoutError:
            raise HttpError("timeout", f"no data for {SILENCE_S_MAX:g} s") from None
        if not data:
            return
        yield data
