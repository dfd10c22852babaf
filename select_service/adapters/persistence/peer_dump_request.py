"""Recovery from one peer: its download attempts, backoff and log lines."""

import logging

from indexer.dumps.compact_reader import LoadLimits
from select_service.adapters.http_get import HttpClient
from select_service.adapters.persistence.peer_dump_download import DownloadedDump, PeerDumpDownload
from select_service.adapters.persistence.recovery_progress import RecoveryProgress

CHOICE_S_MAX = 5.0
PAUSE_S_MAX = 1.0
BACKOFF_S = 0.1
BACKOFF_S_MAX = 1.0

log = logging.getLogger("select_service.recovery")


def backoff_s(failures: int) -> float:
    """Return the delay in seconds after a failure that follows `failures` failures."""
    return min(BACKOFF_S * 2.0 ** min(failures, 10), BACKOFF_S_MAX)


class PeerDumpRequest:
    """Download of a peer's dump with retries; `answer` is set after a success."""

    def __init__(self, url: str, limits: LoadLimits, http: HttpClient) -> None:
        self.url = url
        self.answer: DownloadedDump | None = None
        self._limits = limits
        self._http = http
        self._attempts = 0
        self._logged_errors: set[str] = set()  # at most one error per attempt
        self._is_done = False
        self._next_try: float | None = None
        self._download = self._start_download()

    @property
    def progress(self) -> RecoveryProgress:
        """Progress of the current or last download."""
        return self._download.progress

    def check_download(self, now: float, retry_until: float) -> None:
        """Check whether the download has ended, and retry when the backoff is over."""
        if self._next_try is not None:
            if now >= self._next_try:
                self._next_try = None
                self._download = self._start_download()
        elif not self._is_done and self._download.is_over:
            self.answer = self._download.answer
            if self.answer is not None:
                self._log_answer(self.answer)
            else:
                self._log_failure(self._download.error)
            if self.answer is None and now < retry_until:
                self._next_try = min(now + backoff_s(self._attempts - 1), retry_until)
            else:
                self._is_done = True

    def is_awaited(self, now: float, first_found: float | None) -> bool:
        """Return whether this peer may still deliver an answer that is used."""
        if self._next_try is not None:
            return first_found is None
        if self._is_done or first_found is None:
            return not self._is_done
        # A peer still gets its pause in full if another peer was faster.
        silent = now - max(self.progress.progress_at, first_found)
        return now - first_found < CHOICE_S_MAX and silent < PAUSE_S_MAX

    def give_up(self) -> None:
        """Cancel the download and log a missing answer."""
        error = self._download.error
        if not self._download.is_over:
            self._download.cancel()
            error = "download exceeded its time limit"
        if self.answer is None:
            fields = {"peer": self.url, "error": error, "attempts": self._attempts}
            log.warning("no dump received from peer", extra={"fields": fields})

    def cancel(self) -> None:
        """Cancel the download at shutdown."""
        self._download.cancel()

    def _start_download(self) -> PeerDumpDownload:
        self._attempts += 1
        return PeerDumpDownload(self.url, self._limits, self._http)

    def _log_failure(self, error: str) -> None:
        """Log each distinct error once: an unavailable peer fails in the same way each time."""
        if error not in self._logged_errors:
            self._logged_errors.add(error)
            fields = {"peer": self.url, "error": error, "attempt": self._attempts}
            log.warning("dump download failed", extra={"fields": fields})

    def _log_answer(self, answer: DownloadedDump) -> None:
        reading = answer.progress
        fields = {
            "peer": self.url,
            "form": answer.form,
            "bytes": reading.bytes,
            "partitions": len(answer.partitions),
            "blocks": answer.blocks,
            "seconds": round(reading.progress_at - reading.begun_at, 3),
        }
        log.info("dump downloaded", extra={"fields": fields})
