"""Client for GET /reservations of a peer, page by page, parsed a few rows per loop iteration.

A peer may send anything, and a decoder given a list of a million zeros takes seconds.  The rows are
therefore cut out singly, at most as many as requested, and decoded separately; the rest of the page
is short.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator
from functools import cache
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from select_service.adapters.http_get import HttpClient
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX
from select_service.core.load.reservations import ReservationFilter
from select_service.core.replication.repair import validate_row
from select_service.net.http_client.http_error import HttpError
from select_service.schemas.reservations import ReservationPage, ReservationRow

PAGE_S_MAX = 10.0
"""Time limit of a page, from name resolution to the last byte, in seconds."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
TURN_BYTES_MAX = 64 * 1024
"""Size of rows parsed before the event loop gets a turn; the last row may exceed this."""
HASHES_BYTES_MAX = 21 * BOOKED_BLOCKS_MAX
"""Size limit of the parsed hashes of a row: 20 digits and a comma for each block."""
ROW_BYTES_MAX = 1024 * 1024
ENVELOPE_BYTES_MAX = 64 * 1024
"""Size limit of a page without rows, and of the part before the rows."""
ACCEPT = "application/json"

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'[^"{}]++|' + _STRING
# Possessive quantifiers: hostile text must not cause backtracking.
_ROW = re.compile(rb"\{(?:%b|\{(?:%b)*+\})*+\}\s*+" % (_FLAT, _FLAT), re.DOTALL)
"""Pattern of an object that may contain flat objects."""
_NEXT = re.compile(rb",\s*+")


T = TypeVar("T")
F = TypeVar("F")
A = TypeVar("A")


class PageFrame(Struct):
    """Page of a list without rows."""

    total: int
    next: str | None
    router_id: int


class _Row(ReservationRow, kw_only=True):
    """Row with undecoded hashes."""

    sequence_hashes: Raw | UnsetType = UNSET  # type: ignore[assignment]


_frame_of = msgspec.json.Decoder(PageFrame).decode
_row_of = msgspec.json.Decoder(_Row).decode
_hashes_of = msgspec.json.Decoder(list[int]).decode


class PeerListUnavailable(Exception):
    """Error for a peer list that could not be fetched; the text has the reason."""


class ListPart(NamedTuple, Generic[T]):
    """Page of a list to be fetched.

    name: name of the list, in the path and in the answer
    query: encoded parameters of the page
    decode_row: decodes a row; raises ValueError
    """

    name: str
    query: str
    limit: int
    bytes_max: int
    decode_row: Callable[[bytes], T]


async def fetch_part(
    http: HttpClient, url: str, part: ListPart[T], *, with_key: bool
) -> tuple[list[T], PageFrame]:
    """Return the rows of a page of the selector at `url`, and the rest of the page.

    with_key: True sends the API key
    Raises PeerListUnavailable.
    """
    try:
        body = await http.get_body(
            f"{url.rstrip('/')}/{part.name}?{part.query}",
            accept=ACCEPT,
            bytes_max=part.bytes_max,
            timeout_s=PAGE_S_MAX,
            purpose="replica_list",
            with_key=with_key,
        )
        rows, rest = await split_rows(body, part.name, part.limit, part.decode_row)
        return rows, _frame_of(rest)
    except (HttpError, ValueError, RecursionError) as error:
        raise PeerListUnavailable(f"{url}: {error}") from None


async def fetch_page(
    http: HttpClient, url: str, page_filter: ReservationFilter, *, with_key: bool = False
) -> ReservationPage:
    """Return a page of the reservations of the selector at `url`.  Raises PeerListUnavailable.

    with_key: True sends the API key
    """
    query = _page_query(page_filter)
    part = ListPart("reservations", query, page_filter.limit, PAGE_BYTES_MAX, _decode_valid_row)
    rows, frame = await fetch_part(http, url, part, with_key=with_key)
    return ReservationPage(
        reservations=rows, total=frame.total, next=frame.next, router_id=frame.router_id
    )


async def walk_pages(
    walk: Generator[F | None, A | None, None], fetch: Callable[[F], Awaitable[A]]
) -> None:
    """Run a repair to the end: fetch the requested pages, with a turn between other steps.

    walk: yields the filter of a page, or None after other steps
    fetch: fetches the answer for a filter
    """
    wanted = next(walk)
    while True:
        answer = None
        if wanted is None:
            await asyncio.sleep(0)
        else:
            answer = await fetch(wanted)
        try:
            wanted = walk.send(answer)
        except StopIteration:
            return


@cache
def _beginning_of(name: str) -> re.Pattern[bytes]:
    """Return the pattern of the beginning of a list."""
    return re.compile(rb'"%b"\s*+:\s*+\[\s*+' % name.encode())


async def split_rows(
    body: bytes, name: str, limit: int, decode: Callable[[bytes], T]
) -> tuple[list[T], bytes]:
    """Return the rows of a page, and the page with an empty list.

    name: member of the page that has the rows
    decode: decoder of one row, which raises ValueError
    Raises ValueError, RecursionError.
    """
    rows: list[T] = []
    size = 0
    begin = _find_rows(body, name)
    at, found = begin, _ROW.match(body, begin, begin + ROW_BYTES_MAX)
    while found is not None:
        if len(rows) == limit:
            raise ValueError(f"list has more than the requested {limit} rows")
        # Row by row: each is valid on its own, and the loop gets a turn in between.
        rows.append(decode(found[0]))
        at, size = found.end(), size + len(found[0])
        if size > TURN_BYTES_MAX:
            size = 0
            await asyncio.sleep(0)
        comma = _NEXT.match(body, at, at + ENVELOPE_BYTES_MAX)
        if comma is None:
            break
        at = comma.end()
        found = _ROW.match(body, at, at + ROW_BYTES_MAX)
    return rows, _remove_rows(body, begin, at)


def _find_rows(body: bytes, name: str) -> int:
    """Return the offset of the first row.  Raises ValueError."""
    rows = _beginning_of(name).search(body, 0, ENVELOPE_BYTES_MAX)
    if rows is None:
        raise ValueError(f"response has no list of {name}")
    return rows.end()


def _remove_rows(body: bytes, begin: int, end: int) -> bytes:
    """Return the page with an empty list.  Raises ValueError."""
    if body[end : end + 1] != b"]":
        raise ValueError(f"byte {end} does not begin a row of at most {ROW_BYTES_MAX} bytes")
    if begin + len(body) - end > ENVELOPE_BYTES_MAX:
        raise ValueError(f"list envelope is larger than {ENVELOPE_BYTES_MAX} bytes")
    return body[:begin] + body[end:]


def _decode_valid_row(text: bytes) -> ReservationRow:
    """Decode a row.  Raises ValueError."""
    return validate_row(_decode_row(text))


def _decode_row(text: bytes) -> ReservationRow:
    row = _row_of(text)
    known: ReservationRow = row
    if row.sequence_hashes is not UNSET:
        known.sequence_hashes = _decode_first_hashes(bytes(row.sequence_hashes))
    return known


def _decode_first_hashes(text: bytes) -> list[int]:
    """Decode the first BOOKED_BLOCKS_MAX hashes of a list of any length."""
    if len(text) > HASHES_BYTES_MAX:
        text = text[:HASHES_BYTES_MAX].rpartition(b",")[0] + b"]"
    return _hashes_of(text)[:BOOKED_BLOCKS_MAX]


def _page_query(wanted: ReservationFilter) -> str:
    query = {"limit": str(wanted.limit)}
    if wanted.after is not None:
        query["after"] = wanted.after
    if wanted.sequence_hashes:
        query["sequence_hashes"] = "true"
    if wanted.separate_legs:
        query["separate_legs"] = "true"
    return urlencode(query)
