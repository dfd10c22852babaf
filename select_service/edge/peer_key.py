"""EDGE: the key that this process presents to other selectors, read anew for each request."""

import asyncio
from pathlib import Path

from select_service.access.presenting import key_in
from select_service.edge.http_error import HttpError


async def authorization(path: Path) -> str:
    """The value of the header.  Raises HttpError."""
    try:
        key = await asyncio.to_thread(key_in, path)
    except ValueError as error:
        raise HttpError("unreadable", f"the key for peers: {error}") from None
    return f"Bearer {key}"
