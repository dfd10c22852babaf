"""Fallbacks: choice of a rank while no selector answers.  PURE."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from msgspec import UnsetType

from select_service.client.errors import Unavailable
from select_service.schemas.workers import WorkerRecord


class KnownRank(NamedTuple):
    """A rank in the latest worker list of a selector.

    can_decode: False for workers that only prefill
    """

    worker_id: int
    dp_rank: int
    endpoint: str
    block_size: int
    can_decode: bool = True


Fallback = Callable[[Sequence[KnownRank], Mapping[tuple[int, int], int], int], KnownRank]
"""Function that takes the known ranks (at least one), the requests in flight of this client by
worker and rank, and the number of earlier fallback decisions.
"""


def raise_unavailable(
    ranks: Sequence[KnownRank], in_flight: Mapping[tuple[int, int], int], turn: int
) -> NoReturn:
    """Choose no rank.  Raises Unavailable."""
    raise Unavailable("no selector answers")


def round_robin(
    ranks: Sequence[KnownRank], in_flight: Mapping[tuple[int, int], int], turn: int
) -> KnownRank:
    """Return the ranks in turn."""
    return ranks[turn % len(ranks)]


def least_in_flight(
    ranks: Sequence[KnownRank], in_flight: Mapping[tuple[int, int], int], turn: int
) -> KnownRank:
    """Return the rank with the fewest requests of this client; of equal ranks the next in turn."""
    begin = turn % len(ranks)
    turned = [*ranks[begin:], *ranks[:begin]]
    return min(turned, key=lambda rank: in_flight.get((rank.worker_id, rank.dp_rank), 0))


def eligible_ranks(records: Sequence[WorkerRecord]) -> list[KnownRank]:
    """Return the eligible ranks: ranks of schedulable workers with a weight above 0."""
    return [
        KnownRank(each.worker_id, dp_rank, each.endpoint, each.block_size, each.role != "prefill")
        for each in records
        if each.lifecycle == "schedulable" and each.endpoint and each.block_size
        for dp_rank in _dp_ranks(each)
        if _rank_weight(each, dp_rank) > 0
    ]


def _dp_ranks(record: WorkerRecord) -> range:
    begin = record.data_parallel_start_rank or 0
    return range(begin, begin + (record.data_parallel_size or 1))


def _rank_weight(record: WorkerRecord, dp_rank: int) -> float:
    if isinstance(record.health, UnsetType) or dp_rank not in record.health.ranks:
        return 1.0
    return record.health.ranks[dp_rank].weight
