"""The only timer: once a second it lets leases end and looks whether the ingest still lives."""

import asyncio
import logging
from time import monotonic

from indexer.sockets.ingest import Ingest
from select_service.core.selector import Selector
from select_service.edge.rejection_log import RejectionLog
from select_service.edge.replicas.sync import ReplicaSync

TICK_S = 1.0
NAMED_MAX = 5
"""Expired reservations named in one log line."""

log = logging.getLogger("select_service.ticker")


async def tick_forever(
    selector: Selector, ingest: Ingest, replicas: ReplicaSync | None = None
) -> None:
    """Ends only by cancellation, or with the error that ended an ingest thread or a repair."""
    rejections = RejectionLog()
    while True:
        await asyncio.sleep(TICK_S)
        failure = ingest.failure()
        if failure is not None:
            raise failure
        now = monotonic()
        expired = selector.tick(now)
        while (turn := selector.expire(monotonic())).ended:
            expired += turn.ended
            await asyncio.sleep(0)
        await close_retired(selector)
        rejections.tick(selector.gate.tally, now)
        if replicas is not None:
            replicas.tick()
        if expired:
            names = [booking.reservation_id for booking in expired[:NAMED_MAX]]
            log.info(
                "reservations expired, their load is freed",
                extra={"fields": {"count": len(expired), "reservation_ids": names}},
            )


async def close_retired(selector: Selector) -> None:
    """Clear the index slots of ranks that were empty only after their worker had left."""
    retired = selector.fleet.take_retired_writers()

    def close() -> None:
        for writer in retired:
            writer.close()

    if retired:
        await asyncio.to_thread(close)
