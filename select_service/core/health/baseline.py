"""How long a canary usually takes on one rank, and when it took far too long.

The anchor is the median of the first samples, so that a first answer that compiled something does
not hide what comes after it.  Then the baseline follows slowly.  What counts as normal never goes
above a multiple of the anchor: a rank that gets a little slower with every check would otherwise
teach its own sickness.
"""

from statistics import median

from select_service.core.health.rules import HealthRules


class Baseline:
    """In ms; 0 before the first sample."""

    __slots__ = ("_anchor_ms", "_first", "value_ms")

    def __init__(self) -> None:
        self.value_ms = 0.0
        self._first: list[float] = []
        self._anchor_ms: float | None = None

    def learn(self, latency_ms: float, rules: HealthRules, follows: bool) -> None:
        """A sample of a check that passed.  follows: may the baseline move after the anchor?"""
        if self._anchor_ms is None:
            self._first.append(latency_ms)
            self.value_ms = median(self._first)
            if len(self._first) >= rules.baseline_samples:
                self._anchor_ms, self._first = self.value_ms, []
        elif follows:
            self.value_ms += rules.alpha * (latency_ms - self.value_ms)

    def is_spike(self, latency_ms: float, rules: HealthRules) -> bool:
        """Never before there is an anchor."""
        if self._anchor_ms is None:
            return False
        normal = min(self.value_ms, rules.anchor_factor * self._anchor_ms)
        return latency_ms > max(rules.spike_factor * normal, normal + rules.spike_margin_ms)

    def check_invariants(self) -> None:
        """For tests."""
        assert (self.value_ms == 0.0) == (not self._first and self._anchor_ms is None)
