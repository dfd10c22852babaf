"""Request, answer and errors that all transports share."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from select_service.base.errors import PicklableError

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Limit of an answer that is read as a whole, in bytes; streams have no limit."""
CONNECTIONS_MAX = 256
"""Connections of a client to all of its selectors."""
CONNECT_S_MAX = 1.0
"""Time limit of connecting, in seconds: a dead host sends no answer at all."""
IDLE_S_MAX = 60.0
"""Idle time after which a connection is closed, in seconds; the service closes after 75 s."""


class ClientRequest(NamedTuple):
    """A request without the URL of its selector.

    target: path and query, percent-encoded
    content: JSON; None means no body
    """

    method: str
    target: str
    content: bytes | None
    headers: Mapping[str, str]


class ClientResponse(NamedTuple):
    """An answer of any status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class TransportError(PicklableError):
    """No answer was received.

    was_sent: whether the selector may have received, and executed, the request
    """

    def __init__(self, text: str, *, was_sent: bool) -> None:
        super().__init__(text)
        self.was_sent = was_sent


class StreamedResponse(NamedTuple):
    """An answer with content in pieces."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


class Transport(ABC):
    """Connections to selectors."""

    async def send(self, url: str, request: ClientRequest, timeout_s: float) -> ClientResponse:
        """Exchange one request for one answer with the selector at `url`.

        timeout_s: longest time without a byte, in seconds
        Raises TransportError.
        """
        async with self.stream(url, request, timeout_s) as answer:
            pieces, n_bytes = [], 0
            async for piece in answer.pieces:
                n_bytes += len(piece)
                if n_bytes > ANSWER_BYTES_MAX:
                    text = f"answer is larger than {ANSWER_BYTES_MAX} bytes"
                    raise TransportError(text, was_sent=True)
                pieces.append(piece)
        return ClientResponse(answer.status, answer.headers, b"".join(pieces))

    @abstractmethod
    def stream(
        self, url: str, request: ClientRequest, silence_s: float
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Open a large or endless answer.  Raises TransportError, inside the block as well.

        silence_s: longest time without a byte, in seconds
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""


def transport_error(error: Exception, *, was_sent: bool) -> TransportError:
    """Return the error of a library as an error of the client."""
    return TransportError(f"{type(error).__name__} {error}".rstrip(), was_sent=was_sent)
