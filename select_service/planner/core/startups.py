"""Replicas that start: how long it takes, and those that never come."""

from collections import deque
from typing import NamedTuple

from select_service.planner.core.inputs import Replicas
from select_service.planner.core.settings import Settings

STARTUP_WEIGHT = 0.3
HELD_S = 600.0
"""After a stuck start-up nothing is added for so long."""


def starting(role: Replicas) -> int:
    """Replicas that are on their way; 0 where it is not known."""
    missing = 0 if role.expected is None else max(0, role.expected - role.ready)
    return max(role.pending, missing)


def in_progress(role: Replicas) -> bool:
    """Something starts, drains or rolls."""
    moving = role.expected is not None and role.expected != role.ready
    return role.in_progress or moving or role.pending > 0


class Waiting(NamedTuple):
    """pending_s: since when nothing has become ready;  stuck: for too long"""

    pending_s: float
    stuck: bool
    ceiling: int | None
    """Replicas that are not to be exceeded."""
    base: int
    """That were ready before the start began: those are not given up with it."""


class UnderWay:
    """Replicas that start, by when each was first seen. The oldest are taken to be ready first, and
    the newest to be withdrawn."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float | None, int]] = deque()
        """(when, how many), oldest first; None: before the first reading."""

    def __len__(self) -> int:
        return sum(count for _, count in self._seen)

    def came(self, count: int, now_s: float) -> float | None:
        """So many are ready.  Seconds that those took on average; None: of none is it known."""
        seconds, known = 0.0, 0
        while count > 0 and self._seen:
            at_s, of_then = self._seen.popleft()
            these = min(count, of_then)
            if these < of_then:
                self._seen.appendleft((at_s, of_then - these))
            if at_s is not None:
                seconds, known = seconds + these * (now_s - at_s), known + these
            count -= these
        return seconds / known if known else None

    def become(self, count: int, at_s: float | None) -> None:
        """So many there are. Further ones are seen now; at_s None: who knows since when"""
        beyond = count - len(self)
        if beyond > 0:
            self._seen.append((at_s, beyond))
        while beyond < 0:
            then_s, of_then = self._seen.pop()
            if of_then + beyond > 0:
                self._seen.append((then_s, of_then + beyond))
            beyond += of_then


class Startups:
    """Of one role."""

    def __init__(self, settings: Settings) -> None:
        self._stuck_s = settings.pending_stuck_secs
        self.startup_s = settings.startup_s
        self._under_way = UnderWay()
        self._progress: float | None = None
        self._ready: int | None = None
        self._base = 0
        self._held_until: float | None = None
        self._ceiling = 0

    def observe(self, now_s: float, role: Replicas) -> Waiting:
        """Once a tick."""
        came = 0 if self._ready is None else max(0, role.ready - self._ready)
        took = self._under_way.came(came, now_s)
        if took is not None:
            self.startup_s += STARTUP_WEIGHT * (took - self.startup_s)
        if starting(role) == 0:
            self._progress = None
        elif self._progress is None:
            self._progress = now_s
            self._base = self._before(role)
        elif came:
            self._progress = now_s
        self._under_way.become(starting(role), None if self._ready is None else now_s)
        self._ready = role.ready
        waited = 0.0 if self._progress is None else now_s - self._progress
        limit = max(self._stuck_s, 2.0 * self.startup_s)
        stuck = self._progress is not None and waited >= limit
        if stuck:
            self._held_until, self._ceiling = now_s + HELD_S, max(role.ready, self._base)
        return Waiting(waited, stuck, self._ceiling_at(now_s), self._base)

    def _before(self, role: Replicas) -> int:
        """Replicas that are not new. Those that have just failed, or roll, were ready before.

        What was under way before the first reading may all have been there already.
        """
        if self._ready is None:
            return role.ready + starting(role)
        return max(self._ready, role.ready)

    def _ceiling_at(self, now_s: float) -> int | None:
        if self._held_until is None or now_s >= self._held_until:
            self._held_until = None
            return None
        return self._ceiling

    def check_invariants(self) -> None:
        """For tests."""
        assert self.startup_s > 0.0
        assert (len(self._under_way) == 0) == (self._progress is None)
