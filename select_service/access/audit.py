"""What of requests is written into the audit log: what operators did, or tried to do.

Nobody may push the lines of others out.  So each key has a bound of lines, and what goes beyond it
is counted in a line for many; so is what callers are refused, which costs them nothing.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from select_service.access.guard import Grant
from select_service.access.roles import CALLER, OPERATOR, MayCall
from select_service.errors import Forbidden

PATH_CHARS_MAX = 512
BODY_BYTES_MAX = 1024
"""Of longer bodies the beginning is kept."""
LINES_AT_ONCE = 4096
"""Lines of one key at once, as many as there may be workers; LINES_PER_S after that."""
LINES_PER_S = 5.0
SUMMED_S = 60.0
"""How long requests without a line of their own are counted before that is written."""
SUMS_MAX = 1024
"""Kinds of such requests at a time; those of further kinds are counted as one."""
KEYS_MAX = 4096
"""Keys whose lines are counted at a time."""
OTHERS = "others"
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
    event: Literal["begun"] | UnsetType = UNSET
    """Written before anything was done; the line of the answer follows."""
    status: int | UnsetType = UNSET
    """Of the answer."""
    code: str | UnsetType = UNSET
    """Of the refusal."""
    body: Raw | UnsetType = UNSET
    """Of the request, as far as it was read."""
    body_begin: str | UnsetType = UNSET
    """The beginning of its JSON, where it is too long to be kept."""
    body_bytes: int | UnsetType = UNSET
    """Its length then."""


class AuditSum(Struct, kw_only=True):
    """One line of JSON for requests that have no lines of their own."""

    at: str
    """When it was written, in UTC, as RFC 3339 says."""
    key: str
    operation: str
    event: Literal["summed"] = "summed"
    status: int | UnsetType = UNSET
    """Of the answers."""
    code: str | UnsetType = UNSET
    """Of the refusals."""
    count: int = 0
    seconds: float = 0.0
    """How long they were counted."""


class Asked(Struct):
    """A request, as far as it is known when it has been answered."""

    grant: Grant
    source: str | None
    method: str
    path: str
    body: Any = None


def may_be_action(may_call: MayCall, method: str) -> bool:
    """Whether a request to a route may be an action of an operator."""
    return OPERATOR in may_call.roles and method not in _READING


def is_action(may_call: MayCall, method: str, grant: Grant) -> bool:
    """Is it an operator's, and more than reading?"""
    if not may_be_action(may_call, method):
        return False
    return CALLER not in may_call.roles or not grant.has(CALLER)


def line_of(asked: Asked, operation: str, status: int, code: str | None) -> AuditLine | None:
    """Return the line of an answer; None means that it is not kept."""
    if status in _NOT_KEPT:
        return None
    line = _line(asked, operation)
    line.status, line.code = status, code or UNSET
    return line


def begun_line(asked: Asked, operation: str) -> AuditLine:
    """Return the line of an action that is about to be carried out."""
    line = _line(asked, operation)
    line.event = "begun"
    return line


def _line(asked: Asked, operation: str) -> AuditLine:
    line = AuditLine(
        at=_now(),
        key=asked.grant.name,
        source=asked.source,
        operation=operation,
        method=asked.method,
        path=asked.path[:PATH_CHARS_MAX],
    )
    if asked.body is not None:
        text = msgspec.json.encode(asked.body)
        if len(text) <= BODY_BYTES_MAX:
            line.body = Raw(text)
        else:
            line.body_begin = text[:BODY_BYTES_MAX].decode(errors="ignore")
            line.body_bytes = len(text)
    return line


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class _Kind(NamedTuple):
    key: str
    operation: str
    status: int | None
    code: str | None


class _Counted(Struct):
    since: float
    count: int = 0


class AuditBudget:
    """Which lines are written, and what is counted instead.

    Belongs to one thread.  Times are seconds of a steady clock.
    """

    def __init__(self) -> None:
        self.summed = 0
        """Requests that have no line of their own, since the start."""
        self._left: dict[str, tuple[float, float]] = {}
        """By key: lines that it may have at once, and when that was so."""
        self._sums: dict[_Kind, _Counted] = {}

    def admit(self, line: AuditLine, now: float) -> bool:
        """Whether the line is written; if not, it is counted.

        Of what one key is refused as somebody who is no operator the first of each operation is
        written, and others are counted until that sum is written.
        """
        kind = _kind_of(line)
        if line.code == Forbidden.code:
            is_first = kind not in self._sums and len(self._sums) < SUMS_MAX
            if is_first and self.take(line.key, now):
                self._sums[kind] = _Counted(now)
                return True
        elif self.take(line.key, now):
            return True
        self.count(line, now)
        return False

    def take(self, key: str, now: float) -> bool:
        """Whether the key may have one more line now; then it has it."""
        if key not in self._left and len(self._left) >= KEYS_MAX:
            self._left.clear()
        left, at = self._left.get(key, (float(LINES_AT_ONCE), now))
        left = min(float(LINES_AT_ONCE), left + (now - at) * LINES_PER_S)
        self._left[key] = max(0.0, left - 1.0) if left >= 1.0 else left, now
        return left >= 1.0

    def count(self, line: AuditLine, now: float) -> None:
        """Count a request that has no line of its own."""
        kind = _kind_of(line)
        if kind not in self._sums and len(self._sums) >= SUMS_MAX:
            kind = _Kind(OTHERS, OTHERS, None, None)
        self._sums.setdefault(kind, _Counted(now)).count += 1
        self.summed += 1

    def due(self, now: float, *, is_end: bool = False) -> Iterator[AuditSum]:
        """Take what has been counted for SUMMED_S, or all of it at the end of the process."""
        over = [k for k, each in self._sums.items() if is_end or now - each.since >= SUMMED_S]
        for kind in over:
            counted = self._sums.pop(kind)
            if counted.count:
                yield AuditSum(
                    at=_now(),
                    key=kind.key,
                    operation=kind.operation,
                    status=UNSET if kind.status is None else kind.status,
                    code=kind.code or UNSET,
                    count=counted.count,
                    seconds=round(now - counted.since, 3),
                )


def _kind_of(line: AuditLine) -> _Kind:
    return _Kind(line.key, line.operation, line.status or None, line.code or None)
