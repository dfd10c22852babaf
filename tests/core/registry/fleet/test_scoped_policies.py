"""Tests of the policy of each scope, against a list of all changes."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.base.errors import CapacityExceeded, InvalidBody, NotFound
from select_service.core.identity import PartitionKey
from select_service.core.placement.policies.policy_registry import (
    PolicyChoice,
    validate_policy_choice,
)
from select_service.core.placement.router_config import POLICY_NAMES, RouterConfig
from select_service.core.registry.fleet import scoped_policies
from select_service.core.registry.fleet.scoped_policies import PolicyScope
from tests.builders import a_selector, a_worker
from tests.builders.hypothesis_profiles import explored

NAMES = ("a", "b")
KEYS = [(model, tenant) for model in NAMES for tenant in NAMES]
CHOICES = (
    *(PolicyChoice(name) for name in POLICY_NAMES),
    PolicyChoice("work", ("strict-tail",)),
    PolicyChoice("work", ("decode-sensitive", "no-memory")),
)
DEFAULT = PolicyChoice("least_work")

keys = st.sampled_from(KEYS)
scopes = st.sampled_from([*KEYS, *((name, None) for name in NAMES), (None, None)])
choices = st.sampled_from(CHOICES)


class Scopes(RuleBasedStateMachine):
    """Comparison with a list of every change, the oldest first; None removes a rule."""

    @initialize()
    def begin(self):
        self.selector = a_selector(DEFAULT.apply_to(RouterConfig()))
        self.policies = self.selector.fleet.policies
        self.said = []

    def last_change(self, scope):
        return next((choice for where, choice in reversed(self.said) if where == scope), None)

    def expected(self, key):
        for scope in (key, (key[0], None), (None, None)):
            if self.last_change(scope) is not None:
                return self.last_change(scope)
        return DEFAULT

    def change(self, scope, choice):
        self.said.append((scope, choice))
        for _ in self.policies.apply_to_partitions():
            pass

    @rule(scope=scopes, choice=choices)
    def put(self, scope, choice):
        self.policies.put_rule(PolicyScope(*scope), choice)
        self.change(scope, choice)

    @rule(scope=scopes)
    def remove(self, scope):
        if self.last_change(scope) is None:
            with pytest.raises(NotFound, match="exactly this scope"):
                self.policies.remove_rule(PolicyScope(*scope))
        else:
            self.policies.remove_rule(PolicyScope(*scope))
            self.change(scope, None)

    @rule(key=keys, worker_id=st.integers(1, 6), size=st.sampled_from((4, 8)))
    def register(self, key, worker_id, size):
        scope = {"model_name": key[0], "tenant_id": key[1]}
        self.selector.register_worker(a_worker(worker_id, block_size=size, **scope))

    @rule(worker_id=st.integers(1, 6))
    def delete_worker(self, worker_id):
        if self.selector.fleet.catalog.find_worker(worker_id) is not None:
            self.selector.delete_worker(worker_id, 0.0)

    @invariant()
    def the_most_specific_rule_counts(self):
        for key, partition in self.selector.fleet.partitions.items():
            assert partition.placer.policy_choice == self.expected(tuple(key))
            config = self.expected(tuple(key)).apply_to(RouterConfig())
            parameters = partition.placer.policy.make_parameters(config)
            assert partition.placer._parameters.tolist() == parameters.tolist()
        assert len(self.policies.policy_rules) == len(
            {scope for scope, _ in self.said if self.last_change(scope) is not None}
        )
        self.selector.check_invariants()


TestScopes = explored(Scopes)


def test_a_change_in_the_midst_of_another_counts_for_all():
    selector = a_selector(RouterConfig(policy="reference"))
    for number in range(3):
        selector.register_worker(a_worker(number, tenant_id=str(number)))
    policies = selector.fleet.policies
    policies.put_rule(PolicyScope("m"), PolicyChoice("work"))
    first = policies.apply_to_partitions()
    next(first)
    policies.put_rule(PolicyScope("m"), PolicyChoice("least_work"))
    second = policies.apply_to_partitions()
    next(second)
    selector.delete_worker(2, 0.0)
    for steps in (first, second):
        for _ in steps:
            pass
    assert {p.placer.policy_choice.policy for p in selector.fleet.partitions.values()} == {
        "least_work"
    }


def test_rules_have_a_bound_and_a_known_scope_may_still_change(monkeypatch):
    monkeypatch.setattr(scoped_policies, "POLICY_RULES_MAX", 2)
    policies = a_selector().fleet.policies
    policies.put_rule(PolicyScope("a"), DEFAULT)
    policies.put_rule(PolicyScope("b"), DEFAULT)
    with pytest.raises(CapacityExceeded, match=r"limit reached \(2\)"):
        policies.put_rule(PolicyScope("c"), DEFAULT)
    policies.put_rule(PolicyScope("a"), PolicyChoice("work"))
    assert policies.policy_of(PartitionKey("a", "x")) == PolicyChoice("work")
    policies.remove_rule(PolicyScope("b"))
    policies.put_rule(PolicyScope("c"), DEFAULT)


def test_options_are_sorted_in_the_order_of_the_policy():
    found = validate_policy_choice("work", ["no-memory", "strict-tail", "no-memory"])
    assert found == PolicyChoice("work", ("strict-tail", "no-memory"))


@pytest.mark.parametrize(
    ("policy", "options", "text"),
    [
        ("wrok", [], "did you mean `work`"),
        ("x", [], "the policies are .*, got `x`$"),
        ("work", ["strict_tail"], "did you mean `strict-tail`"),
        ("work", ["no-memory", "x\n"], r"options of `work` are .*, got `x\\n`$"),
        ("least_work", ["strict-tail"], "`least_work` has no options, got `strict-tail`"),
        ("reference", ["x" * 1000], "has no options, got `x+...`$"),
    ],
)
def test_unknown_names_are_rejected_with_the_known_ones(policy, options, text):
    with pytest.raises(InvalidBody, match=text):
        validate_policy_choice(policy, options)
