"""EDGE: GET /reservations of a peer, one page at a time, taken apart a few rows per turn."""

import asyncio
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from select_service.bodies.reservations import ReservationPage, ReservationRow
from select_service.core.load.reservations import ReservationFilter
from select_service.core.replicas.repair import checked
from select_service.core.replicas.state import BOOKED_BLOCKS_MAX
from select_service.edge.http_client import HttpClient
from select_service.edge.http_error import HttpError

PAGE_S_MAX = 10.0
"""For one page, from the name of the peer to the last byte."""
PAGE_BYTES_MAX = 8 * 1024 * 1024
TURN_BYTES_MAX = 64 * 1024
"""Rows that are read before requests have their turn; the last may exceed it."""
HASHES_BYTES_MAX = 21 * BOOKED_BLOCKS_MAX
"""Read of the hashes of one row: as many as are booked, with 20 digits and a comma each."""
ACCEPT = "application/json"


class _Page(Struct):
    """A ReservationPage whose rows are still to be read."""

    reservations: list[Raw]
    total: int
    next: str | None
    router_id: int


class _Row(ReservationRow, kw_only=True):
    """A row whose hashes are still to be read."""

    sequence_hashes: Raw | UnsetType = UNSET  # type: ignore[assignment]


_page_of = msgspec.json.Decoder(_Page).decode
_row_of = msgspec.json.Decoder(_Row).decode
_hashes_of = msgspec.json.Decoder(list[int]).decode


class NoList(Exception):
    """The peer's list could not be had; the text says why."""


async def fetch_page(http: HttpClient, url: str, wanted: ReservationFilter) -> ReservationPage:
    """One page of the list of the selector at `url` (http or https).  Raises NoList."""
    try:
        body = await http.body(
            f"{url.rstrip('/')}/reservations?{_query(wanted)}",
            accept=ACCEPT,
            bytes_max=PAGE_BYTES_MAX,
            timeout_s=PAGE_S_MAX,
        )
        page = _page_of(body)
        if len(page.reservations) > wanted.limit:
            raise ValueError(f"{len(page.reservations)} rows, {wanted.limit} were asked for")
        rows = await _rows_of(page.reservations)
    except (HttpError, ValueError, RecursionError) as error:
        raise NoList(f"{url}: {error}") from None
    return ReservationPage(
        reservations=rows, total=page.total, next=page.next, router_id=page.router_id
    )


async def _rows_of(raws: list[Raw]) -> list[ReservationRow]:
    """Raises ValueError, RecursionError."""
    rows: list[ReservationRow] = []
    size = 0
    for raw in raws:
        size += len(memoryview(raw))
        rows.append(checked(_read_row(raw)))
        if size > TURN_BYTES_MAX:
            size = 0
            await asyncio.sleep(0)
    return rows


def _read_row(raw: Raw) -> ReservationRow:
    row = _row_of(raw)
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
