"""Reader of the head of a partition in a compact dump: ranks, places, cache groups and times.

Every function raises DumpError for anything else than the writer writes.
"""

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import msgspec

from indexer.dumps.compact_writer import AGE_S_MAX
from indexer.index.groups_record import GroupsRecord
from indexer.index.header_kernels import LANES_MAX, PLANES
from indexer.index.index_snapshot import StreamPosition

PLANES_MAX = PLANES + 2 * LANES_MAX
U64 = 2**64

TimeConverter = Callable[[float, float], float | None]
"""Converter from (unix seconds of the dump, age at that time) to monotonic seconds here; None if
the clocks disagree.
"""


class DumpError(Exception):
    """Error for input that cannot be used as a dump; the text gives the reason."""


def is_u64(value: Any) -> bool:
    """Return whether a value is an unsigned number of 64 bits."""
    return type(value) is int and 0 <= value < U64


def read_number(content: Any, name: str, most: int) -> int:
    """Return a field that is a number of at most `most`."""
    value: Any = content.get(name) if isinstance(content, dict) else None
    if not is_u64(value) or value > most:
        raise DumpError(f"{name}: {str(value)[:40]}, at most {most} expected")
    number: int = value
    return number


def read_ranks(
    rows: Any, ranks_max: int, slots: int
) -> tuple[dict[tuple[int, int], int], dict[int, StreamPosition]]:
    """Return (worker_id, dp_rank) -> slot, and slot -> place."""
    if not isinstance(rows, list) or len(rows) > ranks_max:
        raise DumpError("ranks are missing or too many")
    ranks: dict[tuple[int, int], int] = {}
    places: dict[int, StreamPosition] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 5:
            raise DumpError("malformed rank")
        slot, worker_id, dp_rank, next_seq, events = row
        placed = next_seq is None or is_u64(next_seq)
        named = all(map(is_u64, (slot, worker_id, dp_rank, events)))
        if not placed or not named or slot >= slots:
            raise DumpError("malformed rank")
        ranks[worker_id, dp_rank] = slot
        if next_seq is not None:
            places[slot] = StreamPosition(next_seq, events)
    return ranks, places


def count_lanes_of(planes: int) -> int:
    """Return the lanes of holder sets with this many planes."""
    return (planes - PLANES) // 2


def read_planes(head: dict[str, Any]) -> int:
    """Return the planes of the partition's holder sets."""
    planes = PLANES if head.get("planes") is None else read_number(head, "planes", PLANES_MAX)
    if planes < PLANES or planes % 2:
        raise DumpError(f"planes: {planes}, an even number from {PLANES} expected")
    return planes


def read_groups(rows: Any, ranks_max: int, planes: int) -> dict[int, GroupsRecord]:
    """Return slot -> cache groups, of the ranks with several."""
    if rows is None:
        return {}
    try:
        found = msgspec.convert(rows, list[tuple[int, GroupsRecord]])
    except msgspec.ValidationError as error:
        raise DumpError(f"malformed groups: {error}") from None
    if len(found) > ranks_max:
        raise DumpError("groups of too many ranks")
    for _, record in found:
        if not record.is_valid() or record.lanes > count_lanes_of(planes):
            raise DumpError("groups with numbers out of range")
    return dict(found)


def add_digests(
    places: dict[int, StreamPosition], ranks: dict[tuple[int, int], int], digests: Any
) -> dict[int, StreamPosition]:
    """Return `places` with the digests of each of `ranks`; older dumps have none."""
    if digests is None:
        return places
    if not isinstance(digests, list) or len(digests) != len(ranks):
        raise DumpError("malformed digests")
    if not all(digest is None or is_u64(digest) for digest in digests):
        raise DumpError("malformed digests")
    told = dict(zip(ranks.values(), digests, strict=True))
    return {
        slot: msgspec.structs.replace(place, digest=told[slot]) for slot, place in places.items()
    }


def read_live_times(
    head: dict[str, Any], ranks: dict[tuple[int, int], int], live_at: TimeConverter
) -> dict[int, float] | None:
    """Return slot -> monotonic seconds; None without times, or if the clocks disagree."""
    taken_at, ages = head.get("taken_at"), head.get("ages")
    if taken_at is None and ages is None:
        return None
    if not _is_seconds(taken_at, 1e12) or not isinstance(ages, list) or len(ages) != len(ranks):
        raise DumpError("malformed ages")
    times: dict[int, float] = {}
    for slot, age in zip(ranks.values(), ages, strict=True):
        if age is None:
            continue
        if not _is_seconds(age, AGE_S_MAX):
            raise DumpError("malformed ages")
        time = live_at(taken_at, age)
        if time is None:
            return None
        times[slot] = time
    return times


def _is_seconds(value: Any, most: float) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= most
