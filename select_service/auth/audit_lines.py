"""Lines of the audit log: actions of operators, successful or attempted.

No caller may displace the lines of others.  So each key has a limit of lines, beyond which requests
are counted in summary lines; refusals of callers, which cost them nothing, are summarized, too.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from select_service.auth.guard import Grant
from select_service.auth.roles import CALLER, OPERATOR, RoutePermission
from select_service.base.errors import Forbidden

PATH_CHARS_MAX = 512
BODY_BYTES_MAX = 1024
"""Longest logged body, bytes; longer bodies are cut."""
LINES_AT_ONCE = 4096
"""Burst of lines of a key, enough for one per worker; LINES_PER_S afterwards."""
LINES_PER_S = 5.0
SUM_INTERVAL_S = 60.0
"""Interval of summary lines, seconds."""
SUMS_MAX = 1024
"""Most kinds of requests summarized at a time; further kinds share one summary."""
KEYS_MAX = 4096
"""Most keys with a line budget at a time."""
OTHER_KINDS = "others"
_READ_METHODS = frozenset(("GET", "HEAD"))
_UNLOGGED_STATUSES = frozenset((401, 429))
"""Statuses that are only counted in metrics: unknown keys or too many requests could flood the log.
"""


class AuditLine(Struct, kw_only=True):
    """Line of JSON for an action."""

    at: str
    """Time of the response, in UTC, format of RFC 3339."""
    key: str
    """Name of the key; `none` where keys are off."""
    source: str | None
    """Client address."""
    operation: str
    """Operation id of the OpenAPI document."""
    method: str
    path: str
    event: Literal["begun"] | UnsetType = UNSET
    """Written before the action; the line with the response follows."""
    status: int | UnsetType = UNSET
    """HTTP status of the response."""
    code: str | UnsetType = UNSET
    """Error code."""
    body: Raw | UnsetType = UNSET
    """Request body, as far as decoded."""
    body_begin: str | UnsetType = UNSET
    """Beginning of the JSON of a body too long to log."""
    body_bytes: int | UnsetType = UNSET
    """Full length of such a body, bytes."""


class AuditSum(Struct, kw_only=True):
    """Line of JSON that summarizes requests without lines of their own."""

    at: str
    """Time of writing, in UTC, format of RFC 3339."""
    key: str
    operation: str
    event: Literal["summed"] = "summed"
    status: int | UnsetType = UNSET
    """HTTP status of the responses."""
    code: str | UnsetType = UNSET
    """Error code of the responses."""
    count: int = 0
    seconds: float = 0.0
    """Length of the summarized period, seconds."""


class AuditedRequest(Struct):
    """Request with the facts available once the response exists."""

    grant: Grant
    source: str | None
    method: str
    path: str
    body: Any = None


def may_be_operator_action(may_call: RoutePermission, method: str) -> bool:
    """Whether a request to a route may be an action of an operator."""
    return OPERATOR in may_call.roles and method not in _READ_METHODS


def is_operator_action(may_call: RoutePermission, method: str, grant: Grant) -> bool:
    """Return whether the request is an operator's and not just a read."""
    if not may_be_operator_action(may_call, method):
        return False
    # A route of both roles, such as ending a reservation, is routine when a caller uses it.
    return CALLER not in may_call.roles or not grant.has_any_role(CALLER)


def make_audit_line(
    request: AuditedRequest, operation: str, status: int, code: str | None
) -> AuditLine | None:
    """Return the line of a response; None means not logged."""
    if status in _UNLOGGED_STATUSES:
        return None
    line = _make_line(request, operation)
    line.status, line.code = status, code or UNSET
    return line


def make_begun_line(request: AuditedRequest, operation: str) -> AuditLine:
    """Return the line of an action that is about to be carried out."""
    line = _make_line(request, operation)
    line.event = "begun"
    return line


def _make_line(request: AuditedRequest, operation: str) -> AuditLine:
    line = AuditLine(
        at=_format_now(),
        key=request.grant.name,
        source=request.source,
        operation=operation,
        method=request.method,
        path=request.path[:PATH_CHARS_MAX],
    )
    if request.body is not None:
        text = msgspec.json.encode(request.body)
        if len(text) <= BODY_BYTES_MAX:
            line.body = Raw(text)
        else:
            # The cut may fall inside a UTF-8 character: drop the incomplete rest.
            line.body_begin = text[:BODY_BYTES_MAX].decode(errors="ignore")
            line.body_bytes = len(text)
    return line


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class _SumKind(NamedTuple):
    key: str
    operation: str
    status: int | None
    code: str | None


class _RequestCount(Struct):
    since: float
    count: int = 0


class AuditBudget:
    """Line budget of each key, with summaries of the requests beyond the budget.

    Used by a single thread.  Times are seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self.n_summed = 0
        """Requests without a line of their own since the start."""
        self._left: dict[str, tuple[float, float]] = {}
        """Remaining lines of each key, and the time of that count."""
        self._sums: dict[_SumKind, _RequestCount] = {}

    def admit_line(self, line: AuditLine, now: float) -> bool:
        """Return whether to write the line; otherwise count the request.

        When a key without the operator role is refused, the first request per operation is written,
        and others are counted until that summary is written.
        """
        kind = _kind_of(line)
        if line.code == Forbidden.code:
            is_first = kind not in self._sums and len(self._sums) < SUMS_MAX
            if is_first and self.take_line(line.key, now):
                self._sums[kind] = _RequestCount(now)
                return True
        elif self.take_line(line.key, now):
            return True
        self.count_line(line, now)
        return False

    def take_line(self, key: str, now: float) -> bool:
        """Return whether the key has a line left, and use the line."""
        # Forgetting all budgets once is cheaper than tracking which of many keys is idle.
        if key not in self._left and len(self._left) >= KEYS_MAX:
            self._left.clear()
        left, at = self._left.get(key, (float(LINES_AT_ONCE), now))
        left = min(float(LINES_AT_ONCE), left + (now - at) * LINES_PER_S)
        # Fractions are kept: a key that asks too often still earns its next line.
        self._left[key] = max(0.0, left - 1.0) if left >= 1.0 else left, now
        return left >= 1.0

    def count_line(self, line: AuditLine, now: float) -> None:
        """Count a request without a line of its own."""
        kind = _kind_of(line)
        if kind not in self._sums and len(self._sums) >= SUMS_MAX:
            kind = _SumKind(OTHER_KINDS, OTHER_KINDS, None, None)
        self._sums.setdefault(kind, _RequestCount(now)).count += 1
        self.n_summed += 1

    def take_due_sums(self, now: float, *, is_end: bool = False) -> Iterator[AuditSum]:
        """Remove and yield the summaries older than SUM_INTERVAL_S; at the end, all of them."""
        over = [k for k, each in self._sums.items() if is_end or now - each.since >= SUM_INTERVAL_S]
        for kind in over:
            counted = self._sums.pop(kind)
            if counted.count:
                yield AuditSum(
                    at=_format_now(),
                    key=kind.key,
                    operation=kind.operation,
                    status=UNSET if kind.status is None else kind.status,
                    code=kind.code or UNSET,
                    count=counted.count,
                    seconds=round(now - counted.since, 3),
                )


def _kind_of(line: AuditLine) -> _SumKind:
    return _SumKind(line.key, line.operation, line.status or None, line.code or None)
