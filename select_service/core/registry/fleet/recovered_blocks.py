"""Recovered index blocks for ranks that are not registered yet, and the status of the recovery.

A dump names its partitions "model:tenant". Both names may contain colons, so the joined text is the
key: a partition takes the blocks stored under the text of its own names. A rank takes its blocks
once, together with a slot. Unclaimed blocks are dropped after a while, and blocks with another
block size than the registered workers at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from indexer.dumps.recovered_blocks import DumpedPartition, RankKey
from select_service.core.identity import PartitionKey, Rank

RETENTION_S_MAX = 600.0
"""Maximum waiting time of blocks for their rank, s."""

RecoveryState = Literal["off", "running", "found", "empty", "failed", "cancelled"]
RECOVERY_STATE_NAMES: tuple[RecoveryState, ...] = get_args(RecoveryState)


@dataclass(slots=True)
class RecoveryStatus:
    """Recovery status for GET /ready and metrics.

    source: URL of a peer, or the snapshot file
    partitions, blocks, bytes: received so far from the current source; at the end, accepted
    begun_at: start time, monotonic s
    elapsed_s: duration after the end, s
    """

    state: RecoveryState = "off"
    source: str | None = None
    partitions: int = 0
    blocks: int = 0
    bytes: int = 0
    bad_entries: int = 0
    begun_at: float = 0.0
    elapsed_s: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    def elapsed_seconds(self, now: float) -> float:
        """Return the duration, or the elapsed time while running, s."""
        return now - self.begun_at if self.is_running else self.elapsed_s


@dataclass(slots=True)
class SnapshotStatus:
    """Status of the snapshot file for metrics; `written_at` in monotonic seconds."""

    written_at: float | None = None
    bytes: int = 0
    failures: int = 0


@dataclass(slots=True)
class _WaitingPartition:
    partition: DumpedPartition
    until: float
    waiting: set[RankKey] = field(default_factory=set)


class PersistenceReport(NamedTuple):
    """Persistence metrics; `written_ago_s` is negative before the first snapshot."""

    state: RecoveryState = "off"
    recovered_blocks: int = 0
    waiting_blocks: int = 0
    dropped_blocks: int = 0
    bad_entries: int = 0
    recovery_s: float = 0.0
    snapshot_bytes: int = 0
    snapshot_failures: int = 0
    written_ago_s: float = -1.0
    json_dumps: int = 0
    compact_dumps: int = 0


class RecoveredBlocks:
    """Waiting partitions by joined name; two dumped partitions may share a name."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[_WaitingPartition]] = {}
        self.dropped_blocks = 0
        """Blocks of dumped partitions that were dropped with ranks missing."""

    def __iter__(self) -> Iterator[DumpedPartition]:
        """Yield the waiting partitions with their unclaimed ranks."""
        for held in self._iterate_waiting():
            ranks = held.partition.ranks
            rest = {rank: ranks[rank] for rank in held.waiting}
            yield held.partition._replace(ranks=rest)

    def count_blocks(self) -> int:
        """Return the number of distinct blocks in waiting partitions."""
        return sum(held.partition.blocks for held in self._iterate_waiting())

    def store_partitions(self, partitions: Iterable[DumpedPartition], now: float) -> None:
        """Store partitions for RETENTION_S_MAX."""
        for partition in partitions:
            held = _WaitingPartition(partition, now + RETENTION_S_MAX, set(partition.ranks))
            if held.waiting:
                self._waiting.setdefault(partition.name, []).append(held)

    def may_have_blocks(self, key: PartitionKey) -> bool:
        """Return whether blocks may wait for ranks of this partition."""
        return _name_of(key) in self._waiting

    def claim_blocks(
        self, key: PartitionKey, block_size: int, rank: Rank
    ) -> DumpedPartition | None:
        """Return the dumped partition with blocks of the rank, once."""
        name = _name_of(key)
        held_here = self._waiting.get(name)
        if held_here is None:
            return None
        # The first registered worker fixes the block size; other sizes can never be claimed.
        self._replace_waiting(name, [h for h in held_here if h.partition.block_size == block_size])
        rank_pair = (rank.worker_id, rank.dp_rank)
        for held in self._waiting.get(name, ()):
            if rank_pair in held.waiting:
                # Handed out once: a rank that leaves and returns must not get outdated blocks
                # again.
                held.waiting.remove(rank_pair)
                if not held.waiting:
                    self._replace_waiting(name, [h for h in self._waiting[name] if h is not held])
                return held.partition
        return None

    def drop_expired(self, now: float) -> bool:
        """Drop expired partitions. Return False: no work is left for another turn."""
        for name, held_here in list(self._waiting.items()):
            self._replace_waiting(name, [held for held in held_here if now < held.until])
        return False

    def _iterate_waiting(self) -> Iterator[_WaitingPartition]:
        for held_here in self._waiting.values():
            yield from held_here

    def _replace_waiting(self, name: str, remaining: list[_WaitingPartition]) -> None:
        gone = [h for h in self._waiting[name] if not any(h is other for other in remaining)]
        self.dropped_blocks += sum(h.partition.blocks for h in gone if h.waiting)
        if remaining:
            self._waiting[name] = remaining
        else:
            del self._waiting[name]

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        for name, held_here in self._waiting.items():
            assert held_here
            for held in held_here:
                assert held.partition.name == name
                assert held.waiting
                assert held.waiting <= set(held.partition.ranks)


def _name_of(key: PartitionKey) -> str:
    return f"{key.model_name}:{key.tenant_id}"
