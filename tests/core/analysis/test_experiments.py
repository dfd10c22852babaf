"""Tests of experiments: a scope alternates between two policies, and bookings are measured."""

from itertools import count
from math import exp, lgamma, pi, sqrt

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.base.errors import CapacityExceeded, Conflict, NotFound
from select_service.core.analysis.comparison import experiments as experiments_module
from select_service.core.analysis.comparison import switchback_experiment as experiment_module
from select_service.core.analysis.comparison.switchback_experiment import UNMEASURED_S
from select_service.core.analysis.comparison.t_interval import compute_t_interval, t_quantile
from select_service.core.placement.policies.policy_registry import PolicyChoice, parse_policy_choice
from select_service.core.registry.fleet.scoped_policies import PolicyScope
from tests.builders import a_select_and_reserve, a_selector, a_worker
from tests.builders.hypothesis_profiles import explored
from tests.models.experiment_model import Booked, ExperimentModel

NAMES = ("a", "b")
KEYS = [(model, tenant) for model in NAMES for tenant in NAMES]
SCOPES = [*KEYS, *((name, None) for name in NAMES), (None, None)]
POLICIES = parse_policy_choice("work"), parse_policy_choice("reference")
DEFAULT = PolicyChoice("work")
OTHER = PolicyChoice("least_work")


class Scene:
    """Selector with four partitions, in virtual time."""

    def __init__(self):
        self.selector, self.now = a_selector(), 0.0
        self.experiments = self.selector.followers.evaluation.experiments
        for worker_id, (model, tenant) in enumerate(KEYS):
            self.selector.register_worker(a_worker(worker_id, model_name=model, tenant_id=tenant))
        self.names = map(str, count())

    def begin(self, scope=(None, None), slot_s=120.0):
        found = self.experiments.begin_experiment(POLICIES, slot_s, PolicyScope(*scope), self.now)
        self.follow()
        return found

    def end(self, experiment):
        self.experiments.end_experiment(experiment.id, self.now)
        self.follow()

    def follow(self):
        for _ in self.selector.fleet.policies.apply_to_partitions():
            pass

    def pass_time(self, seconds):
        self.now += seconds
        while self.experiments.run_turn(self.now):
            pass

    def book(self, key=KEYS[0]):
        name = next(self.names)
        scope = {"model_name": key[0], "tenant_id": key[1]}
        request = a_select_and_reserve(8, reservation_id=name, **scope)
        self.selector.select_and_reserve(request, self.now)
        return name

    def serve(self, seconds, key=KEYS[0]):
        """Run one request with a prefill of this many seconds."""
        name = self.book(key)
        self.pass_time(seconds)
        self.selector.complete_prefill(name, self.now)
        self.selector.free_reservation(name, self.now)

    def choice(self, key=KEYS[0]):
        (found,) = [p for k, p in self.selector.fleet.partitions.items() if tuple(k) == key]
        return found.placer.policy_choice


def test_one_slot_of_each_policy_makes_a_pair():
    scene = Scene()
    experiment = scene.begin()
    order = []
    for _ in range(12):
        order.append(scene.choice())
        scene.pass_time(120)
    pairs = list(zip(order[::2], order[1::2], strict=True))
    assert all(set(pair) == set(POLICIES) for pair in pairs)
    assert len(set(pairs)) == 2, "who begins is drawn for each pair"
    assert [slot.began_at for slot in experiment.slots] == [120.0 * n for n in range(13)]


def test_the_times_of_slots_are_compared_pair_by_pair():
    scene = Scene()
    experiment = scene.begin()
    for number in range(6):
        slower = 2.0 if scene.choice() == POLICIES[1] else 1.0
        scene.serve(29.0)  # booked in the first part of the slot, which is not measured
        scene.pass_time(UNMEASURED_S - 29.0)
        scene.serve(slower + number // 2)
        scene.serve(slower + number // 2)
        scene.pass_time(120.0 - scene.now % 120.0)
    result = experiment.compute_result()
    assert (result.pairs, result.left_out) == (3, 0)
    assert result.means_s == (2.0, 3.0)
    assert result.difference == (1.0, 1.0, 1.0)
    assert [histogram.total_s for histogram in experiment.ttft] == [12.0, 18.0]


def test_a_pair_without_requests_in_one_slot_is_left_out():
    scene = Scene()
    experiment = scene.begin()
    scene.pass_time(31)
    scene.serve(1.0)
    for _ in range(3):
        scene.pass_time(120)
    assert experiment.compute_result() == (0, 1, None, None)


def test_a_booking_belongs_to_the_slot_in_which_it_was_made_and_counts_once():
    scene = Scene()
    experiment = scene.begin()
    scene.pass_time(119)
    name = scene.book()
    scene.pass_time(10)
    for _ in range(3):
        scene.selector.complete_prefill(name, scene.now)
    assert [slot.requests for slot in experiment.slots] == [1, 0]
    assert experiment.slots[0].total_s == 10.0
    never = scene.book()
    scene.pass_time(31)
    other = scene.book()
    for each in (never, other):
        scene.selector.free_reservation(each, scene.now)
    assert experiment.unreported == 1


def test_afterwards_the_rule_counts_that_was_there_before():
    scene = Scene()
    policies = scene.selector.fleet.policies
    policies.put_rule(PolicyScope("a"), OTHER)
    scene.follow()
    experiment = scene.begin(("a", None))
    assert scene.choice() in POLICIES
    assert scene.choice(("b", "a")) == DEFAULT
    for scope in (PolicyScope("a"), PolicyScope("a", "a")):
        with pytest.raises(Conflict, match="an experiment runs for model `a`, tenant all"):
            policies.put_rule(scope, DEFAULT)
    with pytest.raises(Conflict):
        policies.remove_rule(PolicyScope("a"))
    policies.put_rule(PolicyScope(), POLICIES[1])
    scene.end(experiment)
    scene.end(experiment)
    assert (scene.choice(), scene.choice(("b", "a"))) == (OTHER, POLICIES[1])
    assert (experiment.ending, experiment.ended_at) == ("deleted", 0.0)


def test_partitions_that_come_later_take_part():
    scene = Scene()
    scene.begin(("new", None))
    scene.selector.register_worker(a_worker(9, model_name="new", tenant_id="t"))
    assert scene.choice(("new", "t")) in POLICIES


def test_experiments_end_by_themselves(monkeypatch):
    monkeypatch.setattr(experiment_module, "SLOTS_MAX", 4)
    scene = Scene()
    experiment = scene.begin()
    for _ in range(6):
        scene.pass_time(120)
    assert (experiment.ending, len(experiment.slots), experiment.ended_at) == ("slots_max", 4, 480)
    assert len(experiment.completed_pairs()) == 2
    assert scene.choice() == DEFAULT


def test_running_experiments_are_bounded_and_old_ones_are_forgotten(monkeypatch):
    monkeypatch.setattr(experiments_module, "EXPERIMENTS_MAX", 2)
    scene = Scene()
    first = scene.begin(("a", None))
    scene.begin(("b", None))
    with pytest.raises(CapacityExceeded, match=r"limit reached \(2\)"):
        scene.begin(("c", None))
    scene.end(first)
    third = scene.begin(("c", None))
    assert [each.id for each in scene.experiments] == ["2", "3"] == ["2", third.id]
    with pytest.raises(NotFound, match="experiment `1` not found"):
        scene.experiments.get_experiment("1")


def test_followed_bookings_are_bounded_and_the_others_counted(monkeypatch):
    monkeypatch.setattr(experiments_module, "MEASURED_BOOKINGS_MAX", 1)
    scene = Scene()
    experiment = scene.begin()
    scene.pass_time(31)
    names = [scene.book(), scene.book()]
    for name in names:
        scene.selector.complete_prefill(name, scene.now)
    assert (experiment.unfollowed, experiment.slots[0].requests) == (1, 1)


def test_many_partitions_follow_in_several_steps(monkeypatch):
    monkeypatch.setattr(experiments_module, "PARTITIONS_PER_STEP", 2)
    scene = Scene()
    scene.begin()
    scene.now = 120.0
    assert scene.experiments.run_turn(scene.now)
    before = {key: scene.choice(key) for key in KEYS}
    assert len(set(before.values())) == 2
    scene.pass_time(0)
    assert len({scene.choice(key) for key in KEYS}) == 1


class ExperimentsMatchModel(RuleBasedStateMachine):
    """Comparison with a twin that keeps every booking."""

    @initialize()
    def begin_all(self):
        self.scene, self.models, self.live = Scene(), {}, {}
        self.rules = {}

    def running(self):
        return [model for model in self.models.values() if model.ended_at is None]

    @rule(scope=st.sampled_from(SCOPES), slot_s=st.sampled_from((120.0, 150.0)))
    def begin(self, scope, slot_s):
        others = [each.scope for each in self.running()]
        if any(any(within(key, scope) and within(key, other) for key in KEYS) for other in others):
            with pytest.raises(Conflict, match="overlaps"):
                self.scene.begin(scope, slot_s)
        elif len(others) < experiments_module.EXPERIMENTS_MAX:
            found = self.scene.begin(scope, slot_s)
            model = ExperimentModel(scope, POLICIES, slot_s)
            model.slots.append((self.scene.now, found.slots[0].arm))
            self.models[found.id] = model

    @rule(data=st.data())
    def end(self, data):
        if self.running():
            known = sorted(each.id for each in self.scene.experiments)
            name = data.draw(st.sampled_from(known))
            self.scene.end(self.scene.experiments.get_experiment(name))
            if self.models[name].ended_at is None:
                self.models[name].ended_at = self.scene.now

    @rule(seconds=st.sampled_from((0.25, 1.0, 29.0, 31.0, 90.0, 120.0, 400.0)))
    def pass_time(self, seconds):
        self.scene.pass_time(seconds)
        for name, model in self.models.items():
            if model.is_due(self.scene.now):
                arm = self.scene.experiments.get_experiment(name).slots[-1].arm
                if len(model.slots) % 2:
                    assert arm == 1 - model.slots[-1][1]
                model.slots.append((self.scene.now, arm))

    @rule(key=st.sampled_from(KEYS))
    def book(self, key):
        name = self.scene.book(key)
        models = [model for model in self.running() if model.contains_scope(key)]
        model = models[0] if models else None
        booked = Booked(model, model and len(model.slots) - 1, self.scene.now)
        self.live[name] = booked
        if model is not None:
            model.bookings.append(booked)

    @rule(data=st.data(), ends=st.booleans())
    def complete_or_free(self, data, ends):
        if not self.live:
            return
        name = data.draw(st.sampled_from(sorted(self.live)))
        booked = self.live[name]
        if ends:
            self.scene.selector.free_reservation(name, self.scene.now)
            self.live.pop(name).record_report("ended_at", self.scene.now)
        else:
            self.scene.selector.complete_prefill(name, self.scene.now)
            booked.record_report("completed_at", self.scene.now)

    @rule(scope=st.sampled_from(SCOPES), choice=st.sampled_from((None, OTHER, POLICIES[1])))
    def set_rule(self, scope, choice):
        policies = self.scene.selector.fleet.policies
        tried = any(each.contains_scope(scope) for each in self.running())
        if choice is None and scope not in self.rules and not tried:
            return
        try:
            if choice is None:
                policies.remove_rule(PolicyScope(*scope))
                del self.rules[scope]
            else:
                policies.put_rule(PolicyScope(*scope), choice)
                self.rules[scope] = choice
        except Conflict:
            assert tried
        else:
            assert not tried
            self.scene.follow()

    @invariant()
    def the_policy_of_the_slot_counts(self):
        for key in KEYS:
            trials = [each.current for each in self.running() if each.contains_scope(key)]
            rules = [
                self.rules[scope]
                for scope in (key, (key[0], None), (None, None))
                if scope in self.rules
            ]
            assert self.scene.choice(key) == [*trials, *rules, DEFAULT][0]

    @invariant()
    def they_agree(self):
        self.scene.selector.check_invariants()
        for experiment in self.scene.experiments:
            model = self.models[experiment.id]
            assert experiment.is_running == (model.ended_at is None)
            assert [(s.began_at, s.arm) for s in experiment.slots] == model.slots
            for number, slot in enumerate(experiment.slots):
                times = model.times(number)
                assert slot.requests == len(times)
                assert slot.total_s == pytest.approx(sum(times))
            assert experiment.unreported == model.unreported()
            pairs, result = model.pairs(), experiment.compute_result()
            measured = [pair for pair in pairs if pair is not None]
            assert (result.pairs, result.left_out) == (len(measured), pairs.count(None))
            if len(measured) > 1:
                mean = sum(b - a for a, b in measured) / len(measured)
                assert result.difference.mean == pytest.approx(mean)


def within(key, scope):
    return all(mine in (None, its) for mine, its in zip(scope, key, strict=True))


TestSwitched = explored(ExperimentsMatchModel)


def share_below(t, degrees, steps=4000):
    """Return the share of Student's distribution below t, by Simpson's rule."""
    scale = exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / sqrt(degrees * pi)
    width = t / steps
    heights = [
        (1 if k in (0, steps) else 4 if k % 2 else 2)
        * (1 + (k * width) ** 2 / degrees) ** (-(degrees + 1) / 2)
        for k in range(steps + 1)
    ]
    return 0.5 + scale * width / 3 * sum(heights)


@pytest.mark.parametrize("degrees", [*range(1, 40), 60, 1023])
def test_the_quantile_is_that_of_students_distribution(degrees):
    assert share_below(t_quantile(degrees), degrees) == pytest.approx(0.975, abs=1e-4)


def test_the_interval_is_that_of_the_handbook():
    assert compute_t_interval([1.0]) is None
    found = compute_t_interval([1.0, 2.0, 3.0, 4.0])
    half = 3.182 * sqrt(5 / 3) / 2
    assert found == pytest.approx((2.5, 2.5 - half, 2.5 + half))
