"""EDGE: the one way in which this process asks others over HTTP: bounded in time and in bytes.

Engines are asked for metrics, replicas for lists and peers for dumps, all through one pool of
connections.  Nothing is followed, kept or decompressed that nobody asked for: no redirects, cookies
or proxies.  Addresses are judged before they are connected to, see `indexer.sockets.boundary`.
Over https a certificate must be of the host that was asked, and issued by somebody
whom the system trusts (or SSL_CERT_FILE or SSL_CERT_DIR of the environment), or whom the settings
name.

How answers are read, and what all of them together may take, is in `select_service.outgoing`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from indexer.sockets.names import Names
from select_service.edge.host_names import looked_up
from select_service.edge.http_error import HttpError
from select_service.edge.peer_key import PeerKey
from select_service.outgoing.connecting import Tls
from select_service.outgoing.connection_pool import Answer, ConnectionPool
from select_service.outgoing.request_error import RequestError
from select_service.tls.kept import ClientTls

CONNECTIONS_MAX = 1024
OTHER = "other"
"""Purpose of requests that say none."""


class HttpClient:
    """Belongs to one event loop.  Nothing is opened before the first request."""

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
        self._pool = ConnectionPool(self._addresses_of, connections_max)

    async def close(self) -> None:
        """Break off what is under way."""
        await self._pool.close()
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
        try:
            async with (
                asyncio.timeout(timeout_s),
                self.get(url, accept, purpose=purpose, with_key=with_key) as answer,
            ):
                return await answer.body(bytes_max)
        except TimeoutError:
            text = f"no complete answer within {timeout_s:g} s"
            raise HttpError("timeout", text) from None

    @contextlib.asynccontextmanager
    async def get(
        self, url: str, accept: str, *, purpose: str = OTHER, with_key: bool = False
    ) -> AsyncIterator[Answer]:
        """An answer with status 200, whose body is taken inside.  Raises HttpError.

        purpose, with_key: as in `body`

        The caller limits the time and what it takes, and has its own TimeoutError back.
        """
        headers = {"accept": accept}
        if with_key and self._key is not None:
            headers["authorization"] = await self._key.authorization()
        tls = None if self.tls is None else Tls(self.tls.context)
        try:
            async with self._pool.request("GET", url, headers, tls=tls) as answer:
                if answer.status != 200:
                    raise HttpError("http_status", f"status {answer.status}")
                encoding = answer.headers.get("content-encoding", "identity")
                if encoding != "identity":
                    text = f"the answer is encoded as {encoding[:40]}, which nobody asked"
                    raise HttpError("unreadable", text)
                yield answer
        except RequestError as error:
            if error.failure == "not_allowed":
                self._names.boundary.count(purpose)
            raise http_error_of(error) from None

    async def _addresses_of(self, host: str) -> Sequence[str]:
        return await allowed_addresses(self._names, host)


async def allowed_addresses(names: Names, host: str) -> Sequence[str]:
    """Return the addresses of a host, all of which may be connected to.  Raises RequestError."""
    addresses = await looked_up(names, host)
    if addresses.is_refused:
        raise RequestError("not_allowed", addresses.error or "")
    if not addresses.found:
        raise RequestError("unreachable", f"name not found: {addresses.error}")
    return addresses.found


def http_error_of(error: RequestError) -> HttpError:
    """Return the same in the words of the service's metrics."""
    match error.failure:
        case "refused" | "closed":
            return HttpError("unreachable", str(error))
        case failure:
            return HttpError(failure, str(error))
