"""What has moved: events that callers follow, and how moves ended.

Sequence numbers have no holes, and no two processes give the same ones.  Who asks for events that
are not kept any more, or with a number of another process, is told that there is a gap.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from select_service.core.health.kinds import Kind
from select_service.core.health.migration import Move
from select_service.core.health.move_cost import Method
from select_service.core.identity import Rank

KEPT_S = 600.0
KEPT_MAX = 65_536


class MoveEvent(NamedTuple):
    """One reservation that is elsewhere now; target None: it could not be moved."""

    seq: int
    reservation_id: str
    source: Rank
    target: Rank | None
    method: Method
    estimated_ms: float
    cause: Kind
    lockstep: bool
    at: float
    tenant_id: str


class MovePage(NamedTuple):
    """next: to ask after;  gap: events between were not kept"""

    events: Sequence[MoveEvent]
    next: int
    gap: bool


class Confirmed(NamedTuple):
    """method: by which it ended, that it is counted under;  event: what it ended"""

    event: MoveEvent
    method: Method
    ok: bool


class Moves:
    """The newest events, and the last of each reservation."""

    def __init__(self, begin: int = 0) -> None:
        """begin: all numbers are higher, and no earlier process has given those"""
        self._begin = begin
        self._events: deque[MoveEvent] = deque()
        self._latest: OrderedDict[str, MoveEvent] = OrderedDict()
        self._next = begin + 1

    def __bool__(self) -> bool:
        """Is there a reservation whose last move is kept and not confirmed?"""
        return bool(self._latest)

    @property
    def next(self) -> int:
        """The number of the next event."""
        return self._next

    def add(self, move: Move, source: Rank, cause: Kind, tenant_id: str, now: float) -> MoveEvent:
        """What was done; every event is seen by who asks in time.  O(1) amortised"""
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
        )
        self._next += 1
        self._events.append(event)
        self._latest[move.id] = event
        self.forget(now)
        return event

    def after(self, seq: int, events_max: int) -> MovePage:
        """Events with higher numbers, the oldest first.

        0 stands for the beginning.  A number that was not given is one of another process: there is
        a gap, too.
        """
        seq = seq or self._begin
        first = self._events[0].seq if self._events else self._next
        is_known = first - 1 <= seq < self._next
        start = seq + 1 - first if is_known else 0
        found = tuple(islice(self._events, start, start + events_max))
        return MovePage(found, found[-1].seq if found else self._next - 1, gap=not is_known)

    def of(self, reservation_id: str) -> MoveEvent | None:
        """The last move of a reservation, as long as it is kept."""
        return self._latest.get(reservation_id)

    def confirmed(self, reservation_id: str, ok: bool) -> Confirmed | None:
        """Its caller says how the move went; a failed transfer goes on as a re-prefill there.

        None: it has not moved, or has been confirmed.
        """
        event = self._latest.get(reservation_id)
        if event is None or event.target is None:
            return None
        if not ok and event.method is Method.TRANSFER:
            self._latest[reservation_id] = event._replace(method=Method.REPREFILL)
            return Confirmed(event, Method.REPREFILL, ok)
        del self._latest[reservation_id]
        return Confirmed(event, event.method, ok)

    def forget(self, now: float) -> None:
        """What is too old or too much."""
        events = self._events
        while events and (len(events) > KEPT_MAX or now - events[0].at > KEPT_S):
            oldest = events.popleft()
            latest = self._latest.get(oldest.reservation_id)
            if latest is not None and latest.seq == oldest.seq:
                del self._latest[oldest.reservation_id]

    def check_invariants(self) -> None:
        """For tests."""
        numbers = [event.seq for event in self._events]
        assert numbers == list(range(self._next - len(numbers), self._next))
        assert {event.seq for event in self._latest.values()} <= set(numbers)
