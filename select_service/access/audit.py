"""What of requests is written into the audit log: what operators did, or tried to do."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from select_service.access.guard import Grant
from select_service.access.roles import CALLER, OPERATOR, MayCall

PATH_CHARS_MAX = 1024
BODY_BYTES_MAX = 16_384
"""Of longer bodies only the length is kept."""
_READING = frozenset(("GET", "HEAD"))
_NOT_KEPT = frozenset((401, 429))
"""Who is not known, or asks too much, is counted: nobody may push the lines of others out."""


class AuditLine(Struct, kw_only=True):
    """One line of JSON."""

    at: str
    """When it was answered, in UTC, as RFC 3339 says."""
    key: str
    """Name of the key; `none` where keys are off."""
    source: str | None
    """Address that the request came from."""
    operation: str
    """As in the document of the interface."""
    method: str
    path: str
    status: int
    """Of the answer."""
    code: str | UnsetType = UNSET
    """Of the refusal."""
    body: Raw | UnsetType = UNSET
    """Of the request, as far as it was read."""
    body_bytes: int | UnsetType = UNSET
    """Its length, where it is too long to be kept."""


class Asked(Struct):
    """A request, as far as it is known when it has been answered."""

    grant: Grant
    source: str | None
    method: str
    path: str
    body: Any = None


def is_action(may_call: MayCall, method: str, grant: Grant) -> bool:
    """Is it an operator's, and more than reading?"""
    if OPERATOR not in may_call.roles or method in _READING:
        return False
    return CALLER not in may_call.roles or not grant.has(CALLER)


def line_of(asked: Asked, operation: str, status: int, code: str | None) -> AuditLine | None:
    """None: it is not kept."""
    if status in _NOT_KEPT:
        return None
    line = AuditLine(
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        key=asked.grant.name,
        source=asked.source,
        operation=operation,
        method=asked.method,
        path=asked.path[:PATH_CHARS_MAX],
        status=status,
        code=code or UNSET,
    )
    if asked.body is not None:
        text = msgspec.json.encode(asked.body)
        if len(text) <= BODY_BYTES_MAX:
            line.body = Raw(text)
        else:
            line.body_bytes = len(text)
    return line
