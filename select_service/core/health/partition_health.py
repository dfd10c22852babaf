"""The state machine of the ranks of one partition.

    healthy -> suspicious -> unhealthy -> draining -> dead, and back by checks that pass

A failing check makes a rank suspicious, `failures` of them in a row make it unhealthy, unless too
many of the partition are out already.  Then the breaker decides when it is asked again.  The table
of transitions is in docs/health.md.
"""

from select_service.core.health.effects import (
    CheckAsked,
    Drained,
    Effect,
    MovesAsked,
    ProbeAsked,
    Promoted,
    ReleaseAsked,
    Reset,
    StateChanged,
    WeightChanged,
    Withheld,
)
from select_service.core.health.health_record import HealthRecord
from select_service.core.health.kinds import (
    PROCESS_LOST,
    WRONG_ANSWERS,
    BreakerState,
    Kind,
    Outcome,
    State,
)
from select_service.core.health.roster import Roster
from select_service.core.health.rules import HealthRules
from select_service.core.identity import Rank


class PartitionHealth:
    """Effects are appended to the list that it was given.

    Verbs about a rank expect that it is here.  Time never goes back.
    """

    def __init__(self, rules: HealthRules, effects: list[Effect]) -> None:
        self._rules = rules
        self._effects = effects
        self.roster = Roster(rules)
        self._starting: dict[Rank, HealthRecord] = {}
        """Whose weight grows with time."""

    # --- who is here

    def join(self, rank: Rank, is_spare: bool, now: float) -> None:
        """A rank that was not here."""
        self._tell_weight(self.roster.add(rank, is_spare), now)

    def leave(self, rank: Rank) -> None:
        """It is not registered any more."""
        self.roster.remove(rank)
        self._starting.pop(rank, None)

    def reset(self, rank: Rank, now: float) -> None:
        """Registered again, or at another endpoint: a fresh record.  A spare stays one."""
        record = self.roster.renew(rank)
        self._starting.pop(rank, None)
        self._effects.append(Reset(rank))
        self._tell_weight(record, now)

    # --- checks

    def judged(self, rank: Rank, kind: Kind, latency_ms: float) -> Kind:
        """The kind of a check whose time counts: one that passed may have taken far too long."""
        is_spike = kind is Kind.PASS and self.is_spike(rank, latency_ms)
        return Kind.LATENCY_SPIKE if is_spike else kind

    def is_spike(self, rank: Rank, latency_ms: float) -> bool:
        """Is that far too long for it?"""
        return self.roster[rank].baseline.is_spike(latency_ms, self._rules)

    def checked(self, rank: Rank, kind: Kind, now: float, latency_ms: float | None = None) -> None:
        """The result of a check.  latency_ms: to be learnt from if it passed"""
        record = self.roster[rank]
        if kind is Kind.NEUTRAL or record.by_operator:
            return
        if kind is not Kind.PASS:
            self._failed(record, kind, now)
            return
        if latency_ms is not None:
            record.baseline.learn(latency_ms, self._rules, record.state.serves)
        self._passed(record, now)

    def _passed(self, record: HealthRecord, now: float) -> None:
        if record.state is State.HEALTHY:
            return
        if record.state is State.SUSPICIOUS:
            self._heal(record, now)
            return
        breaker = record.breaker
        if record.state is not State.DEAD and breaker.state is not BreakerState.HALF_OPEN:
            return
        breaker.passes += 1
        if breaker.passes >= record.passes_needed(self._rules):
            self._recover(record, now)
        elif record.state is not State.DEAD:
            self._effects.append(ProbeAsked(record.rank))

    def _failed(self, record: HealthRecord, kind: Kind, now: float) -> None:
        if record.state.serves:
            record.failures += 1
            record.blame(kind)
            if record.state is State.HEALTHY:
                self._move(record, State.SUSPICIOUS, now)
            if record.failures >= self._rules.failures:
                self._eject_if_allowed(record, now)
        elif record.state is State.DEAD:
            record.breaker.passes = 0
        else:
            if kind in WRONG_ANSWERS:
                record.cause = kind
            if record.breaker.state is BreakerState.HALF_OPEN:
                record.breaker.open_again(now, self._rules)

    def forgive(self, rank: Rank, now: float) -> None:
        """What was held against a suspicious rank was not its fault."""
        record = self.roster[rank]
        if record.state is State.SUSPICIOUS:
            self._heal(record, now)

    # --- what others say

    def reported(self, rank: Rank, outcome: Outcome, now: float) -> None:
        """What became of a request, from somebody who is believed."""
        record = self.roster[rank]
        if not record.state.serves:
            return
        if outcome is Outcome.FATAL:
            record.cause, record.failures = Kind.FATAL, self._rules.failures
            self._eject(record, now)
        elif outcome is Outcome.OK:
            record.reported.clear()
        elif outcome is Outcome.FAILURE:
            count = record.reported_failures(now, self._rules)
            if count >= self._rules.passive_failures:
                record.reported.clear()
                self._failed(record, Kind.PASSIVE, now)
            elif count == 1:
                self._effects.append(CheckAsked(rank))

    def booked(self, rank: Rank, reservations: int) -> None:
        """So many are on the rank now."""
        record = self.roster[rank]
        record.reservations = reservations
        if reservations == 0 and record.state is State.DRAINING:
            self._effects.append(Drained(rank))

    # --- operators

    def drain(self, rank: Rank, now: float) -> None:
        """No requests and no checks until `undrain`; asking again plans for what is still there."""
        record = self.roster[rank]
        if record.state is State.DEAD:
            return
        record.by_operator, record.cause = True, Kind.OPERATOR
        self._drain(record, now)
        if record.reservations == 0:
            self._effects.append(Drained(rank))

    def undrain(self, rank: Rank, now: float) -> None:
        """Serve again, slowly at first; of a rank that no operator drained, nothing."""
        record = self.roster[rank]
        if record.by_operator:
            self._recover(record, now)

    # --- time

    def tick(self, now: float) -> None:
        """What is due.  O(ranks that are out or have just recovered)"""
        for record in self.timed():
            self.pass_time(record, now)

    def timed(self) -> list[HealthRecord]:
        """Those for whom time may mean something now."""
        return [*self.roster.out.values(), *self._starting.values()]

    def pass_time(self, record: HealthRecord, now: float) -> None:
        """What is due for one of `timed`, unless that has changed meanwhile.  O(1)"""
        if not self.roster.has(record):
            return
        if not record.state.serves:
            self._pass_time(record, now)
        elif record.rank in self._starting:
            self._tell_weight(record, now)

    def _pass_time(self, record: HealthRecord, now: float) -> None:
        rules = self._rules
        if record.state is State.DEAD:
            if now - record.probed_at >= rules.dead_probe_s:
                record.probed_at = now
                self._effects.append(ProbeAsked(record.rank))
            return
        if not record.by_operator and record.breaker.half_open(now):
            self._effects.append(ProbeAsked(record.rank))
        if record.state is State.DRAINING and now - record.draining_since >= rules.drain_s:
            self._release(record)
        if not record.by_operator and now - record.out_since >= rules.dead_after_s:
            self._release(record)
            record.breaker.stay_open()
            record.probed_at = now
            self._move(record, State.DEAD, now)

    # --- transitions

    def _eject_if_allowed(self, record: HealthRecord, now: float) -> None:
        assert record.cause is not None
        if self.roster.may_eject(record.cause):
            self._eject(record, now)
        else:
            self._effects.append(Withheld(record.rank, record.cause))

    def _eject(self, record: HealthRecord, now: float) -> None:
        record.breaker.open(now, self._rules)
        record.out_since = now
        self._move(record, State.UNHEALTHY, now)
        spare = self.roster.replace(record)
        if spare is not None:
            self._effects.append(Promoted(spare.rank, record.rank))
            self._tell_weight(spare, now)
        if record.reservations and record.cause is not Kind.LATENCY_SPIKE:
            self._drain(record, now)

    def _drain(self, record: HealthRecord, now: float) -> None:
        record.draining_since = now
        self._move(record, State.DRAINING, now)
        if record.reservations:
            self._effects.append(MovesAsked(record.rank, record.reservations))

    def _recover(self, record: HealthRecord, now: float) -> None:
        """Back from being out."""
        if record.state is State.DRAINING and record.cause in PROCESS_LOST:
            self._release(record)
        record.recovered_at = now
        record.by_operator = False
        self._heal(record, now)

    def _heal(self, record: HealthRecord, now: float) -> None:
        record.failures, record.cause = 0, None
        record.breaker.close()
        self._move(record, State.HEALTHY, now)

    def _release(self, record: HealthRecord) -> None:
        if record.reservations:
            self._effects.append(ReleaseAsked(record.rank, record.reservations))
            record.reservations = 0

    def _move(self, record: HealthRecord, state: State, now: float) -> None:
        """The only writer of states."""
        was, record.state = record.state, state
        self.roster.moved(record, was)
        self._effects.append(StateChanged(record.rank, was, state, record.cause))
        self._tell_weight(record, now)

    def _tell_weight(self, record: HealthRecord, now: float) -> None:
        weight = record.weight(now, self._rules)
        if weight != record.told_weight:
            record.told_weight = weight
            self._effects.append(WeightChanged(record.rank, weight))
        if 0.0 < weight < 1.0 and record.state is State.HEALTHY:
            self._starting[record.rank] = record
        else:
            self._starting.pop(record.rank, None)

    def check_invariants(self) -> None:
        """For tests."""
        self.roster.check_invariants()
        for record in self.roster:
            _check_record(record)
            assert (record.told_weight == 0.0) == (record.is_spare or not record.state.serves)
        for rank, record in self._starting.items():
            assert self.roster[rank] is record
            assert record.state is State.HEALTHY


def _check_record(record: HealthRecord) -> None:
    state, breaker = record.state, record.breaker.state
    assert (record.cause is None) == (state is State.HEALTHY)
    assert (record.failures == 0) or state is not State.HEALTHY
    assert record.by_operator <= (state is State.DRAINING)
    if not record.by_operator:
        assert state.serves == (breaker is BreakerState.CLOSED)
    record.baseline.check_invariants()
