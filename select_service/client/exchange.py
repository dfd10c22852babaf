"""One request and one answer, as every transport carries them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from select_service.errors import PortableError

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Of an answer that is read as a whole; streams are not bounded."""
CONNECTIONS_MAX = 256
"""Of one client to all of its selectors."""
CONNECT_S_MAX = 1.0
"""For a connection alone: a host that is gone does not answer at all."""
IDLE_S_MAX = 60.0
"""Less than what the service lets a connection be idle, 75 s."""


class Asked(NamedTuple):
    """A request without the selector that it goes to.

    target: path and query, percent-encoded
    content: JSON; None: no body
    """

    method: str
    target: str
    content: bytes | None
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """What came back, whatever the status.  Names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Broken(PortableError):
    """There is no answer.

    was_sent: the selector may have got the request, and may have done what it asks for
    """

    def __init__(self, text: str, *, was_sent: bool) -> None:
        super().__init__(text)
        self.was_sent = was_sent


class Streamed(NamedTuple):
    """An answer whose content comes in pieces."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


class Transport(Protocol):
    """Connections to selectors."""

    async def send(self, url: str, asked: Asked, timeout_s: float) -> Answer:
        """One exchange with the selector at `url`.  Raises Broken."""

    def stream(
        self, url: str, asked: Asked, silence_s: float
    ) -> AbstractAsyncContextManager[Streamed]:
        """An answer without an end, or a large one.  Raises Broken, within the block as well.

        silence_s: the longest time without a byte
        """

    async def close(self) -> None:
        """Close all connections."""


def too_large(n_bytes: int) -> Broken:
    return Broken(f"an answer of more than {n_bytes} bytes", was_sent=True)
