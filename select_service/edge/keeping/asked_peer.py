"""One peer during the recovery: the downloads tried from it, their pauses and their log lines."""

import logging

from indexer.dumps.compact_load import LoadLimits
from select_service.edge.http_client import HttpClient
from select_service.edge.keeping.peer_dump import Download, DownloadedDump
from select_service.edge.keeping.reading import Reading

CHOICE_S_MAX = 5.0
PAUSE_S_MAX = 1.0
BACKOFF_S = 0.1
BACKOFF_S_MAX = 1.0

log = logging.getLogger("select_service.recovery")


def backoff_s(failures: int) -> float:
    """The pause after one more failure, `failures` having come before it."""
    return min(BACKOFF_S * 2.0 ** min(failures, 10), BACKOFF_S_MAX)


class AskedPeer:
    """Asked from the start; `answer` is there once a download has succeeded."""

    def __init__(self, url: str, limits: LoadLimits, http: HttpClient) -> None:
        self.url = url
        self.answer: DownloadedDump | None = None
        self._limits = limits
        self._http = http
        self._attempts = 0
        self._told: set[str] = set()  # at most one error per attempt
        self._is_done = False
        self._next_try: float | None = None
        self._download = self._started()

    @property
    def reading(self) -> Reading:
        """Of the present download, or the last one."""
        return self._download.reading

    def look(self, now: float, retry_until: float) -> None:
        """See whether the download has ended, and try again when it is time."""
        if self._next_try is not None:
            if now >= self._next_try:
                self._next_try = None
                self._download = self._started()
        elif not self._is_done and self._download.is_over:
            self.answer = self._download.answer
            if self.answer is not None:
                self._tell_answer(self.answer)
            else:
                self._tell_failure(self._download.error)
            if self.answer is None and now < retry_until:
                self._next_try = min(now + backoff_s(self._attempts - 1), retry_until)
            else:
                self._is_done = True

    def is_awaited(self, now: float, first_found: float | None) -> bool:
        """May this peer still give an answer that is used?"""
        if self._next_try is not None:
            return first_found is None
        if self._is_done or first_found is None:
            return not self._is_done
        silent = now - max(self.reading.progress_at, first_found)
        return now - first_found < CHOICE_S_MAX and silent < PAUSE_S_MAX

    def give_up(self) -> None:
        """Nobody wants its answer any more."""
        error = self._download.error
        if not self._download.is_over:
            self._download.cancel()
            error = "it took too long"
        if self.answer is None:
            fields = {"peer": self.url, "error": error, "attempts": self._attempts}
            log.warning("no dump from this peer", extra={"fields": fields})

    def cancel(self) -> None:
        """The process ends."""
        self._download.cancel()

    def _started(self) -> Download:
        self._attempts += 1
        return Download(self.url, self._limits, self._http)

    def _tell_failure(self, error: str) -> None:
        """Once per distinct error: a peer that is down fails in the same way each time."""
        if error not in self._told:
            self._told.add(error)
            fields = {"peer": self.url, "error": error, "attempt": self._attempts}
            log.warning("a download of a dump failed", extra={"fields": fields})

    def _tell_answer(self, answer: DownloadedDump) -> None:
        reading = answer.reading
        fields = {
            "peer": self.url,
            "form": answer.form,
            "bytes": reading.bytes,
            "partitions": len(answer.partitions),
            "blocks": answer.blocks,
            "seconds": round(reading.progress_at - reading.begun_at, 3),
        }
        log.info("a dump was downloaded", extra={"fields": fields})
