"""Start-ups of replicas: measured duration, and detection of stuck start-ups."""

from collections import deque
from typing import NamedTuple

from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import RoleReplicas

STARTUP_WEIGHT = 0.3
STUCK_HOLD_S = 600.0
"""Time after a stuck start-up in which no replica is added, seconds."""


def count_starting(role: RoleReplicas) -> int:
    """Return the number of replicas that start; 0 if unknown."""
    missing = 0 if role.expected is None else max(0, role.expected - role.ready)
    return max(role.pending, missing)


def is_in_progress(role: RoleReplicas) -> bool:
    """Return whether replicas start, drain or roll."""
    moving = role.expected is not None and role.expected != role.ready
    return role.in_progress or moving or role.pending > 0


class StartUpProgress(NamedTuple):
    """Progress of a start-up.

    pending_s: seconds without a newly ready replica
    stuck:     whether that is too long
    """

    pending_s: float
    stuck: bool
    ceiling: int | None
    """Limit of the replicas after a stuck start-up."""
    base: int
    """Replicas that were ready before the start-up, and survive its withdrawal."""


class StartingReplicas:
    """Replicas that start, by first sighting.

    The oldest are assumed to become ready first, and the newest to be withdrawn first.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float | None, int]] = deque()
        """(time, number of replicas), oldest first; time None means before the first reading."""

    def __len__(self) -> int:
        return sum(count for _, count in self._seen)

    def remove_ready(self, count: int, now_s: float) -> float | None:
        """Remove replicas that became ready.

        Return their mean start-up seconds, or None if unknown.
        """
        seconds, known = 0.0, 0
        while count > 0 and self._seen:
            at_s, of_then = self._seen.popleft()
            # Platforms do not report which replica became ready: first started, first ready.
            these = min(count, of_then)
            if these < of_then:
                self._seen.appendleft((at_s, of_then - these))
            if at_s is not None:
                seconds, known = seconds + these * (now_s - at_s), known + these
            count -= these
        return seconds / known if known else None

    def set_count(self, count: int, at_s: float | None) -> None:
        """Set the number of starting replicas; new replicas start at `at_s`, None if unknown."""
        beyond = count - len(self)
        if beyond > 0:
            self._seen.append((at_s, beyond))
        while beyond < 0:
            then_s, of_then = self._seen.pop()
            if of_then + beyond > 0:
                self._seen.append((then_s, of_then + beyond))
            beyond += of_then


class StartUpTracker:
    """Start-ups of a role."""

    def __init__(self, settings: DeploymentSettings) -> None:
        self._stuck_s = settings.pending_stuck_secs
        self.startup_s = settings.startup_s
        self._under_way = StartingReplicas()
        self._progress: float | None = None
        self._ready: int | None = None
        self._base = 0
        self._held_until: float | None = None
        self._ceiling = 0

    def observe_role(self, now_s: float, role: RoleReplicas) -> StartUpProgress:
        """Update the start-up time and the progress; called once a tick."""
        came = 0 if self._ready is None else max(0, role.ready - self._ready)
        took = self._under_way.remove_ready(came, now_s)
        if took is not None:
            # Smoothed: image pulls and cold caches make single start-ups much slower.
            self.startup_s += STARTUP_WEIGHT * (took - self.startup_s)
        if count_starting(role) == 0:
            self._progress = None
        elif self._progress is None:
            self._progress = now_s
            self._base = self._replicas_before(role)
        elif came:
            self._progress = now_s
        self._under_way.set_count(count_starting(role), None if self._ready is None else now_s)
        self._ready = role.ready
        waited = 0.0 if self._progress is None else now_s - self._progress
        # Large models take longer than any fixed limit, so the measured time counts, too.
        limit = max(self._stuck_s, 2.0 * self.startup_s)
        stuck = self._progress is not None and waited >= limit
        if stuck:
            self._held_until, self._ceiling = now_s + STUCK_HOLD_S, max(role.ready, self._base)
        return StartUpProgress(waited, stuck, self._ceiling_at(now_s), self._base)

    def _replicas_before(self, role: RoleReplicas) -> int:
        """Return the replicas that are not new.

        Replicas that just failed, or roll, were ready before. Replicas under way before the first
        reading may all have been ready before.
        """
        # At the first reading new and failed replicas cannot be distinguished: assume all are
        # needed.
        if self._ready is None:
            return role.ready + count_starting(role)
        return max(self._ready, role.ready)

    def _ceiling_at(self, now_s: float) -> int | None:
        """Return the ceiling, or None after its end."""
        if self._held_until is None or now_s >= self._held_until:
            self._held_until = None
            return None
        return self._ceiling
