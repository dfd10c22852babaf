"""Log lines for ranks with an unreachable KV event endpoint, and for their recovery.

A rank without an event connection still receives requests; only its cache content is unknown.
Requests do not fail, so the log is where an operator finds a wrong port.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import islice

from indexer.sockets.ingest import Ingest
from indexer.sockets.listener_status import MissingConnection
from select_service.core.identity import Rank

RANKS_PER_STEP = 512
"""Maximum number of ranks checked per step.

About 2 us for each unconnected rank, less for others.
"""
LINES_MAX = 50
"""Maximum number of per-rank lines in one pass; one further line counts the other ranks."""
REMIND_S = 3600.0
"""Interval of the summary line about ranks that stay unconnected, in seconds."""
NAMED_RANKS_MAX = 5
"""Maximum number of ranks named in a summary line."""

log = logging.getLogger("select_service.kv_events")


class KvConnectionsLog:
    """Task that checks all ranks once a second, in steps."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest
        self._pass_connections: Iterator[tuple[tuple[int, int], MissingConnection | None]] = iter(
            ()
        )
        self._is_pass_running = False
        self._missing: dict[Rank, MissingConnection] = {}
        """Ranks found unconnected for long in this pass."""
        self._recovered: list[Rank] = []
        self._warned: dict[Rank, MissingConnection] = {}
        """Ranks with a logged warning, and the state in that warning."""
        self._reminded_at = 0.0

    def check_step(self, now: float) -> bool:
        """Check some ranks; return True when the pass is not finished."""
        if not self._is_pass_running:
            self._pass_connections, self._is_pass_running = self._ingest.missing_connections(), True
            self._missing, self._recovered = {}, []
        seen = 0
        for key, missing in islice(self._pass_connections, RANKS_PER_STEP):
            seen += 1
            if missing is None:
                if key in self._warned:
                    self._recovered.append(Rank(*key))
            # A connection that is missing only briefly is normal while engines restart.
            elif missing.is_long(now):
                self._missing[Rank(*key)] = missing
        if seen == RANKS_PER_STEP:
            return True
        self._is_pass_running = False
        self._log_changes(now)
        return False

    def _log_changes(self, now: float) -> None:
        came = [(rank, self._warned[rank]) for rank in self._recovered]
        _log_each(logging.INFO, "KV event endpoint connected", came, now)
        new = [pair for pair in self._missing.items() if pair[0] not in self._warned]
        if new and not self._warned:
            self._reminded_at = now
        _log_each(logging.WARNING, "KV event endpoint unconnected", new, now)
        if self._warned and now - self._reminded_at >= REMIND_S:
            self._reminded_at = now
            old = [pair for pair in self._missing.items() if pair[0] in self._warned]
            if old:
                _log_sum(logging.WARNING, "KV event endpoints still unconnected", old, now)
        self._warned = self._missing


def _log_each(
    level: int, text: str, found: list[tuple[Rank, MissingConnection]], now: float
) -> None:
    for rank, missing in found[:LINES_MAX]:
        fields = {"worker_id": rank.worker_id, "dp_rank": rank.dp_rank}
        log.log(level, text, extra={"fields": fields | _missing_fields(missing, now)})
    if len(found) > LINES_MAX:
        _log_sum(level, f"{text} (further ranks)", found[LINES_MAX:], now)


def _log_sum(
    level: int, text: str, found: list[tuple[Rank, MissingConnection]], now: float
) -> None:
    """Log one line for several ranks: their number, the first few names and the oldest state."""
    first = min((missing for _, missing in found), key=lambda missing: missing.since)
    fields = {
        "count": len(found),
        "ranks": [*_rank_names(rank for rank, _ in found[:NAMED_RANKS_MAX])],
    }
    log.log(level, text, extra={"fields": fields | _missing_fields(first, now)})


def _rank_names(ranks: Iterable[Rank]) -> Iterator[str]:
    return (f"{rank.worker_id}/{rank.dp_rank}" for rank in ranks)


def _missing_fields(missing: MissingConnection, now: float) -> dict[str, str | float]:
    said: dict[str, str | float] = {"endpoint": missing.endpoint}
    said["seconds"] = round(now - missing.since, 1)
    if missing.error is not None:
        said["error"] = missing.error
    return said
