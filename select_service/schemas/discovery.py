"""Bodies of discovery: the sources of workers, and the progress of the catalog."""

from typing import Literal

from msgspec import Struct


class SourceView(Struct, kw_only=True):
    """State of one source of workers."""

    name: str
    """Name of the source in metrics and log lines."""
    kind: Literal["file", "dns", "kubernetes"]
    """Kind of the source."""
    place: str
    """Location of the source: a path, a host name or a selector."""
    read_s: float | None
    """Seconds since the last valid reading; null before the first valid reading."""
    error: str | None
    """Error of the last reading; null after a valid reading. The previous valid reading stays in
    effect.
    """
    readings: int
    """Number of valid readings that differed from the reading before."""
    failures: int
    """Number of failed or invalid readings."""
    desired: int | None
    """Workers listed by the source; null before the first reading."""
    owned: int
    """Registered workers owned by the source, including workers that are leaving."""
    leaving: int
    """Workers no longer listed by the source: no new requests, and deleted after the last
    reservation.
    """
    conflicts: int
    """Workers listed by the source and owned by another source or by HTTP."""
    refused: int
    """Workers listed by the source that could not be registered or changed."""
    conflicting: dict[int, str]
    """Owner by worker id, for the first 100 conflicts: the name of another source, or `HTTP`."""
    reasons: dict[int, str]
    """Reason by worker id, for the first 100 refused workers."""
    patched: list[int]
    """First 100 ids of workers with a field changed by hand. The change is kept until the source
    changes its value of that field.
    """
    deleted: list[int]
    """First 100 ids of workers deleted by hand. Such workers stay deleted until the source changes
    their record.
    """
    withheld: int
    """Engines found but not registered, because of a missing answer or an invalid record; an
    existing worker of such an engine is kept unchanged.
    """
    unanswered: dict[str, str]
    """Reason by endpoint, for the first 100 withheld engines."""


class DiscoveryView(Struct, kw_only=True):
    """Response of GET /discovery."""

    sources: list[SourceView]
    """Sources by precedence: the first source that lists a worker id owns the worker."""
    pending: int
    """Workers still to be compared with the catalog."""
