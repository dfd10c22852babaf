"""How the planner asks others over HTTP: bounded in time and in bytes."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from select_service.command_line import file_fault
from select_service.daemon_threads import DaemonThreads
from select_service.outgoing.connecting import Tls, resolve_name
from select_service.outgoing.connection_pool import ConnectionPool
from select_service.outgoing.request_error import RequestError
from select_service.tls.kept import ClientTls
from select_service.whole_file import read_whole

CONNECTIONS_MAX = 256
BYTES_MAX = 32 << 20
TOKEN_BYTES_MAX = 1 << 16
TIMEOUT_S = 10.0


class Unreachable(Exception):
    """One line that says why there is no answer.

    gone: nobody listens there, so nobody can be served there either
    status, body: of an answer that was not 2xx
    """

    def __init__(
        self, text: str, *, gone: bool = False, status: int | None = None, body: bytes = b""
    ) -> None:
        super().__init__(text)
        self.gone = gone
        self.status = status
        self.body = body


class Outbound:
    """Belongs to one event loop.

    tls: over https, what counts of it when a request begins; None: whom the system trusts is
    believed. Connections that began with another one are not used
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
        await self._pool.close()
        while self._tokens:
            self._tokens.popitem()[1].close()

    async def get(
        self,
        url: str,
        query: Mapping[str, str] | None = None,
        *,
        token_file: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """Body of the 2xx answer. Raises Unreachable."""
        return await self._ask("GET", url, query, None, token_file, timeout_s)

    async def post(
        self,
        url: str,
        body: bytes | None = None,
        *,
        token_file: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """The same for a body of JSON, or none. Raises Unreachable."""
        return await self._ask("POST", url, None, body, token_file, timeout_s)

    async def _ask(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        token_file: str | None,
        timeout_s: float,
    ) -> bytes:
        if query:
            url += ("&" if "?" in url else "?") + urlencode(query)
        headers = {} if body is None else {"content-type": "application/json"}
        if token_file is not None:
            tokens = self._tokens.setdefault(token_file, TokenFile(token_file))
            headers["authorization"] = f"Bearer {await tokens.token(timeout_s)}"
        tls = None if self._tls is None else Tls(self._tls.context)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._pool.request(method, url, headers, body, tls) as answer,
            ):
                text, status = await answer.body(BYTES_MAX), answer.status
        except TimeoutError:
            raise Unreachable(f"no answer within {timeout_s:g} s") from None
        except RequestError as error:
            raise Unreachable(str(error), gone=error.failure == "refused") from None
        if not 200 <= status < 300:
            said = text[:200].decode("utf-8", "replace")
            raise Unreachable(f"status {status}: {said}", status=status, body=text)
        return text


class TokenFile:
    """Reads a token anew for each request, on a thread of its own: its file system may hang.

    Belongs to one event loop, until `close`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread: DaemonThreads | None = None
        self._reading: Future[str] | None = None

    async def token(self, timeout_s: float) -> str:
        """What the file holds; requests of one moment share a reading.  Raises Unreachable."""
        if self._thread is None:
            self._thread = DaemonThreads(1, "token-file")
        if self._reading is None or self._reading.done():
            self._reading = self._thread.submit(_token, self._path)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(asyncio.wrap_future(self._reading))
        except TimeoutError:
            text = f"token file {self._path}: it does not answer within {timeout_s:g} s"
            raise Unreachable(text) from None

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def check_token(path: str) -> None:
    """Raises Unreachable for a file that no request could do with."""
    if not _token(path):
        raise Unreachable(
            f"token file `{path}`: there is no token in it; for a key of select-service: "
            "`select-service keys new`"
        )


def _token(path: str) -> str:
    """Read anew each time: tokens of service accounts change. Raises Unreachable."""
    try:
        return read_whole(Path(path), TOKEN_BYTES_MAX).decode("ascii").strip()
    except OSError as error:
        raise Unreachable(f"token file {file_fault(path, error)}") from None
    except UnicodeDecodeError:
        raise Unreachable(f"token file `{path}`: it holds more than a token in ASCII") from None
    except ValueError as error:
        raise Unreachable(f"token file `{path}`: {error}") from None
