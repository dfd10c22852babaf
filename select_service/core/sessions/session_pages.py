"""Sessions as rows of answers, for callers and for repairs of replicas."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from select_service.base.errors import BadRequest, NotFound
from select_service.core.identity import PartitionKey, Rank
from select_service.core.sessions.session_directory import SessionDirectory
from select_service.core.sessions.session_table import ALL_PARTS, SessionState, SessionTable
from select_service.schemas.sessions import SessionEnd, SessionPage, SessionRow

_ROWS_PER_SCOPE = 1 << 20
"""Factor of the scope's number in a cursor, above all row numbers."""
SCOPES_SCANNED_MAX = 256
"""Most scopes per page, some microseconds each, or 0.1 ms with many sessions."""
ROWS_MAX = 500
"""Most rows per page whatever the requested limit, some 3 us each."""
SHOWN_CHARS_MAX = 64


class SessionFilter(NamedTuple):
    """Filter of GET /sessions.

    after: `next` of the page before
    tenants: visible tenants; None means all
    parts: mask of the parts of the tables, see `SessionTable.sum_parts`
    """

    model_name: str | None = None
    tenant_id: str | None = None
    limit: int = 100
    after: str | None = None
    tenants: frozenset[str] | None = None
    parts: int = ALL_PARTS

    def matches(self, key: PartitionKey) -> bool:
        is_visible = self.tenants is None or key.tenant_id in self.tenants
        return is_visible and key.matches(self.model_name, self.tenant_id)


class SessionViews:
    """Reader of sessions for answers."""

    def __init__(
        self,
        directory: SessionDirectory,
        has_rank: Callable[[PartitionKey, Rank], bool],
        router_id: int,
    ) -> None:
        """has_rank: returns whether a rank is registered in a scope"""
        self._directory = directory
        self._has_rank = has_rank
        self._router_id = router_id

    def get_session(self, key: PartitionKey, session_id: str, now: float) -> SessionRow:
        """Return a session.  Raises NotFound."""
        found = self._directory.find_session(key, session_id, now)
        if found is None:
            raise _session_not_found(session_id)
        return self._make_row(key, found, now)

    def end_session(self, key: PartitionKey, session_id: str, now: float) -> SessionEnd:
        """End a session and return the last state.  Raises NotFound."""
        found = self._directory.end_session(key, session_id, now)
        if found is None:
            raise _session_not_found(session_id)
        return SessionEnd(session=self._make_row(key, found, now))

    def list_page(self, session_filter: SessionFilter, now: float) -> SessionPage:
        """Return a page, by scope.  Raises BadRequest for a cursor that no page returned."""
        scope, row = _parse_cursor(session_filter.after)
        rows: list[SessionRow] = []
        following, limit = None, min(session_filter.limit, ROWS_MAX)
        n_scanned = 0
        for key, table in self._directory.tables():
            number = table.number
            if number < scope or not session_filter.matches(key):
                continue
            n_scanned += 1
            if n_scanned > SCOPES_SCANNED_MAX or len(rows) == limit:
                following = str(number * _ROWS_PER_SCOPE)
                break
            after = row if number == scope else 0
            found = table.rows_after(after, limit - len(rows) + 1, session_filter.parts)
            shown = found[: limit - len(rows)]
            rows += self._live_rows(key, table, shown, now)
            if len(shown) < len(found):
                following = str(number * _ROWS_PER_SCOPE + shown[-1])
                break
        return SessionPage(
            sessions=rows,
            total=self._count_visible(session_filter),
            next=following,
            router_id=self._router_id,
        )

    def _count_visible(self, session_filter: SessionFilter) -> int:
        tenants = session_filter.tenants
        tables = self._directory.tables()
        return sum(len(t) for key, t in tables if tenants is None or key.tenant_id in tenants)

    def _live_rows(
        self, key: PartitionKey, table: SessionTable, rows: list[int], now: float
    ) -> Iterator[SessionRow]:
        for row in rows:
            session = table.read_row(row)
            if session.leases or session.idle_since + table.ttl_s > now:
                yield self._make_row(key, session, now)

    def _make_row(self, key: PartitionKey, session: SessionState, now: float) -> SessionRow:
        bound, idle_s = session.binding, max(0.0, now - session.idle_since)
        ttl_s = self._directory.settings.idle_s
        return SessionRow(
            session_id=session.session_id,
            model_name=key.model_name,
            tenant_id=key.tenant_id,
            routing_group=key.tenant_id,
            worker_id=bound.worker_id,
            dp_rank=bound.dp_rank,
            present=self._has_rank(key, bound.rank),
            leases=session.leases,
            idle_seconds=0.0 if session.leases else round(idle_s, 3),
            expires_in_seconds=None if session.leases else round(max(0.0, ttl_s - idle_s), 3),
            context_tokens=bound.context_tokens,
            turns=session.turns,
            sequence=bound.version.sequence,
            writer_id=bound.version.writer_id,
        )


def _session_not_found(session_id: str) -> NotFound:
    return NotFound(
        f"session {session_id[:SHOWN_CHARS_MAX]} not found in this model and tenant; "
        "give `model_name` and `tenant_id` of its requests"
    )


def _parse_cursor(after: str | None) -> tuple[int, int]:
    """Return the scope's number and the row behind which a page begins."""
    if after is None:
        return 0, 0
    if not after.isascii() or not after.isdigit() or len(after) > 18:
        raise BadRequest(
            f"after: `{after[:64]}` is no cursor: give the `next` of the previous page"
        )
    return divmod(int(after), _ROWS_PER_SCOPE)
