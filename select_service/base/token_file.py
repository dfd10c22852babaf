"""Token in a file, such as an API key, for the requests of one event loop."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from select_service.base.file_thread import FileThread


class TokenFile:
    """Reader of a token file.  Belongs to one event loop, until `close`.

    The file is read anew for requests, since tokens rotate, and on a separate thread, since a file
    system may hang.
    """

    def __init__(self, name: str, path: Path, read: Callable[[Path], str]) -> None:
        """name: name of the setting that refers to the file
        read: function that returns the token in a file; may block
        """
        self.path = path
        self._read = read
        self._thread = FileThread(name, [path])
        self._reading: asyncio.Task[str] | None = None

    async def read_token(self, timeout_s: float) -> str:
        """Return the token; concurrent requests share one read.

        Raises TimeoutError, and the errors of `read`.
        """
        # No caching beyond one read: a rotated token must work with the next request.
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(
                self._thread.run_on_thread(lambda: self._read(self.path))
            )
        async with asyncio.timeout(timeout_s):
            # Shielded: a request that times out must not cancel the read that other requests share.
            return await asyncio.shield(self._reading)

    async def close(self) -> None:
        """Cancel a running read and stop the thread."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._thread.close_thread()
