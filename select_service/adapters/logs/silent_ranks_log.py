"""Log lines for ranks that have requests and stop sending KV events, and for their end."""

import logging

from select_service.core.silent_ranks import SilentRank, SilentRanks

LINES_MAX = 50
"""Maximum number of per-rank lines in one pass; a further line counts the other ranks."""

log = logging.getLogger("select_service.kv_events")


class SilentRanksLog:
    """Log of silent ranks; `update_ranks` is called once a second."""

    def __init__(self, silent: SilentRanks) -> None:
        self._silent = silent
        self._known: set[SilentRank] = set()

    def update_ranks(self, now: float) -> None:
        """Log the changes since the last call.  now: monotonic clock, seconds"""
        found = set(self._silent.silent.values())
        if found == self._known:
            return
        begun, ended = sorted(found - self._known), sorted(self._known - found)
        for each in begun[:LINES_MAX]:
            fields = _describe(each) | {"seconds": round(now - each.live_at, 1)}
            log.warning("KV events stopped, bookings assumed", extra={"fields": fields})
        for each in ended[:LINES_MAX]:
            log.info("KV events came again", extra={"fields": _describe(each)})
        others = max(0, len(begun) - LINES_MAX) + max(0, len(ended) - LINES_MAX)
        if others:
            log.warning("KV events of further ranks changed", extra={"fields": {"count": others}})
        self._known = found


def _describe(silent: SilentRank) -> dict[str, object]:
    return {
        "worker_id": silent.rank.worker_id,
        "dp_rank": silent.rank.dp_rank,
        "model_name": silent.key.model_name,
        "tenant_id": silent.key.tenant_id,
    }
