"""Two log lines per episode of rejections: when it begins, and when it is over."""

import logging

from select_service.core.admission.tally import REJECTIONS, AdmissionTally

QUIET_S = 10.0
"""An episode is over when nothing was refused for so long."""

log = logging.getLogger("select_service.admission")


class RejectionLog:
    """Looked at once a second."""

    def __init__(self) -> None:
        self._before: dict[str, int] = dict.fromkeys(REJECTIONS, 0)
        self._at_begin = dict(self._before)
        self._begun_at = 0.0
        self._last_at: float | None = None

    def tick(self, tally: AdmissionTally, now: float) -> None:
        """now: seconds of the monotonic clock"""
        counts: dict[str, int] = {outcome: tally.others[outcome] for outcome in REJECTIONS}
        if counts != self._before:
            if self._last_at is None:
                self._begun_at, self._at_begin = now, self._before
                log.warning("requests are refused", extra={"fields": self._since(counts)})
            self._last_at = now
        elif self._last_at is not None and now - self._last_at >= QUIET_S:
            seconds = round(self._last_at - self._begun_at, 1)
            fields = self._since(counts) | {"seconds": seconds}
            log.info("no more requests are refused", extra={"fields": fields})
            self._last_at = None
        self._before = counts

    def _since(self, counts: dict[str, int]) -> dict[str, float]:
        """What was refused in this episode, by reason."""
        since = {outcome: n - self._at_begin[outcome] for outcome, n in counts.items()}
        return {outcome: n for outcome, n in since.items() if n}
