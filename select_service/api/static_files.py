"""Files of the package that pages load.  Those made by others are stored compressed."""

import asyncio
import gzip
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from select_service.errors import NotFound
from select_service.http.endpoint import PathParameter

HTML = "text/html; charset=utf-8"
STYLES = "text/css; charset=utf-8"
JAVASCRIPT = "text/javascript; charset=utf-8"
IMAGE = "image/svg+xml"
_TYPES = {"html": HTML, "css": STYLES, "js": JAVASCRIPT, "svg": IMAGE}
FILES_MAX = 64
"""Files that are kept in memory as they are sent, each in two forms."""


class StaticFiles:
    """Files by the names under which they are asked for."""

    def __init__(self, files: Mapping[str, Path], max_age_s: int) -> None:
        """files: where each is;  max_age_s: how long browsers may keep them unasked"""
        self._files = files
        self._caching = f"public, max-age={max_age_s}" if max_age_s else "no-cache"

    def parameter(self, example: str) -> PathParameter:
        """The name of a file in a path."""
        names = Literal[tuple(self._files)]  # type: ignore[valid-type]
        return PathParameter("file", names, "Name of the file.", example, self._known)

    def _known(self, segment: str) -> str:
        if segment not in self._files:
            raise NotFound(f"the page has no file `{segment[:64]}`")
        return segment

    async def answer(self, request: Request, name: str) -> Response:
        compressed = "gzip" in request.headers.get("accept-encoding", "")
        data = await asyncio.to_thread(_content, self._files[name], compressed)
        headers = {
            "vary": "Accept-Encoding",
            "cache-control": self._caching,
            "x-content-type-options": "nosniff",
        }
        if compressed:
            headers["content-encoding"] = "gzip"
        return Response(data, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)


@lru_cache(maxsize=2 * FILES_MAX)
def _content(file: Path, compressed: bool) -> bytes:
    stored = file.read_bytes()
    if file.name.endswith(".gz"):
        return stored if compressed else gzip.decompress(stored)
    return gzip.compress(stored, mtime=0) if compressed else stored
