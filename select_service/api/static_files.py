"""Static files of the package for the pages.  Third-party files are stored compressed."""

import asyncio
import gzip
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from select_service.base.errors import NotFound
from select_service.http.endpoint import PathParameter

HTML = "text/html; charset=utf-8"
CSS = "text/css; charset=utf-8"
JAVASCRIPT = "text/javascript; charset=utf-8"
SVG = "image/svg+xml"
_TYPES = {"html": HTML, "css": CSS, "js": JAVASCRIPT, "svg": SVG}
FILES_MAX = 64
"""Most files cached in memory as sent, each in two forms."""


class StaticFiles:
    """Files by the names in their URLs."""

    def __init__(self, files: Mapping[str, Path], max_age_s: int) -> None:
        """files: path of each file by name;  max_age_s: browser cache lifetime, seconds; 0 means
        revalidate
        """
        self._files = files
        self._caching = f"public, max-age={max_age_s}" if max_age_s else "no-cache"

    def file_parameter(self, example: str) -> PathParameter:
        """Return the path parameter with the file's name."""
        names = Literal[tuple(self._files)]  # type: ignore[valid-type]
        return PathParameter("file", names, "Name of the file.", example, self._check_name)

    def _check_name(self, segment: str) -> str:
        if segment not in self._files:
            raise NotFound(f"the page has no file `{segment[:64]}`")
        return segment

    async def serve_file(self, request: Request, name: str) -> Response:
        compressed = "gzip" in request.headers.get("accept-encoding", "")
        data = await asyncio.to_thread(_file_content, self._files[name], compressed)
        headers = {
            "vary": "Accept-Encoding",
            "cache-control": self._caching,
            "x-content-type-options": "nosniff",
        }
        if compressed:
            headers["content-encoding"] = "gzip"
        return Response(data, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)


@lru_cache(maxsize=2 * FILES_MAX)
def _file_content(file: Path, compressed: bool) -> bytes:
    stored = file.read_bytes()
    if file.name.endswith(".gz"):
        return stored if compressed else gzip.decompress(stored)
    # Without mtime=0 the gzip header would contain the current time and differ between replicas.
    return gzip.compress(stored, mtime=0) if compressed else stored
