"""Answers that are read piece by piece: the dump of an index, and moves as they happen."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from select_service.bodies.migrations import MigrationEvent
from select_service.client.errors import SelectorError, Unavailable
from select_service.client.exchange import Answer, Asked, Broken, Streamed
from select_service.client.link import Link
from select_service.client.refusals import TEXT_CHARS_MAX, refusal_of
from select_service.unreadable_json import UNREADABLE

SILENCE_S_MAX = 30.0
"""The service sends something every 15 s."""
EVENT_BYTES_MAX = 64 * 1024


class Gap(msgspec.Struct):
    """Moves before this are not told.

    next: number behind which what follows begins; None: it begins now
    """

    next: int | None = None


async def dump(link: Link, url: str, path: Path, *, compact: bool) -> int:
    """Write the index of a selector to a file.  Its size in bytes.  Raises SelectorError."""
    headers = link.headers({"accept": "application/msgpack"} if compact else {})
    n_bytes = 0
    try:
        async with link.transport.stream(
            url, Asked("GET", "/dump", None, headers), SILENCE_S_MAX
        ) as answer:
            await _check(answer)
            with path.open("wb") as file:
                async for piece in answer.pieces:
                    n_bytes += file.write(piece)
    except Broken as error:
        raise Unavailable(f"the dump of {url} broke off: {error}") from error
    return n_bytes


async def moves(
    link: Link, url: str, after: int | None = None
) -> AsyncIterator[MigrationEvent | Gap]:
    """What a selector moves, as it happens, behind event `after` or from now on.

    Begins with a `Gap` when `after` is left out.  Ends when the selector ends it.
    Raises SelectorError.
    """
    query = "" if after is None else f"?after={after}"
    asked = Asked("GET", f"/migrations/stream{query}", None, link.headers())
    try:
        async with link.transport.stream(url, asked, SILENCE_S_MAX) as answer:
            await _check(answer)
            if after is None:
                yield Gap()
            async for event in _events(answer.pieces):
                yield event
    except Broken as error:
        raise Unavailable(f"the moves of {url} broke off: {error}") from error


async def _check(answer: Streamed) -> None:
    """Raises Refused."""
    if answer.status >= 300:
        content = b""
        async for piece in answer.pieces:
            content += piece
            if len(content) > TEXT_CHARS_MAX:
                break
        raise refusal_of(Answer(answer.status, answer.headers, content))[0]


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[MigrationEvent | Gap]:
    """Server-sent events, which end with an empty line."""
    left = b""
    async for piece in pieces:
        *whole, left = (left + piece).split(b"\n\n")
        if len(left) > EVENT_BYTES_MAX:
            raise SelectorError(f"an event of more than {EVENT_BYTES_MAX} bytes")
        for each in whole:
            event = read_event(each)
            if event is not None:
                yield event


def read_event(text: bytes) -> MigrationEvent | Gap | None:
    """None: it says nothing but that the connection lives.  Raises SelectorError."""
    lines = (line.partition(b": ") for line in text.split(b"\n"))
    fields = {name: value for name, _, value in lines}
    if b"data" not in fields:
        return None
    try:
        if fields.get(b"event") == b"gap":
            return msgspec.json.decode(fields[b"data"], type=Gap)
        return msgspec.json.decode(fields[b"data"], type=MigrationEvent)
    except UNREADABLE as error:
        raise SelectorError(f"an event that is none: {error}") from error
