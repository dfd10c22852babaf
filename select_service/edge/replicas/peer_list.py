"""EDGE: GET /reservations of a peer, one page at a time, taken apart a few rows per turn.

What a peer sends may be anything, and a decoder that is given all of it at once takes seconds for a
list of a million zeros.  So the rows are cut out one by one, no more than were asked for, and each
is decoded alone; what is left of the page without its rows is short.
"""

import asyncio
import re
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from select_service.bodies.reservations import ReservationPage, ReservationRow
from select_service.core.load.booking import BOOKED_BLOCKS_MAX
from select_service.core.load.reservations import ReservationFilter
from select_service.core.replicas.repair import checked
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError

PAGE_S_MAX = 10.0
"""For one page, from the name of the peer to the last byte."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
TURN_BYTES_MAX = 64 * 1024
"""Rows that are read before requests have their turn; the last may exceed it."""
HASHES_BYTES_MAX = 21 * BOOKED_BLOCKS_MAX
"""Read of the hashes of one row: as many as are booked, with 20 digits and a comma each."""
ROW_BYTES_MAX = 1024 * 1024
FRAME_BYTES_MAX = 64 * 1024
"""Of a page without its rows; as much before them, at most."""
ACCEPT = "application/json"

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'[^"{}]++|' + _STRING
_ROW = re.compile(rb"\{(?:%b|\{(?:%b)*+\})*+\}\s*+" % (_FLAT, _FLAT), re.DOTALL)
"""An object, in which there may be flat ones."""
_ROWS = re.compile(rb'"reservations"\s*+:\s*+\[\s*+')
_NEXT = re.compile(rb",\s*+")


class _Frame(Struct):
    """A ReservationPage without its rows."""

    total: int
    next: str | None
    router_id: int


class _Row(ReservationRow, kw_only=True):
    """A row whose hashes are still to be read."""

    sequence_hashes: Raw | UnsetType = UNSET  # type: ignore[assignment]


_frame_of = msgspec.json.Decoder(_Frame).decode
_row_of = msgspec.json.Decoder(_Row).decode
_hashes_of = msgspec.json.Decoder(list[int]).decode


class NoList(Exception):
    """The peer's list could not be had; the text says why."""


async def fetch_page(
    http: HttpClient, url: str, wanted: ReservationFilter, *, with_key: bool = False
) -> ReservationPage:
    """One page of the list of the selector at `url` (http or https).  Raises NoList.

    with_key: may it have our key?
    """
    try:
        body = await http.body(
            f"{url.rstrip('/')}/reservations?{_query(wanted)}",
            accept=ACCEPT,
            bytes_max=PAGE_BYTES_MAX,
            timeout_s=PAGE_S_MAX,
            purpose="replica_list",
            with_key=with_key,
        )
        rows, rest = await _rows_of(body, wanted.limit)
        frame = _frame_of(rest)
    except (HttpError, ValueError, RecursionError) as error:
        raise NoList(f"{url}: {error}") from None
    return ReservationPage(
        reservations=rows, total=frame.total, next=frame.next, router_id=frame.router_id
    )


async def _rows_of(body: bytes, limit: int) -> tuple[list[ReservationRow], bytes]:
    """The rows of a page, and the page with an empty list.  Raises ValueError, RecursionError."""
    rows: list[ReservationRow] = []
    size = 0
    begin = _begin_of_rows(body)
    at, found = begin, _ROW.match(body, begin, begin + ROW_BYTES_MAX)
    while found is not None:
        if len(rows) == limit:
            raise ValueError(f"more than {limit} rows, which were asked for")
        rows.append(checked(_read_row(found[0])))
        at, size = found.end(), size + len(found[0])
        if size > TURN_BYTES_MAX:
            size = 0
            await asyncio.sleep(0)
        comma = _NEXT.match(body, at, at + FRAME_BYTES_MAX)
        if comma is None:
            break
        at = comma.end()
        found = _ROW.match(body, at, at + ROW_BYTES_MAX)
    return rows, _without_rows(body, begin, at)


def _begin_of_rows(body: bytes) -> int:
    """Raises ValueError."""
    rows = _ROWS.search(body, 0, FRAME_BYTES_MAX)
    if rows is None:
        raise ValueError("there is no list of reservations in it")
    return rows.end()


def _without_rows(body: bytes, begin: int, end: int) -> bytes:
    """Raises ValueError."""
    if body[end : end + 1] != b"]":
        raise ValueError(f"what stands at byte {end} is no row of at most {ROW_BYTES_MAX} bytes")
    if begin + len(body) - end > FRAME_BYTES_MAX:
        raise ValueError(f"more than {FRAME_BYTES_MAX} bytes stand around the rows")
    return body[:begin] + body[end:]


def _read_row(text: bytes) -> ReservationRow:
    row = _row_of(text)
    known: ReservationRow = row
    if row.sequence_hashes is not UNSET:
        known.sequence_hashes = _first_hashes(bytes(row.sequence_hashes))
    return known


def _first_hashes(text: bytes) -> list[int]:
    """As many as are booked, of however long a list."""
    if len(text) > HASHES_BYTES_MAX:
        text = text[:HASHES_BYTES_MAX].rpartition(b",")[0] + b"]"
    return _hashes_of(text)[:BOOKED_BLOCKS_MAX]


def _query(wanted: ReservationFilter) -> str:
    query = {"limit": str(wanted.limit)}
    if wanted.after is not None:
        query["after"] = wanted.after
    if wanted.sequence_hashes:
        query["sequence_hashes"] = "true"
    return urlencode(query)
