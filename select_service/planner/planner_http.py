"""HTTP session of the planner, with its limits."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from select_service.net.http_client.http_error import HttpError
from select_service.net.http_client.http_session import HttpRequest, HttpSession
from select_service.net.tls.current_tls import ClientTls

BYTES_MAX = 32 << 20
TIMEOUT_S = 10.0


class PlannerHttpClient(HttpSession):
    """HTTP session with errors that show the beginning of an error answer."""

    def __init__(self, tls: ClientTls | None = None) -> None:
        """tls: settings of https; None means the system's CAs"""
        super().__init__(tls=tls)

    async def get(
        self,
        url: str,
        query: Mapping[str, str] | None = None,
        *,
        token_file: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """Return the body of an answer with status 200. Raises HttpError."""
        if query:
            url += ("&" if "?" in url else "?") + urlencode(query)
        return await self._fetch(HttpRequest("GET", url), token_file, timeout_s, BYTES_MAX)

    async def post(
        self,
        url: str,
        body: bytes | None = None,
        *,
        token_file: str | None = None,
        timeout_s: float = TIMEOUT_S,
        bytes_max: int = BYTES_MAX,
    ) -> bytes:
        """Send a JSON body, or none, and return the body of a 2xx answer. Raises HttpError."""
        headers = {} if body is None else {"content-type": "application/json"}
        request = HttpRequest("POST", url, headers, body)
        return await self._fetch(request, token_file, timeout_s, bytes_max)

    async def _fetch(
        self,
        request: HttpRequest,
        token_file: str | None,
        timeout_s: float,
        bytes_max: int,
    ) -> bytes:
        if token_file is not None:
            request = request._replace(token_file=Path(token_file))
        try:
            return await self.fetch_body(request, bytes_max=bytes_max, timeout_s=timeout_s)
        except HttpError as error:
            if not error.status:
                raise
            text = f"{error}: {error.body[:200].decode('utf-8', 'replace')}"
            raise HttpError(error.failure, text, error.status, error.body) from None
