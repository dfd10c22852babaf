"""EDGE: the one way in which this process asks others over HTTP: bounded in time and in bytes.

Engines are asked for metrics, replicas for lists and peers for dumps, all through one pool of
connections.  Nothing is followed, kept or decompressed that nobody asked for: no redirects, cookies
or proxies.  Addresses are judged before they are connected to, see `indexer.sockets.boundary`.
Over https a certificate must be of the host that was asked, and issued by somebody
whom the system trusts (or SSL_CERT_FILE or SSL_CERT_DIR of the environment), or whom the settings
name.

What the library of HTTP does is in `http_session`, which the first request imports, on a thread.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.sockets.names import Names
from select_service.edge.http_error import HttpError
from select_service.edge.peer_key import PeerKey
from select_service.tls.kept import ClientTls

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from select_service.edge.http_session import Sessions

CONNECTIONS_MAX = 1024
OTHER = "other"
"""Purpose of requests that say none."""
_SESSIONS = "select_service.edge.http_session"


class HttpClient:
    """Belongs to one event loop.  Nothing is imported or opened before the first request."""

    def __init__(
        self,
        names: Names,
        connections_max: int = CONNECTIONS_MAX,
        key_file: Path | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """connections_max: at a time, idle ones included; at least 2
        key_file: holds the key for other selectors; None: they ask for none
        tls: None: whom the system trusts is believed
        """
        self.tls = tls
        self._key = None if key_file is None else PeerKey(key_file)
        self._names = names
        self._connections_max = connections_max
        self._sessions: Sessions | None = None

    async def close(self) -> None:
        """Break off what is under way."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            await sessions.close()
        if self._key is not None:
            await self._key.close()

    async def body(
        self,
        url: str,
        *,
        accept: str,
        bytes_max: int,
        timeout_s: float,
        purpose: str = OTHER,
        with_key: bool = False,
    ) -> bytes:
        """All of the body.  timeout_s: from the name to the last byte.  Raises HttpError.

        purpose: under which a refusal of the address is counted
        with_key: it is a selector that we were told of, and may have our key
        """
        body = bytearray()
        await self._loaded()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self.get(url, accept, purpose=purpose, with_key=with_key) as response,
            ):
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > bytes_max:
                        text = f"the answer has more than {bytes_max} bytes"
                        raise HttpError("too_large", text)
        except TimeoutError:
            text = f"no complete answer within {timeout_s:g} s"
            raise HttpError("timeout", text) from None
        return bytes(body)

    @contextlib.asynccontextmanager
    async def get(
        self, url: str, accept: str, *, purpose: str = OTHER, with_key: bool = False
    ) -> AsyncIterator["ClientResponse"]:
        """An answer with status 200, whose body is taken inside.  Raises HttpError.

        purpose, with_key: as in `body`

        The caller limits the time and what it takes, and has its own TimeoutError back.
        """
        headers = {"accept": accept}
        if with_key and self._key is not None:
            headers["authorization"] = await self._key.authorization()
        trust = None if self.tls is None else self.tls.context
        try:
            async with (await self._loaded()).answered(url, headers, trust) as response:
                yield response
        except HttpError as error:
            if error.failure == "not_allowed":
                self._names.boundary.count(purpose)
            raise

    async def _loaded(self) -> "Sessions":
        """Outside of the time limit of a request: the import takes half a second or more."""
        if self._sessions is None:
            module = await asyncio.to_thread(import_module, _SESSIONS)
            self._sessions = self._sessions or module.Sessions(self._names, self._connections_max)
        return self._sessions
