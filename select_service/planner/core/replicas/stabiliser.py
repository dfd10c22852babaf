"""Stabiliser of a role's count: up at once, down only when a whole window agrees."""

from collections import deque
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from select_service.planner.core.reasons import Reason

HISTORY_MAX = 86_400
"""Number of kept values: a window of a day at a value a second."""


class StabiliserSettings(Struct, frozen=True, kw_only=True):
    """Settings of a stabiliser, seconds; `tolerance` and the slack of a step down are parts."""

    down_window: float = 300.0
    down_cooldown: float = 60.0
    up_cooldown: float = 0.0
    max_up: int = 8
    tolerance: float = 0.1


class StabiliserInput(NamedTuple):
    """Replicas of a role and their bounds.

    current: ready replicas
    pending: replicas that start
    low, high: bounds of the sum
    """

    current: int
    pending: int
    low: int
    high: int


class StabiliserStep(NamedTuple):
    """Step of a stabiliser. target None means no change."""

    target: int | None
    reason: Reason


class Stabiliser:
    """Stabiliser of a role. Deterministic: equal inputs at equal times give equal steps."""

    def __init__(self, settings: StabiliserSettings) -> None:
        self._settings = settings
        self._window_values: deque[tuple[float, float]] = deque(maxlen=HISTORY_MAX)
        """Values of the window in falling order, so that the first is the maximum."""
        self._since: float | None = None
        self._last_up: float | None = None
        self._last_change: float | None = None

    def note_desired(self, now_s: float, wanted: float) -> None:
        """Record a value of a time without action; the value delays steps down like any other."""
        self._window_maximum(now_s, wanted)

    def next_step(self, now_s: float, now: StabiliserInput, wanted: float) -> StabiliserStep:
        """Return the step towards `wanted` replicas, not rounded.  O(1) amortised"""
        wanted = min(wanted, float(now.high))
        peak = self._window_maximum(now_s, wanted)
        have = now.current + now.pending
        if not now.low <= have <= now.high:
            return self._step_into_bounds(now_s, now, have)
        if wanted > have:
            return self._step_up(now_s, now, wanted)
        if now.pending > 0:
            return StabiliserStep(None, Reason.PENDING)
        # The maximum over the window decides: a short dip must not end replicas that take minutes
        # to start again.
        if peak > have - 1 or have <= now.low:
            return StabiliserStep(None, Reason.HOLD)
        return self._step_down(now_s, have, peak)

    def _step_into_bounds(self, now_s: float, now: StabiliserInput, have: int) -> StabiliserStep:
        """Return into the bounds at once: neither windows nor cooldowns apply."""
        self._last_change = now_s
        if have < now.low:
            self._last_up = now_s
            return StabiliserStep(now.low, Reason.UP)
        return StabiliserStep(now.high, Reason.DOWN)

    def _window_maximum(self, now_s: float, wanted: float) -> float:
        """Add a value and return the maximum of the window."""
        wishes = self._window_values
        if self._since is None:
            self._since = now_s
        # Monotonic queue: a smaller older value can never be the maximum again. So the maximum is
        # at the front, and each value is added and removed once.
        while wishes and wishes[-1][1] <= wanted:
            wishes.pop()
        wishes.append((now_s, wanted))
        while wishes[0][0] <= now_s - self._settings.down_window:
            wishes.popleft()
        return wishes[0][1]

    def _step_up(self, now_s: float, now: StabiliserInput, wanted: float) -> StabiliserStep:
        """Return the step up, unless within the tolerance or the cooldown."""
        have = now.current + now.pending
        if wanted <= have * (1.0 + self._settings.tolerance):
            return StabiliserStep(None, Reason.WITHIN_TOLERANCE)
        if not _has_passed(self._last_up, now_s, self._settings.up_cooldown):
            return StabiliserStep(None, Reason.UP_COOLDOWN)
        self._last_up = self._last_change = now_s
        # 1e-9 below absorbs rounding: 3.0000000001 needs three replicas.
        most = min(have + self._settings.max_up, now.high)
        return StabiliserStep(min(ceil(wanted - 1e-9), most), Reason.UP)

    def _step_down(self, now_s: float, have: int, peak: float) -> StabiliserStep:
        """Return one replica less, after a whole window, the tolerance and the cooldown."""
        assert self._since is not None
        # After a start the window is incomplete, and the past demand unknown.
        if now_s - self._since < self._settings.down_window:
            return StabiliserStep(None, Reason.FIRST_WINDOW)
        if peak > (have - 1) * (1.0 - self._settings.tolerance):
            return StabiliserStep(None, Reason.WITHIN_TOLERANCE)
        if not _has_passed(self._last_change, now_s, self._settings.down_cooldown):
            return StabiliserStep(None, Reason.DOWN_COOLDOWN)
        self._last_change = now_s
        return StabiliserStep(have - 1, Reason.DOWN)


def _has_passed(since: float | None, now_s: float, seconds: float) -> bool:
    """Return whether so many seconds have passed; True without a start."""
    return since is None or now_s - since >= seconds
