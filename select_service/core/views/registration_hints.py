"""Hints about probable mistakes in a registration, for people; hints reject nothing."""

from collections.abc import Iterator
from itertools import islice

from select_service.core.identity import Rank
from select_service.core.workers.event_endpoint_index import EventEndpointIndex
from select_service.core.workers.worker_catalog import RegisteredWorker

HINTS_MAX = 8
"""Maximum hints per worker; more would repeat the same about further ranks."""
RANKS_MAX = 256
"""Maximum ranks examined per worker, some microseconds each: mistakes mostly affect all ranks."""
_WILDCARD = "*"
"""Wildcard host; others such as 0.0.0.0 are rejected earlier."""


def find_worker_hints(
    worker: RegisteredWorker, users: EventEndpointIndex, same_engine: int | None
) -> list[str]:
    """Return hints about a worker; only the first of many ranks are examined.

    users: publishing ranks by endpoint, possibly including this worker
    same_engine: id of another worker with the same endpoint and ranks
    """
    return [*islice(_iterate_hints(worker, users, same_engine), HINTS_MAX)]


def _iterate_hints(
    worker: RegisteredWorker, users: EventEndpointIndex, same_engine: int | None
) -> Iterator[str]:
    endpoint = worker.registration.endpoint
    if same_engine is not None:
        yield (
            f"endpoint `{endpoint}` is also used by worker {same_engine}: are both the same "
            "engine? Then delete one of them, since its load is counted twice"
        )
    if endpoint and "://" not in endpoint:
        yield f"endpoint `{endpoint}` is not a URL: did you mean `http://{endpoint}`?"
    yield from _unknown_rank_hints(worker)
    if not worker.has_events and worker.registration.kv_events_endpoint:
        yield (
            "kv_events_endpoint is not read, because the index of the worker is `assumed`: leave "
            "`index` out to use its KV events"
        )
    if users.has_worker(worker):
        for dp_rank, events in islice(worker.kv_endpoints().items(), RANKS_MAX):
            assert events is not None
            yield from _rank_hints(worker, Rank(worker.worker_id, dp_rank), events, users)


def _unknown_rank_hints(worker: RegisteredWorker) -> Iterator[str]:
    """Yield hints about endpoints of ranks that the worker lacks, which are never used.

    Of many entries the first and the last are examined.
    """
    given, ranks = worker.registration, worker.dp_ranks()
    for name in ("kv_events_endpoints", "replay_endpoints"):
        table: dict[int, str] = getattr(given, name)
        # The last entry is the likeliest outlier, as wrong sizes show at the end of the table.
        some = (*islice(table, RANKS_MAX), *islice(reversed(table), 1))
        stranger = next((dp_rank for dp_rank in some if dp_rank not in ranks), None)
        if stranger is not None:
            yield (
                f"{name} has an entry for dp_rank {stranger}, which the worker lacks: with "
                f"data_parallel_start_rank {ranks.start} and data_parallel_size {len(ranks)} its "
                f"ranks are {ranks.start} to {ranks.stop - 1}"
            )


def _rank_hints(
    worker: RegisteredWorker, rank: Rank, events: str, users: EventEndpointIndex
) -> Iterator[str]:
    dp_rank, replay = rank.dp_rank, worker.replay_endpoint(rank.dp_rank)
    for kind, endpoint in (("KV events", events), ("replay", replay)):
        if endpoint and _host_of(endpoint) == _WILDCARD:
            yield (
                f"{kind} endpoint `{endpoint}` of dp_rank {dp_rank} is a bind address; "
                "give the host name or address under which this service reaches it"
            )
    if replay == events:
        yield (
            f"the replay endpoint of dp_rank {dp_rank} is its KV events endpoint `{events}`; "
            "engines replay on a separate port"
        )
    other = users.find_other_rank(events, rank)
    if other is not None:
        yield (
            f"KV events endpoint `{events}` of dp_rank {dp_rank} is also used by worker "
            f"{other.worker_id} dp_rank {other.dp_rank}: both are credited with the same blocks"
        )


def _host_of(endpoint: str) -> str:
    return endpoint.partition("://")[2].rpartition(":")[0]
