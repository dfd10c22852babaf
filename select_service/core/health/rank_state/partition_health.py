"""State machine of the ranks of a partition.

    healthy -> suspicious -> unhealthy -> draining -> dead, and back by passed checks

A failing check makes a rank suspicious. `failures` consecutive failing checks make it unhealthy,
unless too many ranks of the partition are out already. The circuit breaker then decides when the
rank is probed. The table of transitions is in docs/guides/health.md.
"""

from select_service.core.health.health_effects import (
    CheckRequested,
    ConnectionProbeRequested,
    DrainFinished,
    EjectionWithheld,
    HealthEffect,
    MigrationRequested,
    ProbeRequested,
    RankReset,
    ReleaseRequested,
    SparePromoted,
    StateChanged,
    WeightChanged,
)
from select_service.core.health.health_kinds import (
    PROCESS_LOST_CAUSES,
    SILENT_KINDS,
    WRONG_ANSWERS,
    BreakerState,
    CheckKind,
    RankHealthState,
    RequestOutcome,
)
from select_service.core.health.health_rules import HealthRules
from select_service.core.health.rank_state.health_record import HealthRecord
from select_service.core.health.rank_state.rank_registry import RankRegistry
from select_service.core.identity import Rank


class PartitionHealth:
    """State machine of a partition; appends effects to a given list.

    Methods about a rank require that the rank is registered. Times never decrease.
    """

    def __init__(self, rules: HealthRules, effects: list[HealthEffect]) -> None:
        self._rules = rules
        self._effects = effects
        self.registry = RankRegistry(rules)
        self._in_slow_start: dict[Rank, HealthRecord] = {}
        """Ranks in slow start."""

    def add_rank(self, rank: Rank, is_spare: bool, now: float) -> None:
        """Add a new rank."""
        self._publish_weight(self.registry.add_rank(rank, is_spare), now)

    def remove_rank(self, rank: Rank) -> None:
        """Remove a deregistered rank."""
        self.registry.remove_rank(rank)
        self._in_slow_start.pop(rank, None)

    def reset_rank(self, rank: Rank, now: float) -> None:
        """Reset the record of a rank that registered again or changed its endpoint; a spare stays a
        spare.
        """
        record = self.registry.renew_record(rank)
        self._in_slow_start.pop(rank, None)
        self._effects.append(RankReset(rank))
        self._publish_weight(record, now)

    def judge_latency(self, rank: Rank, kind: CheckKind, latency_ms: float) -> CheckKind:
        """Return the kind of a timed check: a passed check becomes a spike if far too slow."""
        is_spike = kind is CheckKind.PASS and self.is_spike(rank, latency_ms)
        return CheckKind.LATENCY_SPIKE if is_spike else kind

    def is_spike(self, rank: Rank, latency_ms: float) -> bool:
        """Return whether the latency, in ms, is a spike for this rank."""
        return self.registry[rank].baseline.is_spike(latency_ms, self._rules)

    def apply_check(
        self,
        rank: Rank,
        kind: CheckKind,
        now: float,
        latency_ms: float | None = None,
        *,
        was_answered: bool = False,
    ) -> None:
        """Apply the result of a check.

        latency_ms: sample for the latency baseline if the check passed
        was_answered: whether a failing attempt was answered; other kinds than those of
            SILENT_KINDS are answers in any case
        """
        record = self.registry[rank]
        if kind is CheckKind.NEUTRAL or record.is_drained_by_operator:
            return
        if kind is not CheckKind.PASS:
            is_silent = kind in SILENT_KINDS and not was_answered
            record.silent_checks = record.silent_checks + 1 if is_silent else 0
            self._apply_failure(record, kind, now)
            return
        if latency_ms is not None:
            # Probes of a rank without load are faster than usual and must not move the baseline.
            record.baseline.add_sample(latency_ms, self._rules, record.state.is_serving)
        self._apply_pass(record, now)

    def _apply_pass(self, record: HealthRecord, now: float) -> None:
        if record.state is RankHealthState.HEALTHY:
            return
        if record.state is RankHealthState.SUSPICIOUS:
            self._make_healthy(record, now)
            return
        breaker = record.breaker
        # Late answer of a check sent before the breaker opened.
        if record.state is not RankHealthState.DEAD and breaker.state is not BreakerState.HALF_OPEN:
            return
        breaker.passed_probes += 1
        if breaker.passed_probes >= record.passes_needed(self._rules):
            self._return_to_service(record, now)
        elif record.state is not RankHealthState.DEAD:
            self._effects.append(ProbeRequested(record.rank))

    def _apply_failure(self, record: HealthRecord, kind: CheckKind, now: float) -> None:
        if record.state.is_serving:
            record.failures += 1
            record.set_cause(kind)
            if record.state is RankHealthState.HEALTHY:
                self._set_state(record, RankHealthState.SUSPICIOUS, now)
            if record.failures >= self._rules.failures:
                self._eject_if_allowed(record, now)
            return
        # Whatever took the rank out, a process that refuses connections is away, and back when it
        # accepts again.
        if kind is CheckKind.CONNECT:
            record.set_cause(kind)
        if record.state is RankHealthState.DEAD:
            record.breaker.passed_probes = 0
        else:
            if kind in WRONG_ANSWERS:
                record.cause = kind
            if record.breaker.state is BreakerState.HALF_OPEN:
                record.breaker.reopen_circuit(now, self._rules)

    def apply_connection(self, rank: Rank, is_open: bool, now: float) -> None:
        """Apply an attempt to connect to a rank that is out because it refused connections."""
        record = self.registry[rank]
        if record.state.is_serving or not record.awaits_connection:
            return
        if not is_open:
            record.connection_pause_s = self._rules.connect_s
            return
        # An engine may listen long before it can answer: each connection without a passed probe
        # doubles the pause to the next.
        longest = max(self._rules.connect_s, self._rules.recovery_s)
        record.connection_pause_s = min(2.0 * record.connection_pause_s, longest)
        if record.state is RankHealthState.DEAD:
            record.probed_at = now
        else:
            record.breaker.half_open()
        self._effects.append(ProbeRequested(rank))

    def clear_suspicion(self, rank: Rank, now: float) -> None:
        """Make a suspicious rank healthy again, as another cause explains its failure."""
        record = self.registry[rank]
        if record.state is RankHealthState.SUSPICIOUS:
            self._make_healthy(record, now)

    def apply_report(self, rank: Rank, outcome: RequestOutcome, now: float) -> None:
        """Apply a trusted report about a request."""
        record = self.registry[rank]
        if not record.state.is_serving:
            return
        if outcome is RequestOutcome.FATAL:
            # Fatal outcomes skip the suspicion, and the ejection limit as well: the process is
            # lost.
            record.cause, record.failures = CheckKind.FATAL, self._rules.failures
            self._eject_rank(record, now)
        elif outcome is RequestOutcome.OK:
            record.reported_at.clear()
        elif outcome is RequestOutcome.FAILURE:
            count = record.count_reported_failure(now, self._rules)
            if count >= self._rules.passive_failures:
                record.reported_at.clear()
                self._apply_failure(record, CheckKind.PASSIVE, now)
            # The first report triggers a check, so that a real failure is found before the third.
            elif count == 1:
                self._effects.append(CheckRequested(rank))

    def set_reservations(self, rank: Rank, reservations: int) -> None:
        """Set the number of reservations on the rank."""
        record = self.registry[rank]
        record.reservations = reservations
        if reservations == 0 and record.state is RankHealthState.DRAINING:
            self._effects.append(DrainFinished(rank))

    def drain_rank(self, rank: Rank, now: float) -> None:
        """Stop requests and checks until `undrain_rank`; a repeated call plans the remaining
        reservations again.
        """
        record = self.registry[rank]
        if record.state is RankHealthState.DEAD:
            return
        record.is_drained_by_operator, record.cause = True, CheckKind.OPERATOR
        self._drain_rank(record, now)
        if record.reservations == 0:
            self._effects.append(DrainFinished(rank))

    def undrain_rank(self, rank: Rank, now: float) -> None:
        """Return a rank drained by an operator to service, with slow start; other ranks are
        unaffected.
        """
        record = self.registry[rank]
        if record.is_drained_by_operator:
            self._return_to_service(record, now)

    def advance_timers(self, now: float) -> None:
        """Process all timers. O(ranks that are out or recently recovered)"""
        for record in self.records_with_timers():
            self.advance_timer(record, now)

    def records_with_timers(self) -> list[HealthRecord]:
        """Return the records with active timers."""
        return [*self.registry.out_of_rotation.values(), *self._in_slow_start.values()]

    def advance_timer(self, record: HealthRecord, now: float) -> None:
        """Process the timers of a record of `records_with_timers`, unless the record is
        outdated. O(1)
        """
        if not self.registry.is_current(record):
            return
        if not record.state.is_serving:
            self._advance_timer_of_out_rank(record, now)
        # Slow start: the weight changes every second until it reaches 1.
        elif record.rank in self._in_slow_start:
            self._publish_weight(record, now)

    def _advance_timer_of_out_rank(self, record: HealthRecord, now: float) -> None:
        rules = self._rules
        is_due = now - record.connection_tried_at >= record.connection_pause_s
        if record.awaits_connection and rules.connect_s > 0.0 and is_due:
            record.connection_tried_at = now
            self._effects.append(ConnectionProbeRequested(record.rank))
        if record.state is RankHealthState.DEAD:
            if now - record.probed_at >= rules.dead_probe_s:
                record.probed_at = now
                self._effects.append(ProbeRequested(record.rank))
            return
        if not record.is_drained_by_operator and record.breaker.try_half_open(now):
            self._effects.append(ProbeRequested(record.rank))
        if (
            record.state is RankHealthState.DRAINING
            and now - record.draining_since >= rules.drain_s
        ):
            self._release_reservations(record)
        if not record.is_drained_by_operator and now - record.unhealthy_since >= rules.dead_after_s:
            self._release_reservations(record)
            # From here on the slow timer of dead ranks replaces the backoff of the breaker.
            record.breaker.keep_open()
            record.probed_at = now
            self._set_state(record, RankHealthState.DEAD, now)

    def _eject_if_allowed(self, record: HealthRecord, now: float) -> None:
        assert record.cause is not None
        # Evaluated again at every failing check: the rank leaves as soon as others have returned.
        if self.registry.may_eject(record):
            self._eject_rank(record, now)
        else:
            self._effects.append(EjectionWithheld(record.rank, record.cause))
            self._publish_weight(record, now)

    def _eject_rank(self, record: HealthRecord, now: float) -> None:
        record.breaker.open_circuit(now, self._rules)
        record.unhealthy_since = now
        record.connection_tried_at, record.connection_pause_s = now, self._rules.connect_s
        self._set_state(record, RankHealthState.UNHEALTHY, now)
        spare = self.registry.promote_spare(record)
        if spare is not None:
            # The spare takes over at once; the failed rank becomes the spare when healthy again.
            self._effects.append(SparePromoted(spare.rank, record.rank))
            self._publish_weight(spare, now)
        # A slow rank still finishes its requests, usually earlier than after a migration.
        if record.reservations and record.cause is not CheckKind.LATENCY_SPIKE:
            self._drain_rank(record, now)

    def _drain_rank(self, record: HealthRecord, now: float) -> None:
        record.draining_since = now
        self._set_state(record, RankHealthState.DRAINING, now)
        if record.reservations:
            self._effects.append(MigrationRequested(record.rank, record.reservations))

    def _return_to_service(self, record: HealthRecord, now: float) -> None:
        """Return a rank to service."""
        # The process restarted, so the requests are gone although their reservations remain.
        if record.state is RankHealthState.DRAINING and record.cause in PROCESS_LOST_CAUSES:
            self._release_reservations(record)
        # Starts the slow start.
        record.recovered_at = now
        record.is_drained_by_operator = False
        self._make_healthy(record, now)

    def _make_healthy(self, record: HealthRecord, now: float) -> None:
        record.failures, record.silent_checks, record.cause = 0, 0, None
        record.breaker.close_circuit()
        self._set_state(record, RankHealthState.HEALTHY, now)

    def _release_reservations(self, record: HealthRecord) -> None:
        if record.reservations:
            self._effects.append(ReleaseRequested(record.rank, record.reservations))
            # Set at once, so that a second timer in the same turn does not release again.
            record.reservations = 0

    def _set_state(self, record: HealthRecord, state: RankHealthState, now: float) -> None:
        """Set the state; no other method writes states."""
        was, record.state = record.state, state
        self.registry.on_state_changed(record, was)
        self._effects.append(StateChanged(record.rank, was, state, record.cause))
        self._publish_weight(record, now)

    def _publish_weight(self, record: HealthRecord, now: float) -> None:
        weight = record.compute_weight(now, self._rules)
        # Only changes are published; every publication costs a turn of all listeners.
        if weight != record.published_weight:
            record.published_weight = weight
            self._effects.append(WeightChanged(record.rank, weight))
        if 0.0 < weight < 1.0 and record.state is RankHealthState.HEALTHY:
            self._in_slow_start[record.rank] = record
        else:
            self._in_slow_start.pop(record.rank, None)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        self.registry.check_invariants()
        for record in self.registry:
            _check_record(record)
            assert (record.published_weight == 0.0) == (
                record.is_spare or not record.state.is_serving
            )
        for rank, record in self._in_slow_start.items():
            assert self.registry[rank] is record
            assert record.state is RankHealthState.HEALTHY


def _check_record(record: HealthRecord) -> None:
    state, breaker = record.state, record.breaker.state
    assert (record.cause is None) == (state is RankHealthState.HEALTHY)
    assert (record.failures == 0) or state is not RankHealthState.HEALTHY
    assert record.is_drained_by_operator <= (state is RankHealthState.DRAINING)
    if not record.is_drained_by_operator:
        assert state.is_serving == (breaker is BreakerState.CLOSED)
    record.baseline.check_invariants()
