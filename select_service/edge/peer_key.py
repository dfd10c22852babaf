"""EDGE: the key that this process presents to other selectors, read anew for each request."""

import asyncio
from pathlib import Path

from select_service.access.presenting import key_in
from select_service.edge.file_changes import FileThread
from select_service.edge.http_error import HttpError

READ_S = 5.0
"""How long a request waits for the file."""


class PeerKey:
    """Belongs to one event loop, until `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = FileThread("peer_api_key_file", [path])
        self._reading: asyncio.Task[str] | None = None

    async def authorization(self) -> str:
        """The value of the header.  Requests of one moment share a reading.  Raises HttpError."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._thread.run(lambda: key_in(self._path)))
        try:
            async with asyncio.timeout(READ_S):
                key = await asyncio.shield(self._reading)
        except ValueError as error:
            raise HttpError("unreadable", f"the key for peers: {error}") from None
        except TimeoutError:
            text = f"the key for peers: {self._path} does not answer within {READ_S:g} s"
            raise HttpError("unreadable", text) from None
        return f"Bearer {key}"

    async def close(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._thread.close()
