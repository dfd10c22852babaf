"""Log lines of ranks whose KV event endpoint does not answer, and of those that answer again.

A rank without a connection gets its requests all the same, only its cache is not known.  So nothing
fails, and the log is where an operator hears of a wrong port.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import islice

from indexer.sockets.ingest import Ingest
from indexer.sockets.listener_status import Unconnected
from select_service.core.identity import Rank

RANKS_PER_STEP = 512
"""Ranks that are looked at in one turn, some 2 us each where nobody answers, less elsewhere."""
LINES_MAX = 50
"""Ranks of one look that get a line each; one more line counts the others."""
REMIND_S = 3600.0
"""Ranks that stay unconnected are told of again after so long, all in one line."""
NAMED_MAX = 5
"""Ranks that are named in a line about several."""

log = logging.getLogger("select_service.kv_events")


class KvConnectionsLog:
    """Looks at all ranks once a second, in steps."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest
        self._looking: Iterator[tuple[tuple[int, int], Unconnected | None]] = iter(())
        self._is_looking = False
        self._missing: dict[Rank, Unconnected] = {}
        """Ranks of this look whose connection is missing for long."""
        self._came: list[Rank] = []
        self._warned: dict[Rank, Unconnected] = {}
        """Ranks that a warning was logged of, with what it said."""
        self._reminded_at = 0.0

    def step(self, now: float) -> bool:
        """Look at some ranks.  True: the look is not finished."""
        if not self._is_looking:
            self._looking, self._is_looking = self._ingest.connections(), True
            self._missing, self._came = {}, []
        seen = 0
        for key, missing in islice(self._looking, RANKS_PER_STEP):
            seen += 1
            if missing is None:
                if key in self._warned:
                    self._came.append(Rank(*key))
            elif missing.lasts(now):
                self._missing[Rank(*key)] = missing
        if seen == RANKS_PER_STEP:
            return True
        self._is_looking = False
        self._report(now)
        return False

    def _report(self, now: float) -> None:
        came = [(rank, self._warned[rank]) for rank in self._came]
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


def _log_each(level: int, text: str, found: list[tuple[Rank, Unconnected]], now: float) -> None:
    for rank, missing in found[:LINES_MAX]:
        fields = {"worker_id": rank.worker_id, "dp_rank": rank.dp_rank}
        log.log(level, text, extra={"fields": fields | _said(missing, now)})
    if len(found) > LINES_MAX:
        _log_sum(level, f"{text}, of more ranks", found[LINES_MAX:], now)


def _log_sum(level: int, text: str, found: list[tuple[Rank, Unconnected]], now: float) -> None:
    """Log one line of several ranks: their number, the first few, and what is said of the first."""
    first = min((missing for _, missing in found), key=lambda missing: missing.since)
    fields = {"count": len(found), "ranks": [*_names(rank for rank, _ in found[:NAMED_MAX])]}
    log.log(level, text, extra={"fields": fields | _said(first, now)})


def _names(ranks: Iterable[Rank]) -> Iterator[str]:
    return (f"{rank.worker_id}/{rank.dp_rank}" for rank in ranks)


def _said(missing: Unconnected, now: float) -> dict[str, str | float]:
    said: dict[str, str | float] = {"endpoint": missing.endpoint}
    said["seconds"] = round(now - missing.since, 1)
    if missing.error is not None:
        said["error"] = missing.error
    return said
