"""Limits shared by all callers.

Limits of a single request, connection, model or tenant are defined elsewhere.
"""

from collections.abc import Iterable, Iterator

from starlette.requests import Request

from select_service.auth.limit_shares import Holder, SharedLimit
from select_service.core.admission.policy_classes import QueueBounds
from select_service.core.admission.waiting_list import WAITING_ALLOWED_IDS_MAX, WAITING_BLOCKS_MAX
from select_service.core.load.ledger_memory import RESERVATIONS_MAX, RESERVED_BLOCKS_MAX
from select_service.core.registry.fleet.registration_rules import PARTITIONS_MAX
from select_service.core.workers.worker_catalog import WORKERS_MAX, RegisteredWorker
from select_service.http.body_codec import BODY_BUDGET, HOLDER_SCOPE_KEY
from select_service.http.bounded_protocol import CONNECTIONS_MAX

DUMPS_MAX = 4
"""Most concurrent dumps; each holds a copy of a partition."""
MIGRATION_WAITERS_MAX = 256
"""Most calls and streams that wait for migrations at one time."""
LIVE_STREAMS_MAX = 32
"""Most concurrent streams of the fleet page."""
EXAMINATIONS_MAX = 1
_RETRY_LATER = "retry later"
_FREE_RESERVATIONS = "free reservations of finished requests"
_REMOVE_WORKERS = "remove unneeded workers"
_SEND_FEWER = "send fewer concurrent requests"


class SharedLimits:
    """Shared limits of a process."""

    def __init__(self, bounds: QueueBounds, ranks_max: int) -> None:
        """ranks_max: maximum number of ranks with event listeners"""
        self.connections = SharedLimit(
            "connections", CONNECTIONS_MAX, "connections", "close idle connections"
        )
        self.body_bytes = BODY_BUDGET
        self.queued_requests = SharedLimit(
            "queued_requests", bounds.requests_max, "waiting requests", _SEND_FEWER
        )
        self.queued_tokens = SharedLimit(
            "queued_tokens", bounds.isl_tokens_max, "prompt tokens of waiting requests", _SEND_FEWER
        )
        self.queued_blocks = SharedLimit(
            "queued_blocks", WAITING_BLOCKS_MAX, "prompt blocks of waiting requests", _SEND_FEWER
        )
        self.queued_allowed_ids = SharedLimit(
            "queued_allowed_ids",
            WAITING_ALLOWED_IDS_MAX,
            "`allowed_worker_ids` of waiting requests",
            "list fewer workers, or use taints",
        )
        self.migration_waiters = SharedLimit(
            "migration_waiters",
            MIGRATION_WAITERS_MAX,
            "calls and streams that wait for migrations",
            "read one stream, /migrations/stream, for all your requests",
        )
        self.live_streams = SharedLimit(
            "live_streams", LIVE_STREAMS_MAX, "streams of /live", "close open fleet pages"
        )
        self.dumps = SharedLimit("dumps", DUMPS_MAX, "dumps that are being sent", _RETRY_LATER)
        self.examinations = SharedLimit(
            "examinations", EXAMINATIONS_MAX, "examinations of /doctor", _RETRY_LATER
        )
        self.workers = SharedLimit("workers", WORKERS_MAX, "registered workers", _REMOVE_WORKERS)
        self.partitions = SharedLimit(
            "partitions", PARTITIONS_MAX, "pairs of model and tenant with workers", _REMOVE_WORKERS
        )
        self.event_ranks = SharedLimit(
            "event_ranks", ranks_max, "ranks whose KV events are listened to", _REMOVE_WORKERS
        )
        self.reservations = SharedLimit(
            "reservations", RESERVATIONS_MAX, "live reservations", _FREE_RESERVATIONS
        )
        self.reserved_blocks = SharedLimit(
            "reserved_blocks",
            RESERVED_BLOCKS_MAX,
            "prompt blocks of live reservations",
            _FREE_RESERVATIONS,
        )

    def __iter__(self) -> Iterator[SharedLimit]:
        # Every attribute is a limit: definition order is the order in GET /config and the metrics.
        return iter(vars(self).values())

    @property
    def queue_limits(self) -> tuple[SharedLimit, ...]:
        """Limits of the queue, in the order of `measure_request`."""
        return (
            self.queued_requests,
            self.queued_tokens,
            self.queued_blocks,
            self.queued_allowed_ids,
        )


def count_event_ranks(workers: Iterable[RegisteredWorker]) -> int:
    """Return how many ranks of the workers publish KV events."""
    return sum(worker.n_event_ranks() for worker in workers)


def request_holder(request: Request) -> Holder:
    """Return the holder that the resources of a request are counted for."""
    holder: Holder = request.scope[HOLDER_SCOPE_KEY]
    return holder
