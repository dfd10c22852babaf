"""Log lines of what health does, so many a second at most."""

import logging

from select_service.core.health.checked import HealthCounts
from select_service.core.health.effects import (
    ChecksAccepted,
    ChecksRefused,
    Drained,
    Effect,
    Promoted,
    ReleaseAsked,
    StateChanged,
    Withheld,
)
from select_service.core.health.kinds import Kind
from select_service.core.identity import Rank
from select_service.edge.episodes import Episodes

LINES_PER_SECOND_MAX = 50

log = logging.getLogger("select_service.health")

_TOLD = {
    "reference_changes": "the right answers of a model have changed",
    "disagreements": "ranks give different answers, and nobody knows who is right",
    "common_mode": "many ranks are slow together: it is the network, or this host",
}
"""What is counted -> what is said when it begins to grow."""


class StateLog:
    """A follower of health."""

    def __init__(self, counts: HealthCounts) -> None:
        self._counts = counts
        self._before = dict.fromkeys(_TOLD, 0)
        self._episodes = Episodes()
        self._lines = 0
        """Of this second, those that were left out among them."""

    def follow(self, effect: Effect, now: float) -> None:
        """Tell of it."""
        match effect:
            case StateChanged(rank, was, state, cause):
                is_sick = not state.serves and cause is not Kind.OPERATOR
                fields = _named(rank) | {"was": was.word, "state": state.word}
                fields |= {} if cause is None else {"cause": cause.value}
                self._tell(is_sick, "a rank changed its state", fields)
            case Withheld(rank, cause):
                text = "a rank stays in rotation, since too many are out already"
                self._tell(True, text, _named(rank) | {"cause": cause.value})
            case Promoted(spare, failed):
                fields = {f"failed_{name}": value for name, value in _named(failed).items()}
                self._tell(False, "a spare takes the place of a rank", _named(spare) | fields)
            case Drained(rank):
                self._tell(False, "nothing is left on a rank that drains", _named(rank))
            case ChecksRefused(rank, endpoint, model_name, why):
                fields = _named(rank) | {"model_name": model_name, "why": why}
                fields |= {} if endpoint is None else {"endpoint": endpoint}
                self._tell(True, "health check refused, so health is not known", fields)
            case ChecksAccepted(rank):
                self._tell(False, "health check accepted again", _named(rank))
            case ReleaseAsked(rank, reservations):
                fields = _named(rank) | {"reservations": reservations}
                self._tell(True, "what is left on a rank is released", fields)

    def settle(self, now: float) -> None:
        """Nothing was left for a turn."""

    def tick(self, now: float) -> None:
        """Tell of what has only been counted, and begin a new second."""
        for name, text in _TOLD.items():
            count = getattr(self._counts, name)
            if count != self._before[name] and self._episodes.begins(name, now):
                fields = {"count": count - self._before[name]}
                log.warning(text, extra={"fields": fields})
            self._before[name] = count
        left_out = self._lines - LINES_PER_SECOND_MAX
        if left_out > 0:
            log.warning(
                "more happened to ranks than is told", extra={"fields": {"count": left_out}}
            )
        self._lines = 0

    def _tell(self, is_warning: bool, text: str, fields: dict[str, str | int]) -> None:
        self._lines += 1
        if self._lines <= LINES_PER_SECOND_MAX:
            level = logging.WARNING if is_warning else logging.INFO
            log.log(level, text, extra={"fields": fields})


def _named(rank: Rank) -> dict[str, str | int]:
    return {"worker_id": rank.worker_id, "dp_rank": rank.dp_rank}
