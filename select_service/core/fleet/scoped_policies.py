"""Which policy places the prompts of which partition, as clients change it at run time."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from select_service.core.decide.policies import PolicyChoice
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey
from select_service.errors import CapacityExceeded, Conflict, NotFound
from select_service.spelling import shown

POLICY_RULES_MAX = 1024
"""As many as there may be partitions."""


class PolicyScope(NamedTuple):
    """What a rule counts for.  model_name: None: all models;  tenant_id: None: all tenants"""

    model_name: str | None = None
    tenant_id: str | None = None

    @classmethod
    def of(cls, key: PartitionKey) -> "tuple[PolicyScope, PolicyScope, PolicyScope]":
        """All that a partition is in, the most specific one first."""
        return cls(*key), cls(key.model_name), cls()

    def contains(self, other: "PolicyScope") -> bool:
        return all(mine in (None, its) for mine, its in zip(self, other, strict=True))

    def overlaps(self, other: "PolicyScope") -> bool:
        """One of them contains the other, since a tenant is that of a model."""
        return self.contains(other) or other.contains(self)

    def __str__(self) -> str:
        model, tenant = (
            "all" if name is None else f"`{shown(name)}`"
            for name in (self.model_name, self.tenant_id)
        )
        return f"model {model}, tenant {tenant}"


class ScopedPolicies:
    """Rules by scope; the most specific one counts, and where there is none the default.

    Rules may be there before their partitions, which then begin with them.  A trial counts before
    all rules; the scopes of trials do not overlap.
    """

    def __init__(self, default: PolicyChoice, partitions: Mapping[PartitionKey, Partition]) -> None:
        """default: that of the process;  partitions: those that follow the rules"""
        self.default = default
        self._partitions = partitions
        self._rules: dict[PolicyScope, PolicyChoice] = {}
        self._trials: dict[PolicyScope, PolicyChoice] = {}

    @property
    def trials(self) -> Mapping[PolicyScope, PolicyChoice]:
        return self._trials

    @property
    def rules(self) -> Mapping[PolicyScope, PolicyChoice]:
        return self._rules

    def of(self, key: PartitionKey) -> PolicyChoice:
        """What counts for a partition."""
        for said in (self._trials, self._rules):
            for scope in PolicyScope.of(key):
                if scope in said:
                    return said[scope]
        return self.default

    def put(self, scope: PolicyScope, choice: PolicyChoice) -> None:
        """Set the rule of a scope, for `following`.  Raises CapacityExceeded, Conflict."""
        self._refuse_if_tried(scope)
        if scope not in self._rules and len(self._rules) >= POLICY_RULES_MAX:
            raise CapacityExceeded(
                f"{POLICY_RULES_MAX} scopes have a policy of their own, the most there may be"
            )
        self._rules[scope] = choice

    def restore(self, rules: Mapping[PolicyScope, PolicyChoice]) -> None:
        """What counted in an earlier process, before there are partitions.

        Raises CapacityExceeded, and has changed nothing.
        """
        assert not self._partitions
        if len(rules) > POLICY_RULES_MAX:
            raise CapacityExceeded(f"{len(rules)} rules, at most {POLICY_RULES_MAX} may be there")
        self._rules = dict(rules)

    def remove(self, scope: PolicyScope) -> None:
        """Take the rule of a scope back, for `following`.  Raises NotFound, Conflict."""
        self._refuse_if_tried(scope)
        if scope not in self._rules:
            raise NotFound(f"no policy is set for exactly this scope: {scope}")
        del self._rules[scope]

    def _refuse_if_tried(self, scope: PolicyScope) -> None:
        """A rule would not count there before the trial ends, which nobody would expect."""
        trial = next((each for each in self._trials if each.contains(scope)), None)
        if trial is not None:
            raise Conflict(f"an experiment runs for {trial}: end it first")

    def try_out(self, scope: PolicyScope, choice: PolicyChoice) -> None:
        """Let a policy count in a whole scope, whatever the rules say, for `following`."""
        assert scope in self._trials or not any(scope.overlaps(each) for each in self._trials)
        self._trials[scope] = choice

    def end_trial(self, scope: PolicyScope) -> None:
        """Let the rules count again, for `following`."""
        del self._trials[scope]

    def following(self) -> Iterator[None]:
        """Let all partitions follow the rules as they are then, one a step."""
        for key in list(self._partitions):
            partition = self._partitions.get(key)
            if partition is not None:
                partition.placing.follow(self.of(key))
            yield
