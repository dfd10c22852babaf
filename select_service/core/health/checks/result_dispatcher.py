"""Dispatcher of check results to the state machines of ranks, and planner of their next checks."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from select_service.core.health.answers.cross_checks import CheckResult
from select_service.core.health.checks.check_schedule import CheckSchedule
from select_service.core.health.checks.check_state import (
    CheckedFleet,
    CheckedPartition,
    CheckedRank,
    LastCheck,
)
from select_service.core.health.health_kinds import (
    SLOW_KINDS,
    WRONG_ANSWERS,
    BreakerState,
    CheckKind,
    RankHealthState,
)
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.rank_state.health_record import HealthRecord
from select_service.core.identity import Rank
from select_service.core.split_mix import mix_bits

PEERS_EXAMINED_MAX = 64
"""Maximum number of ranks examined to find peers."""
RANKS_PER_STEP = 128
"""Ranks updated per step, about 10 us each, before the event loop runs other tasks."""


class PeerCheckRequest(NamedTuple):
    """Request for checks of peers.

    peers_max: maximum number of peers
    repeat_after_s: minimum time since the last check of a peer, s
    prompt_number: index of the prompt; None means the prompt of the regular round
    apart_s: time between two peers, s
    """

    peers_max: int
    repeat_after_s: float
    prompt_number: int | None = None
    apart_s: float = 0.0


SLOW_PEERS = PeerCheckRequest(8, 5.0, apart_s=0.2)
"""Peers checked when a rank becomes slow, to tell a slow rank from a slow fleet.

The checks are spread over time, as simultaneous checks would make the peers slow.
"""


class _UnfinishedResult(NamedTuple):
    """Result that still has to be applied to further ranks."""

    ranks: list[Rank]
    kind: CheckKind
    result: CheckResult


class ResultDispatcher:
    """Dispatcher of results; writes through the partitions' state machines, which note effects."""

    def __init__(
        self,
        rules: HealthRules,
        schedule: CheckSchedule,
        table: CheckedFleet,
        refresh_reservations: Callable[[Rank], None],
    ) -> None:
        """Create the dispatcher.

        refresh_reservations: updates a state machine with the number of reservations on a rank,
        which decides its
            next state
        """
        self._rules = rules
        self._schedule = schedule
        self._fleet = table
        self._look = refresh_reservations
        self.unfinished: deque[_UnfinishedResult] = deque()
        """Queue of unfinished results for `continue_work`; at most one per check in progress."""

    def deliver_result(self, result: CheckResult, now: float) -> None:
        """Apply a final result; results of ranks that have left are ignored."""
        checked = self._fleet.ranks.get(result.rank)
        if checked is None:
            return
        partition = self._fleet.partitions[checked.key]
        result = self._without_host_latency(partition, result)
        kind = self._final_kind(partition, checked, result, now)
        self._fleet.counters.checks[kind] += 1
        checked.last_check = LastCheck(kind, now, result.latency_ms, result.why)
        if kind in WRONG_ANSWERS:
            # Probes begin with this prompt: the rank has to pass where it failed.
            checked.failed_prompt = result.prompt_number
        failures = partition.health.registry[result.rank].failures
        concerned = self._affected_ranks(checked, kind, result.started_at, now)
        self._apply_to_ranks(concerned[:RANKS_PER_STEP], kind, result, now)
        # One dead endpoint may have thousands of ranks behind it; the rest waits for
        # `continue_work`.
        if len(concerned) > RANKS_PER_STEP:
            self.unfinished.append(_UnfinishedResult(concerned[RANKS_PER_STEP:], kind, result))
        # Only the first slow check needs peers; later checks are compared with the peers' results.
        if kind in SLOW_KINDS and failures == 0:
            self.schedule_peer_checks(partition, result.rank, SLOW_PEERS, now)

    def continue_work(self, now: float) -> bool:
        """Apply queued results to some more ranks; return whether any are left."""
        if self.unfinished:
            ranks, kind, result = self.unfinished.popleft()
            self._apply_to_ranks(ranks[:RANKS_PER_STEP], kind, result, now)
            if len(ranks) > RANKS_PER_STEP:
                self.unfinished.appendleft(_UnfinishedResult(ranks[RANKS_PER_STEP:], kind, result))
        return bool(self.unfinished)

    def _apply_to_ranks(
        self, ranks: list[Rank], kind: CheckKind, result: CheckResult, now: float
    ) -> None:
        """Update the state machines of the ranks that still exist, and plan their next checks."""
        latency_ms = result.latency_ms if kind is CheckKind.PASS else None
        for rank in ranks:
            if rank in self._fleet.ranks:
                self._fleet.counters.count_failure(rank, kind)
                self._look(rank)
                self._fleet.partition_of(rank).health.apply_check(
                    rank, kind, now, latency_ms, was_answered=result.was_answered
                )
                self._plan_next_check(rank, kind, result, now)

    def _without_host_latency(
        self, partition: CheckedPartition, result: CheckResult
    ) -> CheckResult:
        """Drop the latency if it is a spike that a busy host may explain."""
        taken_ms = result.latency_ms
        if taken_ms is None or not partition.health.is_spike(result.rank, taken_ms):
            return result
        # Still a spike without the share of the host: the rank itself is slow.
        if partition.health.is_spike(result.rank, taken_ms - result.host_ms):
            return result
        return result._replace(latency_ms=None)

    def _final_kind(
        self, partition: CheckedPartition, checked: CheckedRank, result: CheckResult, now: float
    ) -> CheckKind:
        """Return the final kind: neutral if the slowness is common to many ranks."""
        kind = result.kind
        if result.latency_ms is not None:
            kind = partition.health.judge_latency(result.rank, kind, result.latency_ms)
        if kind is CheckKind.NEUTRAL or (kind is CheckKind.PASS and result.latency_ms is None):
            # Results without a latency carry no information about the speed of other ranks.
            return kind  # carries no latency
        is_common = partition.common_mode.add_result(checked.rank, kind in SLOW_KINDS, now)
        if kind not in SLOW_KINDS:
            return kind
        if is_common:
            slow = (
                (checked.rank,) if partition.in_common_mode else partition.common_mode.slow_ranks()
            )
            self._forgive_ranks(partition, slow, now)
        partition.in_common_mode = is_common
        self._fleet.counters.common_mode += is_common
        return CheckKind.NEUTRAL if is_common else kind

    def _forgive_ranks(self, partition: CheckedPartition, slow: Iterable[Rank], now: float) -> None:
        """Clear the suspicion of ranks that are still suspected of slowness."""
        for rank in slow:
            if partition.health.registry[rank].cause in SLOW_KINDS:
                partition.health.clear_suspicion(rank, now)

    def _affected_ranks(
        self, checked: CheckedRank, kind: CheckKind, started_at: float, now: float
    ) -> list[Rank]:
        """Return the ranks the result applies to.

        A failed connection applies to all checked ranks behind the endpoint; unchecked ranks are
        left out, since no probe would bring them back. Simultaneous checks of several ranks count
        once each.
        """
        if kind is not CheckKind.CONNECT or checked.endpoint is None:
            return [checked.rank]
        concerned = []
        for rank in self._fleet.endpoints[checked.endpoint]:
            other = self._fleet.ranks[rank]
            # A connection failure seen by a check that began before the last failure is the same
            # outage.
            is_new = other.connect_failed_at is None or other.connect_failed_at < started_at
            if is_new and rank in self._schedule:
                other.connect_failed_at = now
                concerned.append(other.rank)
        return concerned

    def _plan_next_check(
        self, rank: Rank, kind: CheckKind, result: CheckResult, now: float
    ) -> None:
        """Plan the next check; probes are planned on request of the breaker."""
        record = self._fleet.record_of(rank)
        if record.is_drained_by_operator:
            return  # a probe was under way
        if record.state is RankHealthState.SUSPICIOUS and self._needs_confirmation(record, kind):
            # Measured from the start of the check, so that slow timeouts do not delay the
            # confirmation.
            at = max(now, result.started_at + self._rules.confirm_s)
            self._schedule.plan_extra_check(rank, at, result.prompt_number)
        elif record.state.is_serving:
            self._schedule.plan_regular_check(rank, now)
        # A dead rank that answered once is probed quickly; before that, on its own slow timer.
        elif record.state is RankHealthState.DEAD and record.breaker.passed_probes:
            self._schedule.plan_extra_check(rank, now + self._rules.probe_pause_s)
        elif record.breaker.state is BreakerState.HALF_OPEN and kind is CheckKind.NEUTRAL:
            self._schedule.plan_extra_check(rank, now + self._rules.interval_s)

    def _needs_confirmation(self, record: HealthRecord, kind: CheckKind) -> bool:
        """Return whether a confirming check is still needed.

        A rank kept in rotation by the ejection limit waits for its regular check.
        """
        return kind is not CheckKind.NEUTRAL and record.failures < self._rules.failures

    def schedule_peer_checks(
        self, partition: CheckedPartition, rank: Rank, request: PeerCheckRequest, now: float
    ) -> set[Rank]:
        """Schedule checks of serving peers now, and return those peers. O(PEERS_EXAMINED_MAX)"""
        ranks = partition.ranks
        # A hashed start spreads the extra checks evenly over the fleet instead of the first ranks.
        start = mix_bits(mix_bits(rank.worker_id) ^ int(now)) % max(1, len(ranks))
        asked: set[Rank] = set()
        for step in range(min(PEERS_EXAMINED_MAX, len(ranks))):
            peer = ranks[(start + step) % len(ranks)]
            if len(asked) >= request.peers_max:
                break
            if peer == rank or not partition.health.registry[peer].state.is_serving:
                continue
            at = now + len(asked) * request.apart_s
            if self._schedule.request_check(
                peer, now, request.prompt_number, request.repeat_after_s, at
            ):
                asked.add(peer)
        return asked
