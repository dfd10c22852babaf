"""Which rank a request goes to when no selector answers.  PURE."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from msgspec import UnsetType

from select_service.bodies.workers import WorkerRecord
from select_service.client.errors import Unavailable


class KnownRank(NamedTuple):
    """A rank as it was when selectors last listed their workers."""

    worker_id: int
    dp_rank: int
    endpoint: str
    block_size: int


Fallback = Callable[[Sequence[KnownRank], Mapping[tuple[int, int], int], int], KnownRank]
"""Takes the ranks that are known, at least one, the requests that are under way by worker and rank,
of this client alone, and the number of times that it was asked."""


def raise_unavailable(
    ranks: Sequence[KnownRank], in_flight: Mapping[tuple[int, int], int], turn: int
) -> NoReturn:
    """None: the caller is told."""
    raise Unavailable("no selector answers")


def round_robin(
    ranks: Sequence[KnownRank], in_flight: Mapping[tuple[int, int], int], turn: int
) -> KnownRank:
    """One after the other."""
    return ranks[turn % len(ranks)]


def least_in_flight(
    ranks: Sequence[KnownRank], in_flight: Mapping[tuple[int, int], int], turn: int
) -> KnownRank:
    """The rank with the fewest requests of this client; of several the next in turn."""
    begin = turn % len(ranks)
    turned = [*ranks[begin:], *ranks[:begin]]
    return min(turned, key=lambda rank: in_flight.get((rank.worker_id, rank.dp_rank), 0))


def ranks_of(records: Sequence[WorkerRecord]) -> list[KnownRank]:
    """The ranks that may be chosen: of schedulable workers, without those out of rotation."""
    return [
        KnownRank(each.worker_id, dp_rank, each.endpoint, each.block_size)
        for each in records
        if each.lifecycle == "schedulable" and each.endpoint and each.block_size
        for dp_rank in _ranks(each)
        if _weight(each, dp_rank) > 0
    ]


def _ranks(record: WorkerRecord) -> range:
    begin = record.data_parallel_start_rank or 0
    return range(begin, begin + (record.data_parallel_size or 1))


def _weight(record: WorkerRecord, dp_rank: int) -> float:
    if isinstance(record.health, UnsetType) or dp_rank not in record.health.ranks:
        return 1.0
    return record.health.ranks[dp_rank].weight
