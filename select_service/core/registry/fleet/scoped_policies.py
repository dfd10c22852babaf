"""Routing policies by scope, as changed by clients at run time."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from select_service.base.errors import CapacityExceeded, Conflict, NotFound
from select_service.base.suggestions import printable_name
from select_service.core.identity import PartitionKey
from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.registry.fleet.partition import Partition

POLICY_RULES_MAX = 1024
"""Maximum number of rules, equal to the maximum number of partitions."""


class PolicyScope(NamedTuple):
    """Scope of a rule; None means all models, or all tenants."""

    model_name: str | None = None
    tenant_id: str | None = None

    @classmethod
    def scopes_of(cls, key: PartitionKey) -> "tuple[PolicyScope, PolicyScope, PolicyScope]":
        """Return all scopes of a partition, most specific first."""
        return cls(*key), cls(key.model_name), cls()

    def contains_scope(self, other: "PolicyScope") -> bool:
        return all(mine in (None, its) for mine, its in zip(self, other, strict=True))

    def overlaps_scope(self, other: "PolicyScope") -> bool:
        """Return whether one scope contains the other; other overlaps are impossible."""
        return self.contains_scope(other) or other.contains_scope(self)

    def __str__(self) -> str:
        model, tenant = (
            "all" if name is None else f"`{printable_name(name)}`"
            for name in (self.model_name, self.tenant_id)
        )
        return f"model {model}, tenant {tenant}"


class ScopedPolicies:
    """Policy rules by scope; the most specific rule applies, and the default without a rule.

    Rules may exist before their partitions. The policy of an experiment overrides all rules; scopes
    of experiments do not overlap.
    """

    def __init__(self, default: PolicyChoice, partitions: Mapping[PartitionKey, Partition]) -> None:
        """Create the rules; default is the policy of the process, partitions follow the rules."""
        self.default = default
        self._partitions = partitions
        self._rules: dict[PolicyScope, PolicyChoice] = {}
        self._trials: dict[PolicyScope, PolicyChoice] = {}

    @property
    def trial_policies(self) -> Mapping[PolicyScope, PolicyChoice]:
        return self._trials

    @property
    def policy_rules(self) -> Mapping[PolicyScope, PolicyChoice]:
        return self._rules

    def policy_of(self, key: PartitionKey) -> PolicyChoice:
        """Return the policy of a partition."""
        # Experiments override every rule, also a more specific one.
        for choices in (self._trials, self._rules):
            for scope in PolicyScope.scopes_of(key):
                if scope in choices:
                    return choices[scope]
        return self.default

    def put_rule(self, scope: PolicyScope, choice: PolicyChoice) -> None:
        """Set a rule, to be applied by `apply_to_partitions`. Raises CapacityExceeded, Conflict."""
        self._refuse_during_trial(scope)
        if scope not in self._rules and len(self._rules) >= POLICY_RULES_MAX:
            raise CapacityExceeded(
                f"policy rule limit reached ({POLICY_RULES_MAX}); delete one first"
            )
        self._rules[scope] = choice

    def restore_rules(self, rules: Mapping[PolicyScope, PolicyChoice]) -> None:
        """Restore persisted rules before any partition exists. Raises CapacityExceeded without
        changes.
        """
        assert not self._partitions
        if len(rules) > POLICY_RULES_MAX:
            raise CapacityExceeded(
                f"{len(rules)} policy rules, at most {POLICY_RULES_MAX} are allowed"
            )
        self._rules = dict(rules)

    def remove_rule(self, scope: PolicyScope) -> None:
        """Remove a rule, to be applied by `apply_to_partitions`. Raises NotFound, Conflict."""
        self._refuse_during_trial(scope)
        if scope not in self._rules:
            raise NotFound(f"no policy rule is set for exactly this scope: {scope}")
        del self._rules[scope]

    def _refuse_during_trial(self, scope: PolicyScope) -> None:
        """Raise Conflict during an experiment, as a rule would have no effect until its end."""
        trial = next((each for each in self._trials if each.contains_scope(scope)), None)
        if trial is not None:
            raise Conflict(f"an experiment runs for {trial}: end it first")

    def begin_trial(self, scope: PolicyScope, choice: PolicyChoice) -> None:
        """Override the rules of a scope, to be applied by `apply_to_partitions`."""
        assert scope in self._trials or not any(scope.overlaps_scope(each) for each in self._trials)
        self._trials[scope] = choice

    def end_trial(self, scope: PolicyScope) -> None:
        """End the override, to be applied by `apply_to_partitions`."""
        del self._trials[scope]

    def apply_to_partitions(self) -> Iterator[None]:
        """Apply the rules to all partitions, one per step."""
        # A snapshot: partitions may be created or removed between two steps.
        for key in list(self._partitions):
            partition = self._partitions.get(key)
            if partition is not None:
                partition.placer.switch_policy(self.policy_of(key))
            yield
