"""Client for GET /sessions of a peer, one page at a time, parsed a few rows per loop iteration."""

from urllib.parse import urlencode

import msgspec

from select_service.adapters.http_get import HttpClient
from select_service.adapters.replicas.peer_list import ListPart, fetch_part
from select_service.core.replication.session_repair import validate_session
from select_service.core.sessions.session_pages import SessionFilter
from select_service.schemas.sessions import SessionPage, SessionRow

PAGE_BYTES_MAX = 4 * 1024 * 1024
"""Largest page; 500 rows with the longest names take less."""


_row_of = msgspec.json.Decoder(SessionRow).decode


async def fetch_session_page(
    http: HttpClient, url: str, page_filter: SessionFilter, *, with_key: bool = False
) -> SessionPage:
    """Return one page of the sessions of the selector at `url`.  Raises PeerListUnavailable.

    with_key: True sends the API key
    """
    query = _page_query(page_filter)
    part = ListPart("sessions", query, page_filter.limit, PAGE_BYTES_MAX, _decode_session)
    rows, frame = await fetch_part(http, url, part, with_key=with_key)
    return SessionPage(sessions=rows, total=frame.total, next=frame.next, router_id=frame.router_id)


def _decode_session(text: bytes) -> SessionRow:
    """Decode a row.  Raises ValueError."""
    return validate_session(_row_of(text))


def _page_query(wanted: SessionFilter) -> str:
    optional = {
        "model_name": wanted.model_name,
        "tenant_id": wanted.tenant_id,
        "after": wanted.after,
    }
    query = {name: value for name, value in optional.items() if value is not None}
    return urlencode({"limit": str(wanted.limit), "parts": str(wanted.parts), **query})
