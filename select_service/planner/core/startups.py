"""Replicas that start: how long it takes, and those that never come."""

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


class Startups:
    """Of one role."""

    def __init__(self, settings: Settings) -> None:
        self._stuck_s = settings.pending_stuck_secs
        self.startup_s = settings.startup_s
        self._began: float | None = None
        self._progress: float | None = None
        self._ready: int | None = None
        self._base = 0
        self._held_until: float | None = None
        self._ceiling = 0

    def observe(self, now_s: float, role: Replicas) -> Waiting:
        """Once a tick."""
        if starting(role) == 0:
            self._finished(now_s)
        elif self._began is None:
            self._began = self._progress = now_s
            self._base = self._before(role)
        elif self._ready is None or role.ready > self._ready:
            self._progress = now_s
        self._ready = role.ready
        waited = 0.0 if self._progress is None else now_s - self._progress
        stuck = self._began is not None and waited >= max(self._stuck_s, 2.0 * self.startup_s)
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

    def _finished(self, now_s: float) -> None:
        """All are ready, or were taken back: only the former says how long it takes."""
        if self._began is not None and self._held_until is None:
            took = now_s - self._began
            self.startup_s += STARTUP_WEIGHT * (took - self.startup_s)
        self._began = self._progress = None

    def _ceiling_at(self, now_s: float) -> int | None:
        if self._held_until is None or now_s >= self._held_until:
            self._held_until = None
            return None
        return self._ceiling

    def check_invariants(self) -> None:
        """For tests."""
        assert self.startup_s > 0.0
        assert (self._began is None) == (self._progress is None)
