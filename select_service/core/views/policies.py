"""Which policy counts where, as clients read it."""

from collections.abc import Mapping

from select_service.bodies.policies import (
    ChosenPolicy,
    PartitionPolicy,
    PolicyRule,
    PolicyState,
)
from select_service.core.decide.policies import PolicyChoice
from select_service.core.fleet.fleet import Fleet
from select_service.core.fleet.scoped_policies import PolicyScope, ScopedPolicies


def policy_rules(policies: ScopedPolicies) -> list[PolicyRule]:
    """What was set at run time."""
    return _rows(policies.rules)


def _rows(rules: Mapping[PolicyScope, PolicyChoice]) -> list[PolicyRule]:
    """All models and all tenants come first."""
    return [
        PolicyRule(
            model_name=scope.model_name,
            tenant_id=scope.tenant_id,
            policy=choice.policy,
            options=list(choice.options),
        )
        for scope, choice in sorted(rules.items(), key=lambda rule: _order(rule[0]))
    ]


def _order(scope: PolicyScope) -> tuple[bool, str, bool, str]:
    model, tenant = scope
    return model is not None, model or "", tenant is not None, tenant or ""


def policy_state(fleet: Fleet, kept: bool) -> PolicyState:
    """The rules and what follows from them.  O(rules + partitions), some ms for the most.

    kept: do the rules outlive the process?
    """
    default, partitions = fleet.policies.default, fleet.partitions
    return PolicyState(
        default=ChosenPolicy(policy=default.policy, options=list(default.options)),
        rules=policy_rules(fleet.policies),
        tried=_rows(fleet.policies.trials),
        partitions=[
            PartitionPolicy(
                model_name=key.model_name,
                tenant_id=key.tenant_id,
                policy=partitions[key].placing.choice.policy,
                options=list(partitions[key].placing.choice.options),
            )
            for key in sorted(partitions)
        ],
        kept=kept,
    )
