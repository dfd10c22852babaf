"""Two log lines per episode of rejected requests: at its start and at its end."""

import logging

from select_service.core.admission.outcome_counters import REJECTIONS, AdmissionCounters

QUIET_S = 10.0
"""Seconds without a rejection after which an episode ends."""

log = logging.getLogger("select_service.admission")


class RejectionLog:
    """Log of rejection episodes; `update_episode` is called once a second."""

    def __init__(self) -> None:
        self._before: dict[str, int] = dict.fromkeys(REJECTIONS, 0)
        self._at_begin = dict(self._before)
        self._begun_at = 0.0
        self._last_at: float | None = None

    def update_episode(self, tally: AdmissionCounters, now: float) -> None:
        """Compare the counters with the last call and log the start or end of an episode.

        now: monotonic clock, seconds
        """
        counts: dict[str, int] = {outcome: tally.other_outcomes[outcome] for outcome in REJECTIONS}
        if counts != self._before:
            if self._last_at is None:
                # Counts from before this call: the first rejections belong to the episode.
                self._begun_at, self._at_begin = now, self._before
                log.warning("requests rejected", extra={"fields": self._rejected_since(counts)})
            self._last_at = now
        elif self._last_at is not None and now - self._last_at >= QUIET_S:
            seconds = round(self._last_at - self._begun_at, 1)
            fields = self._rejected_since(counts) | {"seconds": seconds}
            log.info("rejection of requests ended", extra={"fields": fields})
            self._last_at = None
        self._before = counts

    def _rejected_since(self, counts: dict[str, int]) -> dict[str, float]:
        """Return the rejections of this episode by reason."""
        since = {outcome: n - self._at_begin[outcome] for outcome, n in counts.items()}
        return {outcome: n for outcome, n in since.items() if n}
