"""EDGE: the key that this process presents to other selectors, read anew for each request."""

import asyncio
from pathlib import Path

from select_service.edge.http_error import HttpError
from select_service.whole_file import read_whole

BYTES_MAX = 4096


async def authorization(path: Path) -> str:
    """The value of the header.  Raises HttpError."""
    try:
        content = await asyncio.to_thread(read_whole, path, BYTES_MAX)
        key = content.decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise HttpError("unreadable", f"the key for peers cannot be read: {error}") from None
    if not key.isprintable() or not key or " " in key:
        raise HttpError("unreadable", f"{path} does not hold a key, which is one word")
    return f"Bearer {key}"
