"""Blocks that were recovered for ranks that are not here yet, and how the recovery went.

A dump names its partitions "model:tenant", and both names may hold colons themselves, so the joined
text is the key: a partition takes what was held under the text that its own names make. A rank
takes its blocks once, when it gets a slot. What nobody takes is dropped after a while, and what
comes with another block size than the real workers have is dropped at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from indexer.dumps.held_blocks import DumpedPartition, RankKey
from select_service.core.identity import PartitionKey, Rank

HELD_S_MAX = 600.0
"""How long blocks wait for their rank to be registered."""

State = Literal["off", "running", "found", "empty", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(slots=True)
class RecoveryStatus:
    """What GET /ready and the metrics say.  `source` is a peer's URL, or the snapshot file.

    While it runs: the source that is read and what has come from it; then, what was taken.
    begun_at: monotonic seconds; elapsed_s: how long it took, once it has ended.
    """

    state: State = "off"
    source: str | None = None
    partitions: int = 0
    blocks: int = 0
    bytes: int = 0
    bad_entries: int = 0
    begun_at: float = 0.0
    elapsed_s: float = 0.0

    @property
    def running(self) -> bool:
        return self.state == "running"

    def seconds(self, now: float) -> float:
        """How long it took, or has taken by now."""
        return now - self.begun_at if self.running else self.elapsed_s


@dataclass(slots=True)
class SnapshotStatus:
    """What the metrics say of the snapshot file; `written_at` in monotonic seconds."""

    written_at: float | None = None
    bytes: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Held:
    partition: DumpedPartition
    until: float
    waiting: set[RankKey] = field(default_factory=set)


class KeepingReport(NamedTuple):
    """Plain numbers for the metrics; `written_ago_s` is negative when nothing was written yet."""

    state: State = "off"
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


class Recovered:
    """Held partitions by joined name; two dumped partitions may share one."""

    def __init__(self) -> None:
        self._held: dict[str, list[_Held]] = {}
        self.dropped_blocks = 0
        """Blocks of dumped partitions that were dropped with ranks still missing."""

    def __iter__(self) -> Iterator[DumpedPartition]:
        """What still waits, without the ranks that are gone."""
        for held in self._all():
            ranks = held.partition.ranks
            rest = {rank: ranks[rank] for rank in held.waiting}
            yield held.partition._replace(ranks=rest)

    def blocks(self) -> int:
        """Distinct blocks of the partitions that still wait for somebody."""
        return sum(held.partition.blocks for held in self._all())

    def offer(self, partitions: Iterable[DumpedPartition], now: float) -> None:
        """Hold them for HELD_S_MAX."""
        for partition in partitions:
            held = _Held(partition, now + HELD_S_MAX, set(partition.ranks))
            if held.waiting:
                self._held.setdefault(partition.name, []).append(held)

    def has(self, key: PartitionKey) -> bool:
        """Does anything wait for ranks of this partition, perhaps?"""
        return _name_of(key) in self._held

    def claim(self, key: PartitionKey, block_size: int, rank: Rank) -> DumpedPartition | None:
        """The dumped partition that has blocks of the rank, handed out once."""
        name = _name_of(key)
        held_here = self._held.get(name)
        if held_here is None:
            return None
        self._keep(name, [h for h in held_here if h.partition.block_size == block_size])
        wanted = (rank.worker_id, rank.dp_rank)
        for held in self._held.get(name, ()):
            if wanted in held.waiting:
                held.waiting.remove(wanted)
                if not held.waiting:
                    self._keep(name, [h for h in self._held[name] if h is not held])
                return held.partition
        return None

    def tick(self, now: float) -> bool:
        """Drop what nobody took in time.  Nothing is left for another turn."""
        for name, held_here in list(self._held.items()):
            self._keep(name, [held for held in held_here if now < held.until])
        return False

    def _all(self) -> Iterator[_Held]:
        for held_here in self._held.values():
            yield from held_here

    def _keep(self, name: str, kept: list[_Held]) -> None:
        gone = [h for h in self._held[name] if not any(h is other for other in kept)]
        self.dropped_blocks += sum(h.partition.blocks for h in gone if h.waiting)
        if kept:
            self._held[name] = kept
        else:
            del self._held[name]

    def check_invariants(self) -> None:
        """For tests."""
        for name, held_here in self._held.items():
            assert held_here
            for held in held_here:
                assert held.partition.name == name
                assert held.waiting
                assert held.waiting <= set(held.partition.ranks)


def _name_of(key: PartitionKey) -> str:
    return f"{key.model_name}:{key.tenant_id}"
