"""From what is wanted now to what is done: up at once, down only when a whole window agrees."""

from collections import deque
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from select_service.planner.core.reasons import Reason

HISTORY_MAX = 86_400
"""Wishes that are kept: a window of a day, one a second."""


class StabiliserSettings(Struct, frozen=True, kw_only=True):
    """Times in seconds; `tolerance` and the slack of a step down as parts."""

    down_window: float = 300.0
    down_cooldown: float = 60.0
    up_cooldown: float = 0.0
    max_up: int = 8
    tolerance: float = 0.1


class Standing(NamedTuple):
    """low, high: the least and the most replicas that may be;  pending: not ready yet"""

    current: int
    pending: int
    low: int
    high: int


class Step(NamedTuple):
    """target None: nothing is done"""

    target: int | None
    reason: Reason


class Stabiliser:
    """One role. Deterministic: the same wishes at the same times give the same steps."""

    def __init__(self, settings: StabiliserSettings) -> None:
        self._settings = settings
        self._wishes: deque[tuple[float, float]] = deque(maxlen=HISTORY_MAX)
        """Within the window: falling numbers, so that the first is the largest."""
        self._since: float | None = None
        self._last_up: float | None = None
        self._last_change: float | None = None

    def note(self, now_s: float, wanted: float) -> None:
        """A wish of a time in which nothing can be done: it holds up steps down as all do."""
        self._peak(now_s, wanted)

    def step(self, now_s: float, standing: Standing, wanted: float) -> Step:
        """wanted: replicas, not rounded.  O(1) amortised"""
        wanted = min(wanted, float(standing.high))
        peak = self._peak(now_s, wanted)
        have = standing.current + standing.pending
        if not standing.low <= have <= standing.high:
            return self._into_bounds(now_s, standing, have)
        if wanted > have:
            return self._up(now_s, standing, wanted)
        if standing.pending > 0:
            return Step(None, Reason.PENDING)
        if peak > have - 1 or have <= standing.low:
            return Step(None, Reason.HOLD)
        return self._down(now_s, have, peak)

    def _into_bounds(self, now_s: float, standing: Standing, have: int) -> Step:
        """Bounds are no wish: neither windows nor cooldowns hold them up."""
        self._last_change = now_s
        if have < standing.low:
            self._last_up = now_s
            return Step(standing.low, Reason.UP)
        return Step(standing.high, Reason.DOWN)

    def _peak(self, now_s: float, wanted: float) -> float:
        """The largest wish of the window, this one included."""
        wishes = self._wishes
        if self._since is None:
            self._since = now_s
        while wishes and wishes[-1][1] <= wanted:
            wishes.pop()
        wishes.append((now_s, wanted))
        while wishes[0][0] <= now_s - self._settings.down_window:
            wishes.popleft()
        return wishes[0][1]

    def _up(self, now_s: float, standing: Standing, wanted: float) -> Step:
        have = standing.current + standing.pending
        if wanted <= have * (1.0 + self._settings.tolerance):
            return Step(None, Reason.WITHIN_TOLERANCE)
        if not _passed(self._last_up, now_s, self._settings.up_cooldown):
            return Step(None, Reason.UP_COOLDOWN)
        self._last_up = self._last_change = now_s
        most = min(have + self._settings.max_up, standing.high)
        return Step(min(ceil(wanted - 1e-9), most), Reason.UP)

    def _down(self, now_s: float, have: int, peak: float) -> Step:
        assert self._since is not None
        if now_s - self._since < self._settings.down_window:
            return Step(None, Reason.FIRST_WINDOW)
        if peak > (have - 1) * (1.0 - self._settings.tolerance):
            return Step(None, Reason.WITHIN_TOLERANCE)
        if not _passed(self._last_change, now_s, self._settings.down_cooldown):
            return Step(None, Reason.DOWN_COOLDOWN)
        self._last_change = now_s
        return Step(have - 1, Reason.DOWN)

    def check_invariants(self) -> None:
        """For tests: the wishes that are kept fall, and none is older than the window."""
        times = [at for at, _ in self._wishes]
        values = [wanted for _, wanted in self._wishes]
        assert times == sorted(times)
        assert all(a > b for a, b in pairwise(values))
        assert not times or times[-1] - times[0] < self._settings.down_window


def _passed(since: float | None, now_s: float, seconds: float) -> bool:
    return since is None or now_s - since >= seconds
