"""Answers that are read in pieces: the dump of an index, and moves as they happen."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.client.client_core import ClientCore
from select_service.client.errors import SelectorError, Unavailable
from select_service.client.refusals import TEXT_CHARS_MAX, classify_refusal
from select_service.client.transport import (
    ClientRequest,
    ClientResponse,
    StreamedResponse,
    TransportError,
)
from select_service.schemas.migrations import MigrationEvent

SILENCE_S_MAX = 30.0
"""Longest silence, in seconds; the service sends a byte at least every 15 s."""
EVENT_BYTES_MAX = 64 * 1024


class MoveGap(msgspec.Struct):
    """A gap in the stream: earlier moves are not sent.

    next: number of the event before the next; None means that the stream begins now
    """

    next: int | None = None


async def write_dump(link: ClientCore, url: str, path: Path, *, compact: bool) -> int:
    """Write the index of a selector to a file and return the size in bytes.

    Raises SelectorError.
    """
    headers = link.call_headers({"accept": "application/msgpack"} if compact else {})
    n_bytes = 0
    try:
        async with link.transport.stream(
            url, ClientRequest("GET", "/dump", None, headers), SILENCE_S_MAX
        ) as answer:
            await _check_status(answer)
            with path.open("wb") as file:
                async for piece in answer.pieces:
                    n_bytes += file.write(piece)
    except TransportError as error:
        raise Unavailable(f"the dump of {url} was interrupted: {error}") from error
    return n_bytes


async def stream_moves(
    link: ClientCore, url: str, after: int | None = None
) -> AsyncIterator[MigrationEvent | MoveGap]:
    """Yield the moves of a selector, after event `after` or from now on.

    The stream begins with a `MoveGap` if `after` is None, and ends when the selector ends it.
    Raises SelectorError.
    """
    query = "" if after is None else f"?after={after}"
    asked = ClientRequest("GET", f"/migrations/stream{query}", None, link.call_headers())
    try:
        async with link.transport.stream(url, asked, SILENCE_S_MAX) as answer:
            await _check_status(answer)
            if after is None:
                yield MoveGap()
            async for event in _split_events(answer.pieces):
                yield event
    except TransportError as error:
        raise Unavailable(f"the stream of moves of {url} was interrupted: {error}") from error


async def _check_status(answer: StreamedResponse) -> None:
    """Check the status of a stream.  Raises Refused."""
    if answer.status >= 300:
        content = b""
        async for piece in answer.pieces:
            content += piece
            # The rest of a long error text is not needed.
            if len(content) > TEXT_CHARS_MAX:
                break
        raise classify_refusal(ClientResponse(answer.status, answer.headers, content))[0]


async def _split_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[MigrationEvent | MoveGap]:
    """Split server-sent events, which an empty line ends."""
    left = b""
    async for piece in pieces:
        # A piece of the connection may end anywhere, also inside an event.
        *whole, left = (left + piece).split(b"\n\n")
        # Bounds the memory of an event without an end.
        if len(left) > EVENT_BYTES_MAX:
            raise SelectorError(f"event is larger than {EVENT_BYTES_MAX} bytes")
        for each in whole:
            event = decode_event(each)
            if event is not None:
                yield event


def decode_event(text: bytes) -> MigrationEvent | MoveGap | None:
    """Decode an event; None means a keep-alive.  Raises SelectorError."""
    lines = (line.partition(b": ") for line in text.split(b"\n"))
    fields = {name: value for name, _, value in lines}
    if b"data" not in fields:
        return None
    try:
        if fields.get(b"event") == b"gap":
            return msgspec.json.decode(fields[b"data"], type=MoveGap)
        return msgspec.json.decode(fields[b"data"], type=MigrationEvent)
    except DECODE_ERRORS as error:
        raise SelectorError(f"malformed event: {error}") from error
