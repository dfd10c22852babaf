"""What a registration probably does not mean: pure text about text, for people who read it.

Nothing is refused because of a hint.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

HINTS_MAX = 8
"""Of one worker; more would say the same of further ranks."""
_WILDCARDS = ("*", "0.0.0.0", "[::]")


class EventEndpoints(NamedTuple):
    """Where a rank's events are listened to, and where they are replayed."""

    events: str
    replay: str | None


def users_of(
    endpoints: Mapping[tuple[int, int], EventEndpoints],
) -> dict[str, list[tuple[int, int]]]:
    """Events endpoint -> the (worker_id, dp_rank) that listen there.  O(ranks)."""
    users: dict[str, list[tuple[int, int]]] = {}
    for rank, each in endpoints.items():
        users.setdefault(each.events, []).append(rank)
    return users


def worker_hints(
    worker_id: int,
    endpoint: str | None,
    ranks: Mapping[int, EventEndpoints],
    users: Mapping[str, Collection[tuple[int, int]]],
) -> list[str]:
    """ranks: of this worker by dp_rank.  users: of all workers (`users_of`)."""
    hints = []
    if endpoint and "://" not in endpoint:
        hints.append(f"endpoint `{endpoint}` is no URL: is `http://{endpoint}` meant?")
    for dp_rank, each in sorted(ranks.items()):
        hints += _rank_hints((worker_id, dp_rank), each, users.get(each.events, ()))
    return hints[:HINTS_MAX]


def _rank_hints(
    rank: tuple[int, int], each: EventEndpoints, users: Collection[tuple[int, int]]
) -> list[str]:
    hints = []
    for kind, endpoint in (("KV events", each.events), ("replay", each.replay)):
        if endpoint and _host(endpoint) in _WILDCARDS:
            hints.append(
                f"{kind} endpoint `{endpoint}` of dp_rank {rank[1]} is what an engine binds to; "
                "give the host name or address under which this service reaches it"
            )
    if each.replay == each.events:
        hints.append(
            f"the replay endpoint of dp_rank {rank[1]} is its KV events endpoint `{each.events}`; "
            "engines replay on a port of its own"
        )
    others = [other for other in users if other != rank]
    if others:
        worker_id, dp_rank = min(others)
        hints.append(
            f"KV events endpoint `{each.events}` of dp_rank {rank[1]} is also that of worker "
            f"{worker_id} dp_rank {dp_rank}: both are credited with the same blocks"
        )
    return hints


def _host(endpoint: str) -> str:
    return endpoint.partition("://")[2].rpartition(":")[0]
