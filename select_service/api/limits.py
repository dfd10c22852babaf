"""The limits that all callers share.

The limits of one request, of one connection and of one model and tenant are not here.
"""

from collections.abc import Iterable, Iterator

from starlette.requests import Request

from select_service.access.shares import Holder, SharedLimit
from select_service.core.admission.waiting_list import WAITING_ALLOWED_IDS_MAX, WAITING_BLOCKS_MAX
from select_service.core.fleet.fleet import PARTITIONS_MAX
from select_service.core.load.ledger_memory import RESERVATIONS_MAX, RESERVED_BLOCKS_MAX
from select_service.core.selector import Selector
from select_service.core.workers.catalog import WORKERS_MAX, Worker
from select_service.http.codec import BODY_BUDGET, HOLDER
from select_service.http.protocol import CONNECTIONS_MAX

DUMPS_MAX = 4
"""Dumps that are sent at one time; each holds a copy of one partition."""
MIGRATION_WAITERS_MAX = 256
"""Calls and streams that wait for migrations at one time."""
WATCHERS_MAX = 32
"""Streams of the page at one time."""
EXAMINATIONS_MAX = 1
_LATER = "ask again later"
_FREE = "free some of them"
_REMOVE = "remove workers that are not needed"
_QUEUE = "send fewer requests at one time"


class Limits:
    """Of one process."""

    def __init__(self, selector: Selector, ranks_max: int) -> None:
        """ranks_max: ranks that can be listened to"""
        bounds = selector.gate.waiting.bounds
        self.connections = SharedLimit(
            "connections", CONNECTIONS_MAX, "connections", "close idle ones"
        )
        self.body_bytes = BODY_BUDGET
        self.queued_requests = SharedLimit(
            "queued_requests", bounds.requests_max, "waiting requests", _QUEUE
        )
        self.queued_tokens = SharedLimit(
            "queued_tokens", bounds.isl_tokens_max, "prompt tokens of waiting requests", _QUEUE
        )
        self.queued_blocks = SharedLimit(
            "queued_blocks", WAITING_BLOCKS_MAX, "prompt blocks of waiting requests", _QUEUE
        )
        self.queued_allowed_ids = SharedLimit(
            "queued_allowed_ids",
            WAITING_ALLOWED_IDS_MAX,
            "`allowed_worker_ids` of waiting requests",
            "name fewer workers, or their taints",
        )
        self.migration_waiters = SharedLimit(
            "migration_waiters",
            MIGRATION_WAITERS_MAX,
            "calls and streams that wait for migrations",
            "read one stream, /migrations/stream, for all your requests",
        )
        self.live_streams = SharedLimit(
            "live_streams", WATCHERS_MAX, "streams of /live", "close pages that are open"
        )
        self.dumps = SharedLimit("dumps", DUMPS_MAX, "dumps that are being sent", _LATER)
        self.examinations = SharedLimit(
            "examinations", EXAMINATIONS_MAX, "examinations of /doctor", _LATER
        )
        self.workers = SharedLimit("workers", WORKERS_MAX, "registered workers", _REMOVE)
        self.partitions = SharedLimit(
            "partitions", PARTITIONS_MAX, "pairs of model and tenant with workers", _REMOVE
        )
        self.event_ranks = SharedLimit(
            "event_ranks", ranks_max, "ranks whose KV events are listened to", _REMOVE
        )
        self.reservations = SharedLimit(
            "reservations", RESERVATIONS_MAX, "live reservations", _FREE
        )
        self.reserved_blocks = SharedLimit(
            "reserved_blocks", RESERVED_BLOCKS_MAX, "prompt blocks of live reservations", _FREE
        )

    def __iter__(self) -> Iterator[SharedLimit]:
        return iter(vars(self).values())

    @property
    def queue(self) -> tuple[SharedLimit, ...]:
        """In the order of `size_of`."""
        return (
            self.queued_requests,
            self.queued_tokens,
            self.queued_blocks,
            self.queued_allowed_ids,
        )


def event_ranks(workers: Iterable[Worker]) -> int:
    """Return how many ranks of the workers publish KV events."""
    return sum(worker.n_event_ranks() for worker in workers)


def holder_of(request: Request) -> Holder:
    """Who has what a request uses."""
    holder: Holder = request.scope[HOLDER]
    return holder
