"""What is known of ranks and partitions besides the state machine: who they are, who they asked."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from select_service.core.health.canary_prompts import CanaryPrompt
from select_service.core.health.common_mode import CommonMode
from select_service.core.health.health_record import HealthRecord
from select_service.core.health.judging import Answer
from select_service.core.health.kinds import Came, Kind, State
from select_service.core.health.partition_health import PartitionHealth
from select_service.core.health.pooling import Pool
from select_service.core.identity import PartitionKey, Rank


class CheckedWorker(NamedTuple):
    """endpoint: of its HTTP server; None: it cannot be checked"""

    worker_id: int
    key: PartitionKey
    dp_ranks: range
    endpoint: str | None
    is_spare: bool = False

    def ranks(self) -> list[Rank]:
        """In their order."""
        return [Rank(self.worker_id, dp_rank) for dp_rank in self.dp_ranks]


class CheckOrder(NamedTuple):
    """One check that is to be made.

    prompt_number: of it among those of the partition;  attempts_max: with the first one
    is_probe: the rank is out, and this says whether it comes back
    names_rank: several are behind the endpoint, and it has to be said which one is meant
    seed: of the first attempt; further ones count on from it, so that no noise comes twice
    """

    number: int
    rank: Rank
    prompt: CanaryPrompt
    prompt_number: int
    attempts_max: int
    is_probe: bool
    names_rank: bool = False
    seed: int = 0


class Attempt(NamedTuple):
    """What one request of a check brought.

    latency_ms: from the first byte sent to the last one read
    counts_latency: the rank was not busy with requests of ours, and our own loop was not late
    host_ms: so much later it may be because its host is busy, as ours is or by other canaries
    engine, weight_version: what the engine says it is
    """

    came: Came
    latency_ms: float = 0.0
    answer: Answer | None = None
    engine: str = ""
    weight_version: str = ""
    counts_latency: bool = True
    why: str = ""
    host_ms: float = 0.0


class LastCheck(NamedTuple):
    """For people.  latency_ms: of the attempt that passed"""

    kind: Kind
    at: float
    latency_ms: float | None
    why: str


@dataclass(slots=True)
class CheckedRank:
    """One rank.

    busy:        checks in a row that the rank was too busy for
    wrong_prompt: number of the prompt that it failed last
    connect_at:  when a connection to its endpoint failed last
    misconfigured: why it refuses our request; empty: it does not
    wrong:       its answers since the last right one
    """

    rank: Rank
    key: PartitionKey
    endpoint: str | None
    busy: int = 0
    wrong_prompt: int = 0
    connect_at: float | None = None
    misconfigured: str = ""
    last: LastCheck | None = None
    wrong: Pool = field(default_factory=Pool)


class RankSet:
    """Ranks in no order that matters, any of which can be named by a number below their count.

    Every verb is O(1)
    """

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._at: dict[Rank, int] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, number: int) -> Rank:
        return self._ranks[number]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ranks)

    def add(self, rank: Rank) -> None:
        """One that is not here."""
        self._at[rank] = len(self._ranks)
        self._ranks.append(rank)

    def remove(self, rank: Rank) -> None:
        """The last one takes its number.  Raises KeyError for one that is not here."""
        at, last = self._at.pop(rank), self._ranks.pop()
        if last != rank:
            self._ranks[at], self._at[last] = last, at


@dataclass(slots=True)
class CheckedPartition:
    """names: of the prompts;  ranks: that can be checked"""

    health: PartitionHealth
    common_mode: CommonMode
    prompts: tuple[CanaryPrompt, ...]
    names: tuple[str, ...]
    ranks: RankSet = field(default_factory=RankSet)
    in_common_mode: bool = False


@dataclass(slots=True)
class HealthCounts:
    """Since the start.

    failures:    by worker and kind, of workers that are here
    busy, misconfigured: of the neutral ones, those of ranks that had too much to do, or that
                 refused the request
    transitions: by the state before and after
    """

    checks: Counter[Kind] = field(default_factory=Counter)
    failures: Counter[tuple[int, Kind]] = field(default_factory=Counter)
    transitions: Counter[tuple[State, State]] = field(default_factory=Counter)
    flaky: int = 0
    common_mode: int = 0
    withheld: int = 0
    reference_changes: int = 0
    disagreements: int = 0
    busy: int = 0
    misconfigured: int = 0

    def failed(self, rank: Rank, kind: Kind) -> None:
        """One more that is held against a rank."""
        if kind not in (Kind.PASS, Kind.NEUTRAL):
            self.failures[rank.worker_id, kind] += 1

    def forget(self, worker_id: int) -> None:
        """It has gone.  O(kinds)"""
        for kind in Kind:
            self.failures.pop((worker_id, kind), None)


@dataclass(slots=True)
class CheckedFleet:
    """All that is checked, or could be.

    workers:   all; of one that has just come or changed, ranks may not be here yet
    endpoints: the ranks behind each, in the order in which they came
    """

    workers: dict[int, CheckedWorker] = field(default_factory=dict)
    ranks: dict[Rank, CheckedRank] = field(default_factory=dict)
    partitions: dict[PartitionKey, CheckedPartition] = field(default_factory=dict)
    endpoints: dict[str, dict[Rank, None]] = field(default_factory=dict)
    refusing: Counter[int] = field(default_factory=Counter)
    """Ranks that refuse the request of a check, by worker; only of workers that have some."""
    counts: HealthCounts = field(default_factory=HealthCounts)

    def put(self, rank: CheckedRank) -> None:
        """A rank that was not here."""
        self.ranks[rank.rank] = rank
        if rank.endpoint is not None:
            self.endpoints.setdefault(rank.endpoint, {})[rank.rank] = None

    def take(self, rank: Rank) -> CheckedRank:
        """It is not here any more.  Raises KeyError if it was not."""
        checked = self.ranks.pop(rank)
        self.note_refusal(checked, "")
        if checked.endpoint is not None:
            behind = self.endpoints[checked.endpoint]
            del behind[rank]
            if not behind:
                del self.endpoints[checked.endpoint]
        return checked

    def note_refusal(self, checked: CheckedRank, why: str) -> bool:
        """Set why a rank refuses our request; empty: it does not.

        Return whether its worker has just begun, or ended, to refuse checks.
        """
        change = bool(why) - bool(checked.misconfigured)
        checked.misconfigured = why
        worker_id = checked.rank.worker_id
        before = self.refusing[worker_id]
        self.refusing[worker_id] += change
        if not self.refusing[worker_id]:
            del self.refusing[worker_id]
        return (before == 0) != (before + change == 0)

    def of_worker(self, worker_id: int, among: Iterable[Rank] | None = None) -> list[Rank]:
        """Its ranks that are here, or those of them that are among these."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return []
        return [r for r in (worker.ranks() if among is None else among) if r in self.ranks]

    def shares_endpoint(self, rank: Rank) -> bool:
        """Are other ranks behind the same one?  Raises KeyError for a rank that is not here."""
        endpoint = self.ranks[rank].endpoint
        return endpoint is not None and len(self.endpoints[endpoint]) > 1

    def partition_of(self, rank: Rank) -> CheckedPartition:
        """Raises KeyError for a rank that is not here."""
        return self.partitions[self.ranks[rank].key]

    def record(self, rank: Rank) -> HealthRecord:
        """Raises KeyError for a rank that is not here."""
        return self.partition_of(rank).health.roster[rank]
