"""HTTP client of the planner, bounded in time and in bytes."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from select_service.base.command_line import file_error_text
from select_service.base.token_file import TokenFile
from select_service.files.atomic_file import read_whole
from select_service.net.http_client.connection_opener import ConnectionTls, resolve_name
from select_service.net.http_client.connection_pool import ConnectionPool
from select_service.net.http_client.request_error import RequestError
from select_service.net.tls.current_tls import ClientTls

CONNECTIONS_MAX = 256
BYTES_MAX = 32 << 20
TOKEN_BYTES_MAX = 1 << 16
TIMEOUT_S = 10.0


class RequestFailed(Exception):
    """Failure of a request, with a reason of one line.

    gone:         whether the connection was refused, so that the address serves no client either
    status, body: status and body of an answer that was not 2xx
    """

    def __init__(
        self, text: str, *, gone: bool = False, status: int | None = None, body: bytes = b""
    ) -> None:
        super().__init__(text)
        self.gone = gone
        self.status = status
        self.body = body


class PlannerHttpClient:
    """HTTP client of one event loop.

    tls: settings of https, read at the start of a request; None means the system's CAs. Connections
    opened with other settings are not reused.
    """

    def __init__(self, tls: ClientTls | None = None) -> None:
        self._tls = tls
        self._pool = ConnectionPool(resolve_name, CONNECTIONS_MAX)
        self._tokens: dict[str, TokenFile] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections and the token files."""
        await self._pool.close()
        while self._tokens:
            await self._tokens.popitem()[1].close()

    def _token_file(self, path: str) -> TokenFile:
        if path not in self._tokens:
            self._tokens[path] = make_token_file(path)
        return self._tokens[path]

    async def get(
        self,
        url: str,
        query: Mapping[str, str] | None = None,
        *,
        token_file: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """Return the body of a 2xx answer. Raises Unreachable."""
        return await self._send_request("GET", url, query, None, token_file, timeout_s)

    async def post(
        self,
        url: str,
        body: bytes | None = None,
        *,
        token_file: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """Send a JSON body, or none, and return the body of a 2xx answer. Raises Unreachable."""
        return await self._send_request("POST", url, None, body, token_file, timeout_s)

    async def _send_request(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        token_file: str | None,
        timeout_s: float,
    ) -> bytes:
        """Send a request and return the body of a 2xx answer. Raises Unreachable."""
        if query:
            url += ("&" if "?" in url else "?") + urlencode(query)
        headers = {} if body is None else {"content-type": "application/json"}
        if token_file is not None:
            token = await read_request_token(self._token_file(token_file), timeout_s)
            headers["authorization"] = f"Bearer {token}"
        # Read for each request, so that reloaded certificates apply without a restart.
        tls = None if self._tls is None else ConnectionTls(self._tls.context)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._pool.open_request(method, url, headers, body, tls) as answer,
            ):
                text, status = await answer.read_body(BYTES_MAX), answer.status
        except TimeoutError:
            raise RequestFailed(f"no answer within {timeout_s:g} s") from None
        except RequestError as error:
            # Only a refused connection proves that no process listens; a timeout proves nothing.
            raise RequestFailed(str(error), gone=error.failure == "refused") from None
        if not 200 <= status < 300:
            said = text[:200].decode("utf-8", "replace")
            raise RequestFailed(f"status {status}: {said}", status=status, body=text)
        return text


def make_token_file(path: str) -> TokenFile:
    """Return the reader of a token file."""
    return TokenFile("token_file", Path(path), lambda read_path: _read_token_file(str(read_path)))


async def read_request_token(file: TokenFile, timeout_s: float) -> str:
    """Return the token for a request.  Raises RequestFailed."""
    try:
        return await file.read_token(timeout_s)
    except TimeoutError:
        text = f"token file {file.path}: file system did not answer within {timeout_s:g} s"
        raise RequestFailed(text) from None


def check_token_file(path: str) -> None:
    """Raise Unreachable for an unusable token file."""
    if not _read_token_file(path):
        raise RequestFailed(
            f"token file `{path}`: the file is empty; create a key of select-service with "
            "`select-service keys new`"
        )


def _read_token_file(path: str) -> str:
    """Read the token, each time because tokens of service accounts rotate. Raises Unreachable."""
    try:
        return read_whole(Path(path), TOKEN_BYTES_MAX).decode("ascii").strip()
    except OSError as error:
        raise RequestFailed(f"token file {file_error_text(path, error)}") from None
    except UnicodeDecodeError:
        raise RequestFailed(
            f"token file `{path}`: content is not ASCII: store only the token"
        ) from None
    except ValueError as error:
        raise RequestFailed(f"token file `{path}`: {error}") from None
