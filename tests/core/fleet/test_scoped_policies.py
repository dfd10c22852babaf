"""Which policy counts where, against a list of all that was ever said."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from select_service.core.decide.policies import PolicyChoice, checked_choice
from select_service.core.decide.router_config import POLICY_NAMES, RouterConfig
from select_service.core.fleet import scoped_policies
from select_service.core.fleet.scoped_policies import PolicyScope
from select_service.core.identity import PartitionKey
from select_service.errors import CapacityExceeded, InvalidBody, NotFound
from tests.builders import a_selector, a_worker
from tests.exploring import explored

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
    """`said`: every change, the oldest first; None took a rule back."""

    @initialize()
    def begin(self):
        self.selector = a_selector(DEFAULT.within(RouterConfig()))
        self.policies = self.selector.fleet.policies
        self.said = []

    def last_said(self, scope):
        return next((choice for where, choice in reversed(self.said) if where == scope), None)

    def expected(self, key):
        for scope in (key, (key[0], None), (None, None)):
            if self.last_said(scope) is not None:
                return self.last_said(scope)
        return DEFAULT

    def change(self, scope, choice):
        self.said.append((scope, choice))
        for _ in self.policies.following():
            pass

    @rule(scope=scopes, choice=choices)
    def put(self, scope, choice):
        self.policies.put(PolicyScope(*scope), choice)
        self.change(scope, choice)

    @rule(scope=scopes)
    def remove(self, scope):
        if self.last_said(scope) is None:
            with pytest.raises(NotFound, match="exactly this scope"):
                self.policies.remove(PolicyScope(*scope))
        else:
            self.policies.remove(PolicyScope(*scope))
            self.change(scope, None)

    @rule(key=keys, worker_id=st.integers(1, 6), size=st.sampled_from((4, 8)))
    def register(self, key, worker_id, size):
        scope = {"model_name": key[0], "tenant_id": key[1]}
        self.selector.register(a_worker(worker_id, block_size=size, **scope))

    @rule(worker_id=st.integers(1, 6))
    def delete(self, worker_id):
        if self.selector.fleet.catalog.find(worker_id) is not None:
            self.selector.delete(worker_id, 0.0)

    @invariant()
    def the_most_specific_rule_counts(self):
        for key, partition in self.selector.fleet.partitions.items():
            assert partition.placing.choice == self.expected(tuple(key))
            config = self.expected(tuple(key)).within(RouterConfig())
            parameters = partition.placing.policy.parameters(config)
            assert partition.placing._parameters.tolist() == parameters.tolist()
        assert len(self.policies.rules) == len(
            {scope for scope, _ in self.said if self.last_said(scope) is not None}
        )
        self.selector.check_invariants()


TestScopes = explored(Scopes)


def test_a_change_in_the_midst_of_another_counts_for_all():
    selector = a_selector(RouterConfig(policy="reference"))
    for number in range(3):
        selector.register(a_worker(number, tenant_id=str(number)))
    policies = selector.fleet.policies
    policies.put(PolicyScope("m"), PolicyChoice("work"))
    first = policies.following()
    next(first)
    policies.put(PolicyScope("m"), PolicyChoice("least_work"))
    second = policies.following()
    next(second)
    selector.delete(2, 0.0)
    for steps in (first, second):
        for _ in steps:
            pass
    assert {p.placing.choice.policy for p in selector.fleet.partitions.values()} == {"least_work"}


def test_rules_have_a_bound_and_a_known_scope_may_still_change(monkeypatch):
    monkeypatch.setattr(scoped_policies, "POLICY_RULES_MAX", 2)
    policies = a_selector().fleet.policies
    policies.put(PolicyScope("a"), DEFAULT)
    policies.put(PolicyScope("b"), DEFAULT)
    with pytest.raises(CapacityExceeded, match="2 scopes"):
        policies.put(PolicyScope("c"), DEFAULT)
    policies.put(PolicyScope("a"), PolicyChoice("work"))
    assert policies.of(PartitionKey("a", "x")) == PolicyChoice("work")
    policies.remove(PolicyScope("b"))
    policies.put(PolicyScope("c"), DEFAULT)


def test_options_are_those_of_the_policy_in_its_order():
    found = checked_choice("work", ["no-memory", "strict-tail", "no-memory"])
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
def test_what_there_is_not_is_refused_with_what_there_is(policy, options, text):
    with pytest.raises(InvalidBody, match=text):
        checked_choice(policy, options)
