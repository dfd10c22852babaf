"""Log of completed moves: events for callers, and confirmations of moves.

Sequence numbers have no gaps, and no two processes issue equal numbers. A request for events that
were dropped, or with a number of another process, is answered with a gap.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import islice
from typing import Literal, NamedTuple

from select_service.core.health.health_kinds import CheckKind
from select_service.core.health.migration.migration_plan import PlannedMove
from select_service.core.health.migration.move_cost import MoveMethod
from select_service.core.identity import Rank

RETENTION_S = 600.0
EVENTS_MAX = 65_536


class MoveEvent(NamedTuple):
    """Completed move of a reservation; a target of None means that the move was impossible.

    leg: leg of the pair with this id; None for a reservation on one rank
    """

    seq: int
    reservation_id: str
    source: Rank
    target: Rank | None
    method: MoveMethod
    estimated_ms: float
    cause: CheckKind
    lockstep: bool
    at: float
    tenant_id: str
    leg: Literal["prefill", "decode"] | None = None


class MovePage(NamedTuple):
    """Page of events.

    next: sequence number for the next request
    gap: events in between were dropped
    """

    events: Sequence[MoveEvent]
    next: int
    gap: bool


class MoveConfirmation(NamedTuple):
    """Confirmation of a move.

    method: final method, used in counters
    event: confirmed event
    """

    event: MoveEvent
    method: MoveMethod
    ok: bool


class MoveLog:
    """Bounded log of the newest events, and the latest event of each reservation."""

    def __init__(self, begin: int = 0) -> None:
        """Create the log; all sequence numbers exceed `begin` and were never issued by an earlier
        process.
        """
        self._begin = begin
        self._events: deque[MoveEvent] = deque()
        self._latest: OrderedDict[str, MoveEvent] = OrderedDict()
        self._next = begin + 1

    def __bool__(self) -> bool:
        """Return whether any reservation has an unconfirmed move in the log."""
        return bool(self._latest)

    @property
    def next_number(self) -> int:
        """Sequence number of the next event."""
        return self._next

    def append_move(
        self, move: PlannedMove, source: Rank, cause: CheckKind, tenant_id: str, now: float
    ) -> MoveEvent:
        """Append a completed move. O(1) amortised"""
        event = MoveEvent(
            self._next,
            move.id,
            source,
            move.target,
            move.method,
            move.ms,
            cause,
            move.lockstep,
            now,
            tenant_id,
            move.leg,
        )
        self._next += 1
        self._events.append(event)
        self._latest[move.id] = event
        self.drop_expired(now)
        return event

    def events_after(self, seq: int, events_max: int) -> MovePage:
        """Return events with higher sequence numbers, oldest first.

        0 means from the beginning. A number that this process never issued results in a gap.
        """
        seq = seq or self._begin
        first = self._events[0].seq if self._events else self._next
        # `first - 1` is the last dropped number: a client that has seen it missed nothing.
        is_known = first - 1 <= seq < self._next
        start = seq + 1 - first if is_known else 0
        found = tuple(islice(self._events, start, start + events_max))
        return MovePage(found, found[-1].seq if found else self._next - 1, gap=not is_known)

    def latest_move_of(self, reservation_id: str) -> MoveEvent | None:
        """Return the latest move of a reservation while the event is kept."""
        return self._latest.get(reservation_id)

    def confirm_move(self, reservation_id: str, ok: bool) -> MoveConfirmation | None:
        """Confirm a move; a failed transfer continues as a new prefill on the target.

        None means that the reservation has not moved or is already confirmed.
        """
        event = self._latest.get(reservation_id)
        if event is None or event.target is None:
            return None
        # The event stays confirmable: the repeated prefill on the target is confirmed separately.
        if not ok and event.method is MoveMethod.TRANSFER:
            self._latest[reservation_id] = event._replace(method=MoveMethod.REPREFILL)
            return MoveConfirmation(event, MoveMethod.REPREFILL, ok)
        del self._latest[reservation_id]
        return MoveConfirmation(event, event.method, ok)

    def drop_expired(self, now: float) -> None:
        """Drop events above the age or size limit."""
        events = self._events
        while events and (len(events) > EVENTS_MAX or now - events[0].at > RETENTION_S):
            oldest = events.popleft()
            latest = self._latest.get(oldest.reservation_id)
            # A newer event of the same reservation must stay confirmable.
            if latest is not None and latest.seq == oldest.seq:
                del self._latest[oldest.reservation_id]

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        numbers = [event.seq for event in self._events]
        assert numbers == list(range(self._next - len(numbers), self._next))
        assert {event.seq for event in self._latest.values()} <= set(numbers)
