"""Tests of check turns: spread over an interval, one at a time for a rank, never queued."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from select_service.core.health.checks.check_schedule import (
    CHECKS_MAX,
    ENTRIES_EXAMINED_MAX,
    EXTRA_SLOTS_MIN,
    IN_FLIGHT_MAX,
    LATE_S,
    REPEAT_AFTER_S,
    SCARCE_FROM,
    CheckSchedule,
)
from select_service.core.health.checks.hash_mixing import draw_numbers, phase_of
from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import Rank
from select_service.core.split_mix import mix_bits
from tests.builders.hypothesis_profiles import explored

RULES = HealthRules()
A, B = Rank(1, 0), Rank(2, 0)


def a_schedule(*ranks):
    schedule = CheckSchedule(RULES)
    for rank in ranks:
        schedule.add_rank(rank, 0.0)
    return schedule


def take_all_due(schedule, now):
    """Take all due checks and end each at once; return the checks."""
    found = []
    while (due := schedule.take_due(now)) is not None:
        found.append(due)
        schedule.end_check(due.rank)
    return found


def test_phases_are_spread_evenly():
    tenths = [0] * 10
    for worker_id in range(10_000):
        tenths[int(10 * phase_of(Rank(worker_id, worker_id % 8)))] += 1
    assert min(tenths) > 900
    assert max(tenths) < 1100


def test_pseudo_random_numbers_are_reproducible():
    assert mix_bits(0) == 0xE220A8397B1DCDAF, "the first number of splitmix64"
    one, other = draw_numbers(7, 10, 20), draw_numbers(7, 10, 20)
    numbers = [next(one) for _ in range(50)]
    assert numbers == [next(other) for _ in range(50)]
    assert set(numbers) == set(range(10, 20))


def test_every_rank_has_one_turn_in_an_interval_at_its_phase():
    schedule = a_schedule(A)
    at = phase_of(A) * RULES.interval_s
    assert schedule.next_at(A) == at
    assert take_all_due(schedule, at - 0.01) == []
    assert [due.rank for due in take_all_due(schedule, at)] == [A]
    schedule.plan_regular_check(A, at)
    assert schedule.next_at(A) == at + RULES.interval_s


def test_all_have_the_same_prompt_in_a_round():
    ranks = [Rank(n, 0) for n in range(20)]
    schedule, seen = a_schedule(*ranks), {}
    for tenth in range(900):
        for rank, prompt in take_all_due(schedule, tenth / 10):
            seen.setdefault(tenth // 300, set()).add(prompt)
            schedule.plan_regular_check(rank, tenth / 10)
    assert seen == {0: {0}, 1: {1}, 2: {2}}


def test_a_late_turn_is_skipped_and_an_extra_one_is_not():
    schedule = a_schedule(A, B)
    at = schedule.next_at(A)
    schedule.plan_extra_check(B, at, 5)
    late = at + LATE_S + 0.1
    assert take_all_due(schedule, late) == [(B, 5)]
    assert schedule.next_at(A) == at + RULES.interval_s


def test_checks_in_flight_are_bounded_and_no_rank_is_twice_among_them():
    ranks = [Rank(n, 0) for n in range(100)]
    schedule = a_schedule(*ranks)
    for rank in ranks:
        schedule.plan_extra_check(rank, 1.0)
    first = [schedule.take_due(1.0).rank for _ in range(IN_FLIGHT_MAX)]
    assert schedule.take_due(1.0) is None
    assert len(set(first)) == IN_FLIGHT_MAX
    schedule.plan_extra_check(first[0], 1.0)
    schedule.end_check(first[1])
    assert schedule.take_due(1.0).rank not in first


def one_pauses():
    """Return (schedule with a full flight and a queue, the pausing rank, the others)."""
    ranks = [Rank(n, 0) for n in range(2 * IN_FLIGHT_MAX)]
    schedule = a_schedule(*ranks)
    for rank in ranks:
        schedule.plan_extra_check(rank, 0.0)
    first, *others = in_flight(schedule, 0.0)
    schedule.release_slot(first)
    return schedule, first, others


def test_a_pausing_check_frees_its_slot_and_resumes_before_new_ones():
    schedule, first, others = one_pauses()
    assert not schedule.request_check(first, 0.0)
    [new] = in_flight(schedule, 0.0)
    assert not schedule.take_slot_again(first)
    schedule.end_check(new)
    assert schedule.take_due(0.0) is None
    assert schedule.take_slot_again(first)
    schedule.end_check(others[0])
    assert len(in_flight(schedule, 0.0)) == 1
    schedule.check_invariants()


def test_a_queued_check_that_ends_leaves_the_queue():
    schedule, first, others = one_pauses()
    assert len(in_flight(schedule, 0.0)) == 1
    assert not schedule.take_slot_again(first)
    schedule.end_check(first)
    assert schedule.take_slot_again(first)
    schedule.end_check(others[0])
    assert len(in_flight(schedule, 0.0)) == 1


def test_pausing_checks_count_for_the_bound_under_way():
    ranks = [Rank(n, 0) for n in range(2 * CHECKS_MAX)]
    schedule = a_schedule(*ranks)
    for rank in ranks:
        schedule.plan_extra_check(rank, 0.0)
    begun = 0
    while found := in_flight(schedule, 0.0):
        begun += len(found)
        for rank in found:
            schedule.release_slot(rank)
        schedule.check_invariants()
    assert begun == CHECKS_MAX
    assert not schedule.is_scarce


def in_flight(schedule, now):
    """Take all due checks without an end; return the ranks."""
    found = []
    while (due := schedule.take_due(now)) is not None:
        found.append(due.rank)
    return found


def test_when_checks_are_scarce_rounds_go_first_and_a_share_is_left_for_extra_turns():
    extras = [Rank(n, 0) for n in range(100)]
    schedule = a_schedule(*extras)
    for rank in extras:
        schedule.plan_extra_check(rank, 0.0)
    rounds = [Rank(n, 1) for n in range(5000)]
    for rank in rounds:
        schedule.add_rank(rank, 0.0)
    now = 0.5
    due = [rank for rank in rounds if schedule.next_at(rank) <= now]
    assert len(due) > IN_FLIGHT_MAX
    first = in_flight(schedule, now)
    assert first[:EXTRA_SLOTS_MIN] == extras[:EXTRA_SLOTS_MIN]
    assert set(first[EXTRA_SLOTS_MIN:]) <= set(due)
    assert len(first) == IN_FLIGHT_MAX
    schedule.end_check(first[-1])
    assert in_flight(schedule, now)[0] in due
    schedule.end_check(first[0])
    assert in_flight(schedule, now) == [extras[EXTRA_SLOTS_MIN]]


def test_without_other_checks_all_slots_may_be_extra_turns():
    ranks = [Rank(n, 0) for n in range(100)]
    schedule = a_schedule(*ranks)
    for rank in ranks:
        schedule.plan_extra_check(rank, -1.0)
    assert not schedule.is_scarce
    for _ in range(SCARCE_FROM + 1):
        schedule.take_due(-1.0)
    assert schedule.is_scarce
    assert len(in_flight(schedule, -1.0)) == IN_FLIGHT_MAX - SCARCE_FROM - 1


def test_many_turns_that_are_skipped_take_several_looks():
    ranks = [Rank(n, 0) for n in range(3 * ENTRIES_EXAMINED_MAX)]
    schedule = a_schedule(*ranks)
    late = RULES.interval_s + LATE_S + 0.1
    looks = 0
    while any(schedule.next_at(rank) <= late for rank in ranks):
        assert take_all_due(schedule, late) == []
        looks += 1
    assert looks == 3


def test_repeated_extra_checks_of_a_rank_are_one():
    schedule = a_schedule(A)
    assert schedule.request_check(A, 1.0)
    assert not schedule.request_check(A, 2.0)
    assert take_all_due(schedule, 2.0)
    schedule.plan_regular_check(A, 2.0)
    assert not schedule.request_check(A, 1.0 + REPEAT_AFTER_S - 0.1)
    assert schedule.request_check(A, 1.0 + REPEAT_AFTER_S)


def test_a_pausing_rank_has_no_turn_and_no_extra_check():
    schedule = a_schedule(A)
    schedule.cancel_next_check(A)
    assert schedule.next_at(A) is None
    assert not schedule.request_check(A, 1.0)
    assert take_all_due(schedule, 100.0) == []
    schedule.plan_extra_check(A, 101.0)
    assert take_all_due(schedule, 101.0)


def test_an_unknown_rank_is_ignored():
    schedule = a_schedule(A)
    schedule.remove_rank(A)
    assert A not in schedule
    assert schedule.next_at(A) is None
    for change in (schedule.cancel_next_check, schedule.remove_rank, schedule.end_check):
        change(A)
    schedule.plan_extra_check(A, 1.0)
    assert not schedule.request_check(A, 1.0)
    assert take_all_due(schedule, 100.0) == []


class ScheduleMatchesModel(RuleBasedStateMachine):
    """Comparison with a naive schedule that scans all ranks for the next turn."""

    def __init__(self):
        super().__init__()
        self.schedule, self.turns, self.flying, self.now = CheckSchedule(RULES), {}, set(), 0.0
        self.pausing, self.waiting = set(), set()

    @property
    def is_full(self):
        asked = len(self.flying - self.pausing)
        return asked + len(self.waiting) >= IN_FLIGHT_MAX or len(self.flying) >= CHECKS_MAX

    ranks = st.builds(Rank, st.integers(0, 40), st.just(0))

    @rule(rank=ranks)
    def join_or_leave(self, rank):
        if rank in self.turns:
            self.schedule.remove_rank(rank)
            del self.turns[rank]
        else:
            self.schedule.add_rank(rank, self.now)
            self.turns[rank] = self.schedule.next_at(rank)

    @rule(rank=ranks, seconds=st.sampled_from([0.0, 1.0, 2.0]))
    def plan(self, rank, seconds):
        if rank in self.turns:
            self.schedule.plan_extra_check(rank, self.now + seconds)
            self.turns[rank] = self.now + seconds

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0]))
    def take(self, seconds):
        self.now += seconds
        while (due := self.schedule.take_due(self.now)) is not None:
            assert self.turns[due.rank] <= self.now
            assert due.rank not in self.flying
            self.flying.add(due.rank)
            self.turns[due.rank] = None
        for rank in self.turns:
            self.turns[rank] = self.schedule.next_at(rank)
        if not self.is_full:
            assert all(at is None or at > self.now for at in self.turns.values())

    @rule(n=st.integers(0, 40), again=st.booleans())
    def end(self, n, again):
        for rank in sorted(self.flying)[:n]:
            for checks in (self.flying, self.pausing, self.waiting):
                checks.discard(rank)
            self.schedule.end_check(rank)
            if again and rank in self.turns:
                self.schedule.plan_regular_check(rank, self.now)
                self.turns[rank] = self.schedule.next_at(rank)
                assert self.now < self.turns[rank] <= self.now + RULES.interval_s + 1e-9

    @rule(n=st.integers(0, 40))
    def pause(self, n):
        for rank in sorted(self.flying - self.pausing)[:n]:
            self.schedule.release_slot(rank)
            self.pausing.add(rank)

    @rule(n=st.integers(0, 40))
    def resume(self, n):
        for rank in sorted(self.flying)[:n]:
            paused = rank in self.pausing
            has_place = not paused or len(self.flying - self.pausing) < IN_FLIGHT_MAX
            assert self.schedule.take_slot_again(rank) == has_place
            if has_place:
                self.pausing.discard(rank)
                self.waiting.discard(rank)
            else:
                self.waiting.add(rank)

    @invariant()
    def agrees(self):
        self.schedule.check_invariants()
        assert self.schedule.in_flight == self.flying


TestScheduleMatchesModel = explored(ScheduleMatchesModel)
