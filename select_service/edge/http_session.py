"""EDGE: aiohttp as `http_client` uses it: its settings, our names, its errors in our words."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from indexer.sockets.names import Addresses, Names
from select_service.edge.http_error import HttpError

READ_BYTES = 1 << 18
"""Read ahead of whoever takes the body."""
HEADERS = {"accept-encoding": "identity"}


class _Resolver(AbstractResolver):
    def __init__(self, names: Names) -> None:
        self._names = names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Whoever asks limits the time.  Raises OSError."""
        addresses = await _looked_up(self._names, host)
        if addresses.error is not None:
            raise OSError(addresses.error)
        return [_result(host, address, port) for address in addresses.found]

    async def close(self) -> None:
        """Nothing is held."""


async def _looked_up(names: Names, host: str) -> Addresses:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Addresses] = loop.create_future()

    def settle(addresses: Addresses) -> None:
        if not answer.done():
            answer.set_result(addresses)

    def tell(addresses: Addresses) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, addresses)

    names.look_up(host, tell)
    return await answer


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=0, flags=flags
    )


def opened(names: Names) -> aiohttp.ClientSession:
    """No limit of connections: whoever asks has one."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, resolver=_Resolver(names), ssl=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=HEADERS,
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        read_bufsize=READ_BYTES,
    )


@contextlib.asynccontextmanager
async def answered(
    session: aiohttp.ClientSession, url: str, accept: str
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A plain answer with status 200.  Raises HttpError, and TimeoutError as it is."""
    has_begun = False
    try:
        async with session.get(
            URL(url, encoded=True), allow_redirects=False, headers={"accept": accept}
        ) as response:
            if response.status != 200:
                raise HttpError("http_status", f"status {response.status}")
            encoding = response.headers.get("content-encoding", "identity")
            if encoding != "identity":
                text = f"the answer is encoded as {encoding}, which nobody asked"
                raise HttpError("unreadable", text)
            has_begun = True
            yield response
    except TimeoutError:
        raise
    except aiohttp.ClientResponseError as error:  # the rest of its text quotes the answer
        text = f"not HTTP: {error.message.partition(':')[0]}"
        raise HttpError("unreadable", text) from None
    except aiohttp.ClientPayloadError:
        raise HttpError("unreadable", "the answer breaks off") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if has_begun and isinstance(error, ValueError):
            raise  # not of the URL, but of what the caller makes of the answer
        raise HttpError("unreachable", f"{type(error).__name__}: {error}") from None
