"""Repair of sessions: reading the parts of a peer's table with different sums.

A session of the peer's list is applied like a message: the higher version counts, and the idle
time is the peer's, so that two replicas cannot keep a session alive by repairs from each other.
Sessions that the peer lacks stay: the peer repairs from here.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from select_service.core.identity import PartitionKey
from select_service.core.replication.repair import UnexpectedProcess
from select_service.core.replication.session_exchange import (
    SUMMED_ROWS_MAX,
    SessionDigest,
    SessionDigestLine,
    SessionExchange,
)
from select_service.core.sessions.session_directory import SessionUse
from select_service.core.sessions.session_pages import SessionFilter
from select_service.core.sessions.session_table import BindingVersion, SessionBinding
from select_service.schemas.common import U64_MAX
from select_service.schemas.sessions import SESSION_ID_BYTES_MAX, SessionPage, SessionRow

PAGE_ROWS = 500
ROWS_PER_TURN = 250
"""Rows applied per turn, some 5 us each."""
PAGES_MAX = 256
"""Pages per repair; the next repair reads the rest."""
PERSISTENT_DIGESTS = 3
"""Digests after which a difference is repaired; until then a message may be on the way."""
RETRY_S = 2.0
"""Time between two repairs from the same peer."""
RETRY_S_MAX = 60.0
"""Longest time between two repairs without effect."""
SCOPES_MAX = 4096
"""Scopes per peer with counted differences."""
IDLE_S_MAX = 1e9


class SessionListAnswer(NamedTuple):
    """Page of a peer's list, and the time of arrival."""

    page: SessionPage
    came_at: float


SessionRepairSteps: TypeAlias = Generator[SessionFilter | None, SessionListAnswer | None, None]


@dataclass(slots=True)
class SessionRepairResult:
    """Numbers of sessions read, applied, and ended at the peer."""

    read: int = 0
    applied: int = 0
    repeated: int = 0


@dataclass(slots=True)
class SessionAgreement:
    """Agreement with a peer about sessions, and the time of the next repair.

    repairs: number of repairs
    applied: number of sessions that repairs changed here
    """

    router_id: int | None = None
    repairs: int = 0
    applied: int = 0
    _number: int = -1
    _differing: dict[PartitionKey, list[int]] = field(default_factory=dict)
    """Masks of the differing parts, the latest last, by scope."""
    _next_line: int = 0
    """Line of the next digest at which the comparison goes on."""
    _not_before: float = 0.0
    _pause_s: float = RETRY_S

    def record_digest(self, digest: SessionDigest, exchange: SessionExchange, now: float) -> None:
        """Compare a digest of the peer with the own sessions."""
        is_first = digest.router_id != self.router_id
        if is_first:
            self._differing.clear()
            self._pause_s, self._not_before = RETRY_S, 0.0
        elif digest.number <= self._number:
            return
        self.router_id, self._number = digest.router_id, digest.number
        for line in self._lines_to_compare(digest.lines, exchange):
            key = PartitionKey(line.model_name, line.tenant_id)
            mask = exchange.differing_parts(line, now)
            if not mask:
                self._differing.pop(key, None)
            elif key in self._differing:
                self._differing[key] = [*self._differing[key], mask][-PERSISTENT_DIGESTS:]
            elif len(self._differing) < SCOPES_MAX:
                # The first digest of a scope counts at once: a replica that joins knows nothing.
                is_new = exchange.directory.find_table(key) is None or is_first
                self._differing[key] = [mask] * (PERSISTENT_DIGESTS if is_new else 1)

    def _lines_to_compare(
        self, lines: list[SessionDigestLine], exchange: SessionExchange
    ) -> list[SessionDigestLine]:
        """Return the next lines, in turn, with about SUMMED_ROWS_MAX rows here."""
        begin, rows, n = self._next_line % max(1, len(lines)), 0, 0
        turned = lines[begin:] + lines[:begin]
        while n < len(turned) and rows < SUMMED_ROWS_MAX:
            rows += exchange.summed_rows(turned[n])
            n += 1
        self._next_line = begin + n
        return turned[:n]

    def due_repair(self, now: float) -> tuple[PartitionKey, int] | None:
        """Return the scope and the parts of a repair that is due; None if none is."""
        if now < self._not_before:
            return None
        for key, masks in self._differing.items():
            # Parts that agreed in between differed only by messages on the way.
            common = masks[0]
            for mask in masks:
                common &= mask
            if len(masks) == PERSISTENT_DIGESTS and common:
                return key, common
        return None

    def record_repair(
        self, key: PartitionKey, result: SessionRepairResult | None, now: float
    ) -> None:
        """Record a repair.  result: None means that the peer's list was not available"""
        self.repairs += 1
        self._differing.pop(key, None)
        if result is None:
            self._not_before = now + RETRY_S
            return
        self.applied += result.applied
        has_progress = result.applied + result.repeated > 0
        # Some differences cannot be repaired, such as sessions evicted at one side.
        self._pause_s = RETRY_S if has_progress else min(2 * self._pause_s, RETRY_S_MAX)
        self._not_before = now + self._pause_s


class SessionRepair:
    """Pass over some parts of a peer's table; `run_repair` yields requests and receives pages."""

    def __init__(
        self, exchange: SessionExchange, router_id: int, key: PartitionKey, parts: int
    ) -> None:
        """Create a repair; only the list of the process router_id is accepted."""
        self.result = SessionRepairResult()
        self._exchange, self._router_id = exchange, router_id
        self._key, self._parts = key, parts

    def run_repair(self) -> SessionRepairSteps:
        """Yield filters of pages and receive the pages; yield None to give other tasks a turn.

        Raises UnexpectedProcess.
        """
        after = None
        for _ in range(PAGES_MAX):
            answer = yield SessionFilter(
                *self._key, limit=PAGE_ROWS, after=after, parts=self._parts
            )
            assert answer is not None
            if answer.page.router_id != self._router_id:
                raise UnexpectedProcess(
                    f"sessions of router {self._router_id} were requested, "
                    f"router {answer.page.router_id} answered"
                )
            for number, row in enumerate(answer.page.sessions, 1):
                self._apply_row(row, answer.came_at)
                if number % ROWS_PER_TURN == 0:
                    yield None
            after = answer.page.next
            if after is None:
                return

    def _apply_row(self, row: SessionRow, now: float) -> None:
        key = PartitionKey(row.model_name, row.tenant_id)
        # Peers are not trusted to apply the filter.
        if key != self._key:
            return
        self.result.read += 1
        table = self._exchange.directory.find_table(key)
        # The peer ends such a session within seconds.
        if table is not None and row.idle_seconds >= table.lasting_s:
            return
        binding = SessionBinding(
            row.worker_id,
            row.dp_rank,
            BindingVersion(row.sequence, row.writer_id),
            row.context_tokens,
        )
        use = SessionUse(key, row.session_id, binding)
        old = self._exchange.directory.find_session(key, row.session_id, now)
        reason = self._exchange.apply_use(use, False, now - row.idle_seconds, now)
        is_known = old is not None and old.binding.version == binding.version
        self.result.applied += reason is None and not is_known
        if reason == "ended":
            self._exchange.resend_end(use)
            self.result.repeated += 1


def validate_session(row: SessionRow) -> SessionRow:
    """Return the peer's row if all numbers are in range.  Raises ValueError."""
    fits = 0 <= row.worker_id <= U64_MAX and 0 <= row.sequence <= U64_MAX
    fits = fits and 0 <= row.writer_id <= U64_MAX and 0.0 <= row.idle_seconds <= IDLE_S_MAX
    fits = fits and (row.dp_rank is None or 0 <= row.dp_rank < 2**32)
    fits = fits and 0 <= row.context_tokens < 2**62
    if not fits or len(row.session_id.encode()) > SESSION_ID_BYTES_MAX:
        raise ValueError("the peer's list has a session with a number out of range")
    return row
