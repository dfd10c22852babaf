"""Token in a file: an API key, or the token of a service account."""

import asyncio
from pathlib import Path

from select_service.base.command_line import file_error_text
from select_service.base.file_thread import FileThread
from select_service.files.atomic_file import read_whole

TOKEN_BYTES_MAX = 1 << 16


def read_api_key(path: Path) -> str:
    """Return the key in the file.  Raises ValueError with one line.  Blocks."""
    try:
        key = read_whole(path, TOKEN_BYTES_MAX).decode("ascii").strip()
    except OSError as error:
        raise ValueError(file_error_text(path, error)) from None
    except ValueError:
        key = ""
    if not key.isprintable() or not key or " " in key:
        raise ValueError(f"`{path}` does not contain a key: expected a single word")
    return key


class TokenFile:
    """Reader of a token file.  Belongs to one event loop, until `close`.

    The file is read anew for requests, since tokens rotate, and on a separate thread, since a file
    system may hang.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = FileThread("token_file", [path])
        self._reading: asyncio.Task[str] | None = None

    async def read_token(self, timeout_s: float) -> str:
        """Return the token; concurrent requests share one read.

        Raises TimeoutError, and ValueError with one line.
        """
        # No caching beyond one read: a rotated token must work with the next request.
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(
                self._thread.run_on_thread(lambda: read_api_key(self._path))
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
