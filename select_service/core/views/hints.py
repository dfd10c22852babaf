"""What a registration probably does not mean: pure text about text, for people who read it.

Nothing is refused because of a hint.
"""

from collections.abc import Iterator
from itertools import islice

from select_service.core.identity import Rank
from select_service.core.workers.catalog import Worker
from select_service.core.workers.event_users import EventUsers

HINTS_MAX = 8
"""Of one worker; more would say the same of further ranks."""
RANKS_MAX = 256
"""Of one worker that are looked at, each for some microseconds: whoever registers a rank wrongly
has mostly registered all of them so."""
_WILDCARD = "*"
"""Others, as 0.0.0.0, are refused at once."""


def worker_hints(worker: Worker, users: EventUsers, same_engine: int | None) -> list[str]:
    """users: who publishes where; the ranks of the worker are looked at when it is among them.
    same_engine: id of another worker with the same endpoint and ranks

    Of many ranks only the first are looked at.
    """
    return [*islice(_hints(worker, users, same_engine), HINTS_MAX)]


def _hints(worker: Worker, users: EventUsers, same_engine: int | None) -> Iterator[str]:
    endpoint = worker.given.endpoint
    if same_engine is not None:
        yield (
            f"endpoint `{endpoint}` is also that of worker {same_engine}: are both the same "
            "engine? Then delete one of them, since its load is counted twice"
        )
    if endpoint and "://" not in endpoint:
        yield f"endpoint `{endpoint}` is no URL: is `http://{endpoint}` meant?"
    yield from _strangers(worker)
    if users.has(worker):
        for dp_rank, events in islice(worker.kv_endpoints().items(), RANKS_MAX):
            assert events is not None
            yield from _rank_hints(worker, Rank(worker.worker_id, dp_rank), events, users)


def _strangers(worker: Worker) -> Iterator[str]:
    """Endpoints of ranks that the worker does not have, and that nobody asks therefore.

    Of many the first are looked at, and the last.
    """
    given, ranks = worker.given, worker.dp_ranks()
    for name in ("kv_events_endpoints", "replay_endpoints"):
        table: dict[int, str] = getattr(given, name)
        some = (*islice(table, RANKS_MAX), *islice(reversed(table), 1))
        stranger = next((dp_rank for dp_rank in some if dp_rank not in ranks), None)
        if stranger is not None:
            yield (
                f"{name} has dp_rank {stranger}, which the worker does not have: with "
                f"data_parallel_start_rank {ranks.start} and data_parallel_size {len(ranks)} its "
                f"ranks are {ranks.start} to {ranks.stop - 1}"
            )


def _rank_hints(worker: Worker, rank: Rank, events: str, users: EventUsers) -> Iterator[str]:
    dp_rank, replay = rank.dp_rank, worker.replay_endpoint(rank.dp_rank)
    for kind, endpoint in (("KV events", events), ("replay", replay)):
        if endpoint and _host(endpoint) == _WILDCARD:
            yield (
                f"{kind} endpoint `{endpoint}` of dp_rank {dp_rank} is what an engine binds to; "
                "give the host name or address under which this service reaches it"
            )
    if replay == events:
        yield (
            f"the replay endpoint of dp_rank {dp_rank} is its KV events endpoint `{events}`; "
            "engines replay on a port of its own"
        )
    other = users.other(events, rank)
    if other is not None:
        yield (
            f"KV events endpoint `{events}` of dp_rank {dp_rank} is also that of worker "
            f"{other.worker_id} dp_rank {other.dp_rank}: both are credited with the same blocks"
        )


def _host(endpoint: str) -> str:
    return endpoint.partition("://")[2].rpartition(":")[0]
