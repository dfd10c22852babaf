"""Usual canary latency of a rank, and detection of latency spikes.

The anchor is the median of the first samples, so that a slow first answer (compilation, cold
caches) does not hide later slowness. Afterwards the baseline follows slowly. The normal latency is
capped at a multiple of the anchor: otherwise a rank that slows down a little with every check
would raise its own baseline and never be detected.
"""

from statistics import median

from select_service.core.health.health_rules import HealthRules


class LatencyBaseline:
    """Latency baseline of a rank, in ms; 0 before the first sample."""

    __slots__ = ("_anchor_ms", "_first", "value_ms")

    def __init__(self) -> None:
        self.value_ms = 0.0
        self._first: list[float] = []
        self._anchor_ms: float | None = None

    def add_sample(self, latency_ms: float, rules: HealthRules, may_move: bool) -> None:
        """Add the latency of a passed check, in ms.

        may_move: whether the baseline may move after the anchor is set
        """
        if self._anchor_ms is None:
            self._first.append(latency_ms)
            self.value_ms = median(self._first)
            if len(self._first) >= rules.baseline_samples:
                # The anchor is fixed for the life of the process; only a reset starts a new anchor.
                self._anchor_ms, self._first = self.value_ms, []
        elif may_move:
            self.value_ms += rules.alpha * (latency_ms - self.value_ms)

    def is_spike(self, latency_ms: float, rules: HealthRules) -> bool:
        """Return whether the latency, in ms, is a spike; always False before the anchor is set."""
        if self._anchor_ms is None:
            return False
        normal = min(self.value_ms, rules.anchor_factor * self._anchor_ms)
        # The absolute margin prevents spikes of a few ms on very fast canaries.
        return latency_ms > max(rules.spike_factor * normal, normal + rules.spike_margin_ms)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert (self.value_ms == 0.0) == (not self._first and self._anchor_ms is None)
