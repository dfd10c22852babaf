"""Log lines of rank health changes, limited in rate."""

import logging

from select_service.adapters.logs.log_throttle import LogThrottle
from select_service.core.health.checks.check_state import HealthCounters
from select_service.core.health.health_effects import (
    ChecksAccepted,
    ChecksRefused,
    DrainFinished,
    EjectionWithheld,
    HealthEffect,
    ReleaseRequested,
    SparePromoted,
    StateChanged,
)
from select_service.core.health.health_kinds import CheckKind
from select_service.core.identity import Rank

LINES_PER_SECOND_MAX = 50

log = logging.getLogger("select_service.health")

_COUNTER_TEXTS = {
    "reference_changes": "reference answers of a model changed",
    "disagreements": "ranks disagree without a majority",
    "common_mode": "many ranks slow at once: network or this host",
}
"""Log message by counter, for counters that begin to grow."""


class RankStateLog:
    """Listener that logs health effects."""

    def __init__(self, counts: HealthCounters) -> None:
        self._counts = counts
        self._before = dict.fromkeys(_COUNTER_TEXTS, 0)
        self._episodes = LogThrottle()
        self._lines = 0
        """Number of effects in this second, also of suppressed effects."""

    def on_effect(self, effect: HealthEffect, now: float) -> None:
        """Log an effect."""
        match effect:
            case StateChanged(rank, was, state, cause):
                # A change that an operator requested is no reason for a warning.
                is_sick = not state.is_serving and cause is not CheckKind.OPERATOR
                fields = _rank_fields(rank) | {"was": was.label, "state": state.label}
                fields |= {} if cause is None else {"cause": cause.value}
                self._log_effect(is_sick, "rank state changed", fields)
            case EjectionWithheld(rank, cause):
                text = "rank kept in rotation by the ejection limit"
                self._log_effect(True, text, _rank_fields(rank) | {"cause": cause.value})
            case SparePromoted(spare, failed):
                fields = {f"failed_{name}": value for name, value in _rank_fields(failed).items()}
                self._log_effect(
                    False, "spare promoted for a failed rank", _rank_fields(spare) | fields
                )
            case DrainFinished(rank):
                self._log_effect(False, "rank drained", _rank_fields(rank))
            case ChecksRefused(rank, endpoint, model_name, why):
                fields = _rank_fields(rank) | {"model_name": model_name, "why": why}
                fields |= {} if endpoint is None else {"endpoint": endpoint}
                self._log_effect(True, "health check rejected, health unknown", fields)
            case ChecksAccepted(rank):
                self._log_effect(False, "health check accepted again", _rank_fields(rank))
            case ReleaseRequested(rank, reservations):
                fields = _rank_fields(rank) | {"reservations": reservations}
                self._log_effect(True, "remaining reservations of a rank released", fields)

    def run_turn(self, now: float) -> None:
        """Return without an effect, because no work is deferred."""

    def run_every_second(self, now: float) -> None:
        """Log counters that began to grow and start a new second."""
        for name, text in _COUNTER_TEXTS.items():
            count = getattr(self._counts, name)
            if count != self._before[name] and self._episodes.begins_episode(name, now):
                fields = {"count": count - self._before[name]}
                log.warning(text, extra={"fields": fields})
            self._before[name] = count
        # A network failure changes thousands of ranks at once; the log must stay readable.
        left_out = self._lines - LINES_PER_SECOND_MAX
        if left_out > 0:
            log.warning(
                "rank state changes suppressed by rate limit", extra={"fields": {"count": left_out}}
            )
        self._lines = 0

    def _log_effect(self, is_warning: bool, text: str, fields: dict[str, str | int]) -> None:
        self._lines += 1
        if self._lines <= LINES_PER_SECOND_MAX:
            level = logging.WARNING if is_warning else logging.INFO
            log.log(level, text, extra={"fields": fields})


def _rank_fields(rank: Rank) -> dict[str, str | int]:
    return {"worker_id": rank.worker_id, "dp_rank": rank.dp_rank}
