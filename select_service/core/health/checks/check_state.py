"""Tables of checked workers, ranks and partitions; check orders, attempts and counters."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from select_service.core.health.answers.answer_averaging import WrongAnswers
from select_service.core.health.answers.answer_check import CanaryAnswer
from select_service.core.health.checks.canary_prompts import CanaryPrompt
from select_service.core.health.checks.common_mode import CommonModeDetector
from select_service.core.health.health_kinds import AttemptResult, CheckKind, RankHealthState
from select_service.core.health.rank_state.health_record import HealthRecord
from select_service.core.health.rank_state.partition_health import PartitionHealth
from select_service.core.identity import PartitionKey, Rank


class CheckedWorker(NamedTuple):
    """Worker known to the health monitor.

    endpoint: URL of its HTTP server; None means that the worker cannot be checked
    """

    worker_id: int
    key: PartitionKey
    dp_ranks: range
    endpoint: str | None
    is_spare: bool = False

    def list_ranks(self) -> list[Rank]:
        """Return the ranks of the worker in order of dp_rank."""
        return [Rank(self.worker_id, dp_rank) for dp_rank in self.dp_ranks]


class CheckOrder(NamedTuple):
    """One check to be made.

    prompt_number: index among the prompts of the partition
    attempts_max: maximum number of attempts, including the first
    is_probe: the rank is out of rotation and the check decides about its return
    must_name_rank: several ranks share the endpoint, so the request has to name the rank
    seed: sampling seed of the first attempt; further attempts count on, so that no noise repeats
    """

    number: int
    rank: Rank
    prompt: CanaryPrompt
    prompt_number: int
    attempts_max: int
    is_probe: bool
    must_name_rank: bool = False
    seed: int = 0


class Attempt(NamedTuple):
    """Result of a request of a check.

    latency_ms: from the first byte sent to the last byte read
    counts_latency: the rank had no requests of ours, and our event loop was not late
    host_ms: part of the latency that a busy host (ours, or one with other canaries) may explain
    engine, weight_version: identity that the engine reports
    """

    result: AttemptResult
    latency_ms: float = 0.0
    answer: CanaryAnswer | None = None
    engine: str = ""
    weight_version: str = ""
    counts_latency: bool = True
    why: str = ""
    host_ms: float = 0.0


class LastCheck(NamedTuple):
    """Latest check of a rank, for reports.

    latency_ms: latency of the passed attempt
    """

    kind: CheckKind
    at: float
    latency_ms: float | None
    why: str


@dataclass(slots=True)
class CheckedRank:
    """Check state of a rank.

    busy: number of consecutive checks rejected as busy
    failed_prompt: index of the prompt that the rank failed last
    connect_failed_at: time of the last failed connection to the endpoint
    misconfigured: reason why the rank rejects check requests; empty if accepted
    wrong_answers: wrong answers since the last right answer
    """

    rank: Rank
    key: PartitionKey
    endpoint: str | None
    consecutive_busy: int = 0
    failed_prompt: int = 0
    connect_failed_at: float | None = None
    refusal_reason: str = ""
    last_check: LastCheck | None = None
    wrong_answers: WrongAnswers = field(default_factory=WrongAnswers)


class RankSet:
    """Set of ranks with access by index, in arbitrary order; every method is O(1)."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._at: dict[Rank, int] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, number: int) -> Rank:
        return self._ranks[number]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ranks)

    def add_rank(self, rank: Rank) -> None:
        """Add a rank that is not in the set."""
        self._at[rank] = len(self._ranks)
        self._ranks.append(rank)

    def remove_rank(self, rank: Rank) -> None:
        """Remove a rank; the last rank takes its index. Raises KeyError if the rank is missing."""
        at, last = self._at.pop(rank), self._ranks.pop()
        if last != rank:
            # The last rank fills the gap: order does not matter, and removal stays O(1).
            self._ranks[at], self._at[last] = last, at


@dataclass(slots=True)
class CheckedPartition:
    """Check state of a partition.

    names: names of the prompts, in their order
    ranks: ranks that can be checked
    """

    health: PartitionHealth
    common_mode: CommonModeDetector
    prompts: tuple[CanaryPrompt, ...]
    names: tuple[str, ...]
    ranks: RankSet = field(default_factory=RankSet)
    in_common_mode: bool = False


@dataclass(slots=True)
class HealthCounters:
    """Health counters since start-up.

    failures: failed checks by worker and kind, for registered workers
    busy, misconfigured: neutral checks of ranks that were overloaded or rejected the request
    trusted_reports, untrusted_reports: reported failures that counted, or caused a check at most
    transitions: state changes by old and new state
    """

    checks: Counter[CheckKind] = field(default_factory=Counter)
    failures: Counter[tuple[int, CheckKind]] = field(default_factory=Counter)
    transitions: Counter[tuple[RankHealthState, RankHealthState]] = field(default_factory=Counter)
    flaky: int = 0
    common_mode: int = 0
    withheld: int = 0
    reference_changes: int = 0
    disagreements: int = 0
    busy: int = 0
    misconfigured: int = 0
    trusted_reports: int = 0
    untrusted_reports: int = 0

    def count_failure(self, rank: Rank, kind: CheckKind) -> None:
        """Count a failure of a rank; passed and neutral checks are ignored."""
        if kind not in (CheckKind.PASS, CheckKind.NEUTRAL):
            self.failures[rank.worker_id, kind] += 1

    def drop_worker(self, worker_id: int) -> None:
        """Remove the counters of a deregistered worker. O(kinds)"""
        for kind in CheckKind:
            self.failures.pop((worker_id, kind), None)


@dataclass(slots=True)
class CheckedFleet:
    """All workers, ranks and partitions that are or could be checked.

    workers: all workers; ranks of a worker that has just joined or changed may be missing
    endpoints: ranks behind each endpoint, in order of registration
    """

    workers: dict[int, CheckedWorker] = field(default_factory=dict)
    ranks: dict[Rank, CheckedRank] = field(default_factory=dict)
    partitions: dict[PartitionKey, CheckedPartition] = field(default_factory=dict)
    endpoints: dict[str, dict[Rank, None]] = field(default_factory=dict)
    refusing_workers: Counter[int] = field(default_factory=Counter)
    """Number of ranks that reject check requests, by worker id; positive numbers only."""
    counters: HealthCounters = field(default_factory=HealthCounters)

    def add_rank(self, rank: CheckedRank) -> None:
        """Add a rank that is not in the table."""
        self.ranks[rank.rank] = rank
        if rank.endpoint is not None:
            self.endpoints.setdefault(rank.endpoint, {})[rank.rank] = None

    def remove_rank(self, rank: Rank) -> CheckedRank:
        """Remove and return a rank. Raises KeyError if the rank is missing."""
        checked = self.ranks.pop(rank)
        self.note_refusal(checked, "")
        if checked.endpoint is not None:
            behind = self.endpoints[checked.endpoint]
            del behind[rank]
            if not behind:
                del self.endpoints[checked.endpoint]
        return checked

    def note_refusal(self, checked: CheckedRank, reason: str) -> bool:
        """Set the reason why a rank rejects check requests; empty means accepted.

        Return whether the worker changed between "some ranks reject" and "no rank rejects".
        """
        # +1, 0 or -1: booleans count as integers.
        change = bool(reason) - bool(checked.refusal_reason)
        checked.refusal_reason = reason
        worker_id = checked.rank.worker_id
        before = self.refusing_workers[worker_id]
        self.refusing_workers[worker_id] += change
        # A Counter keeps zero entries, and `refusing_workers` is exported as a collection of worker
        # ids.
        if not self.refusing_workers[worker_id]:
            del self.refusing_workers[worker_id]
        # Only the first refusal and the last recovery of a worker are reported, not every rank.
        return (before == 0) != (before + change == 0)

    def ranks_of_worker(self, worker_id: int, among: Iterable[Rank] | None = None) -> list[Rank]:
        """Return the known ranks of a worker, or the known ranks among the given ranks."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return []
        return [r for r in (worker.list_ranks() if among is None else among) if r in self.ranks]

    def shares_endpoint(self, rank: Rank) -> bool:
        """Return whether other ranks share the endpoint. Raises KeyError for an unknown rank."""
        endpoint = self.ranks[rank].endpoint
        return endpoint is not None and len(self.endpoints[endpoint]) > 1

    def partition_of(self, rank: Rank) -> CheckedPartition:
        """Return the partition of a rank. Raises KeyError for an unknown rank."""
        return self.partitions[self.ranks[rank].key]

    def record_of(self, rank: Rank) -> HealthRecord:
        """Return the health record of a rank. Raises KeyError for an unknown rank."""
        return self.partition_of(rank).health.registry[rank]
