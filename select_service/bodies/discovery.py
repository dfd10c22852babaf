"""Bodies of discovery: what sources of workers say, and how far the catalog is."""

from typing import Literal

from msgspec import Struct


class SourceView(Struct, kw_only=True):
    """One source of workers."""

    name: str
    """Its name, as in metrics and log lines."""
    kind: Literal["file", "dns", "kubernetes"]
    """Of what it reads."""
    place: str
    """What it reads: a path, a name, a selector."""
    read_s: float | None
    """Seconds since it was read and found good; null before the first time."""
    error: str | None
    """Why it could not be read last time; null when it could. What it said before goes on
    counting."""
    readings: int
    """How often it was read, found good and differed from before."""
    failures: int
    """How often it could not be read, or was wrong."""
    desired: int | None
    """Workers that it says; null before the first reading."""
    owned: int
    """Workers that belong to it and are registered, those that leave included."""
    leaving: int
    """Workers that it no longer says: no new requests, and gone when nothing is booked on them."""
    conflicts: int
    """Workers that it says and somebody else owns."""
    refused: int
    """Workers that it says and that could not be registered or changed."""
    conflicting: dict[int, str]
    """Of the conflicts, the first 100 ids, and who owns them: another source, or `HTTP`."""
    reasons: dict[int, str]
    """Of those that were refused, the first 100 ids, and why."""
    patched: list[int]
    """First 100 ids of its workers of which a field was changed by hand, which stays until the
    source says something else of that field."""
    deleted: list[int]
    """First 100 ids of its workers that were deleted by hand: they stay away until the source says
    something else of them."""
    withheld: int
    """Engines that were found and are not registered, because they have not answered or make no
    good record; a worker that one of them was before stays as it is."""
    unanswered: dict[str, str]
    """Of these, the first 100 endpoints, and why."""


class DiscoveryView(Struct, kw_only=True):
    """GET /discovery."""

    sources: list[SourceView]
    """In the order in which they get an id that several say at once."""
    pending: int
    """Workers that are still to be compared with the catalog."""
