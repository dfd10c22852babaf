"""EDGE: GET /reservations of a peer, one page at a time.  Blocks: to be called on a thread."""

import http.client
from time import monotonic
from urllib.parse import urlencode, urlsplit

import msgspec

from select_service.bodies.reservations import ReservationPage
from select_service.core.load.reservations import ReservationFilter
from select_service.core.replicas.repair import checked

PAGE_S_MAX = 10.0
"""For one page, from connecting to the last byte."""
PAGE_BYTES_MAX = 64 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024

_page_of = msgspec.json.Decoder(ReservationPage).decode


class NoList(Exception):
    """The peer's list could not be had; the text says why."""


def fetch_page(url: str, wanted: ReservationFilter) -> ReservationPage:
    """One page of the list of the selector at `url` (http or https).  Raises NoList."""
    try:
        body = _get(url, "/reservations?" + _query(wanted))
        return checked(_page_of(body))
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise NoList(f"{url}: {error or type(error).__name__}") from None


def _query(wanted: ReservationFilter) -> str:
    query = {"limit": str(wanted.limit)}
    if wanted.after is not None:
        query["after"] = wanted.after
    if wanted.sequence_hashes:
        query["sequence_hashes"] = "true"
    return urlencode(query)


def _get(url: str, path: str) -> bytes:
    until = monotonic() + PAGE_S_MAX
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an http or https URL")
    kind = http.client.HTTPConnection if parts.scheme == "http" else http.client.HTTPSConnection
    connection = kind(parts.hostname, parts.port, timeout=PAGE_S_MAX)
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers={"connection": "close"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(f"status {response.status}")
        body = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            body += chunk
            if len(body) > PAGE_BYTES_MAX:
                raise ValueError(f"more than {PAGE_BYTES_MAX} bytes")
            if monotonic() > until:
                raise TimeoutError(f"not complete after {PAGE_S_MAX:g} s")
        return bytes(body)
    finally:
        connection.close()
