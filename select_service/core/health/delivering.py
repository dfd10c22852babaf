"""From the results of checks to the states of ranks, and to the time of the next check."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from select_service.core.health.checked import (
    CheckedFleet,
    CheckedPartition,
    CheckedRank,
    LastCheck,
)
from select_service.core.health.health_record import HealthRecord
from select_service.core.health.kinds import SLOW, WRONG_ANSWERS, BreakerState, Kind, State
from select_service.core.health.questions import Result
from select_service.core.health.rules import HealthRules
from select_service.core.health.schedule import Schedule
from select_service.core.health.spread import mixed
from select_service.core.identity import Rank

WALK_MAX = 64
"""Ranks that are looked at to find peers."""
RANKS_PER_STEP = 128
"""Ranks whose result it is, some 10 us each, before others get their turn."""


class Asking(NamedTuple):
    """Of peers: how many, how soon after the last time, which prompt (None: the round's), how far
    apart"""

    peers_max: int
    again_s: float
    prompt_number: int | None = None
    apart_s: float = 0.0


SLOW_PEERS = Asking(8, 5.0, apart_s=0.2)
"""Who is checked at once when a rank begins to be slow: is it the rank, or everybody?  Not all at
the same time, as that would make them slow."""


class _Left(NamedTuple):
    """A result that is to be told of some more ranks."""

    ranks: list[Rank]
    kind: Kind
    result: Result


class Delivering:
    """Writes through the state machines of the partitions; the effects are theirs."""

    def __init__(
        self,
        rules: HealthRules,
        schedule: Schedule,
        fleet: CheckedFleet,
        look: Callable[[Rank], None],
    ) -> None:
        """look: tells the state machine what is booked on a rank, which decides where it goes"""
        self._rules = rules
        self._schedule = schedule
        self._fleet = fleet
        self._look = look
        self.left: deque[_Left] = deque()
        """For `go_on`: at most one for each check under way."""

    def deliver(self, result: Result, now: float) -> None:
        """A result that nothing holds back any more; of a rank that has gone, nothing."""
        checked = self._fleet.ranks.get(result.rank)
        if checked is None:
            return
        partition = self._fleet.partitions[checked.key]
        result = self._of_the_rank(partition, result)
        kind = self._kind(partition, checked, result, now)
        self._fleet.counts.checks[kind] += 1
        checked.last = LastCheck(kind, now, result.latency_ms, result.why)
        if kind in WRONG_ANSWERS:
            checked.wrong_prompt = result.prompt_number
        failures = partition.health.roster[result.rank].failures
        concerned = self._concerned(checked, kind, result.started_at, now)
        self._tell(concerned[:RANKS_PER_STEP], kind, result, now)
        if len(concerned) > RANKS_PER_STEP:
            self.left.append(_Left(concerned[RANKS_PER_STEP:], kind, result))
        if kind in SLOW and failures == 0:
            self.ask_peers(partition, result.rank, SLOW_PEERS, now)

    def go_on(self, now: float) -> bool:
        """Tell some more ranks of results that are theirs, too; are there others left?"""
        if self.left:
            ranks, kind, result = self.left.popleft()
            self._tell(ranks[:RANKS_PER_STEP], kind, result, now)
            if len(ranks) > RANKS_PER_STEP:
                self.left.appendleft(_Left(ranks[RANKS_PER_STEP:], kind, result))
        return bool(self.left)

    def _tell(self, ranks: list[Rank], kind: Kind, result: Result, now: float) -> None:
        """The state machines, of those that are still here, and plan what follows."""
        latency_ms = result.latency_ms if kind is Kind.PASS else None
        for rank in ranks:
            if rank in self._fleet.ranks:
                self._fleet.counts.failed(rank, kind)
                self._look(rank)
                self._fleet.partition_of(rank).health.checked(rank, kind, now, latency_ms)
                self._plan(rank, kind, result, now)

    def _of_the_rank(self, partition: CheckedPartition, result: Result) -> Result:
        """Without its time, if that is a spike only because the host may be busy."""
        taken_ms = result.latency_ms
        if taken_ms is None or not partition.health.is_spike(result.rank, taken_ms):
            return result
        if partition.health.is_spike(result.rank, taken_ms - result.host_ms):
            return result
        return result._replace(latency_ms=None)

    def _kind(
        self, partition: CheckedPartition, checked: CheckedRank, result: Result, now: float
    ) -> Kind:
        """Neutral if it is not the rank's fault."""
        kind = result.kind
        if result.latency_ms is not None:
            kind = partition.health.judged(result.rank, kind, result.latency_ms)
        if kind is Kind.NEUTRAL or (kind is Kind.PASS and result.latency_ms is None):
            return kind  # which says nothing of how fast others are
        is_common = partition.common_mode.checked(checked.rank, kind in SLOW, now)
        if kind not in SLOW:
            return kind
        if is_common:
            slow = (
                (checked.rank,) if partition.in_common_mode else partition.common_mode.slow_ranks()
            )
            self._forgive(partition, slow, now)
        partition.in_common_mode = is_common
        self._fleet.counts.common_mode += is_common
        return Kind.NEUTRAL if is_common else kind

    def _forgive(self, partition: CheckedPartition, slow: Iterable[Rank], now: float) -> None:
        """Those of them that are still suspected of being slow."""
        for rank in slow:
            if partition.health.roster[rank].cause in SLOW:
                partition.health.forgive(rank, now)

    def _concerned(
        self, checked: CheckedRank, kind: Kind, started_at: float, now: float
    ) -> list[Rank]:
        """Whose result it is: a failed connection is one of all ranks behind the endpoint that are
        checked, since nothing would bring others back.

        Checks of several that were under way together count once for each.
        """
        if kind is not Kind.CONNECT or checked.endpoint is None:
            return [checked.rank]
        concerned = []
        for rank in self._fleet.endpoints[checked.endpoint]:
            other = self._fleet.ranks[rank]
            is_new = other.connect_at is None or other.connect_at < started_at
            if is_new and rank in self._schedule:
                other.connect_at = now
                concerned.append(other.rank)
        return concerned

    def _plan(self, rank: Rank, kind: Kind, result: Result, now: float) -> None:
        """The next check.  Probes are planned where the breaker asks for them."""
        record = self._fleet.record(rank)
        if record.by_operator:
            return  # a probe was under way
        if record.state is State.SUSPICIOUS and self._confirms(record, kind):
            at = max(now, result.started_at + self._rules.confirm_s)
            self._schedule.at(rank, at, result.prompt_number)
        elif record.state.serves:
            self._schedule.next_round(rank, now)
        elif record.state is State.DEAD and record.breaker.passes:
            self._schedule.at(rank, now + self._rules.probe_pause_s)
        elif record.breaker.state is BreakerState.HALF_OPEN and kind is Kind.NEUTRAL:
            self._schedule.at(rank, now + self._rules.interval_s)

    def _confirms(self, record: HealthRecord, kind: Kind) -> bool:
        """Is it not decided yet?  Who would be out if he were allowed to waits for his turn."""
        return kind is not Kind.NEUTRAL and record.failures < self._rules.failures

    def ask_peers(
        self, partition: CheckedPartition, rank: Rank, asking: Asking, now: float
    ) -> set[Rank]:
        """Let others that serve be checked now; who they are.  O(WALK_MAX)"""
        ranks = partition.ranks
        start = mixed(mixed(rank.worker_id) ^ int(now)) % max(1, len(ranks))
        asked: set[Rank] = set()
        for step in range(min(WALK_MAX, len(ranks))):
            peer = ranks[(start + step) % len(ranks)]
            if len(asked) >= asking.peers_max:
                break
            if peer == rank or not partition.health.roster[peer].state.serves:
                continue
            at = now + len(asked) * asking.apart_s
            if self._schedule.ask(peer, now, asking.prompt_number, asking.again_s, at):
                asked.add(peer)
        return asked
