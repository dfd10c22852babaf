"""Policies by scope as response bodies."""

from collections.abc import Mapping

from select_service.core.placement.policies.policy_registry import PolicyChoice
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.scoped_policies import PolicyScope, ScopedPolicies
from select_service.schemas.policies import ChosenPolicy, PartitionPolicy, PolicyRule, PolicyState


def policy_rules(policies: ScopedPolicies) -> list[PolicyRule]:
    """Return the rules set at run time."""
    return _rule_rows(policies.policy_rules)


def _rule_rows(rules: Mapping[PolicyScope, PolicyChoice]) -> list[PolicyRule]:
    """Return rules as rows, with all models and all tenants first."""
    return [
        PolicyRule(
            model_name=scope.model_name,
            tenant_id=scope.tenant_id,
            policy=choice.policy,
            options=list(choice.options),
        )
        for scope, choice in sorted(rules.items(), key=lambda rule: _sort_key(rule[0]))
    ]


def _sort_key(scope: PolicyScope) -> tuple[bool, str, bool, str]:
    model, tenant = scope
    # None cannot be compared with texts, so its presence is compared first.
    return model is not None, model or "", tenant is not None, tenant or ""


def policy_state(fleet: WorkerFleet, is_persisted: bool) -> PolicyState:
    """Return the rules and the resulting policies. O(rules + partitions), some ms at most

    kept: whether the rules are persisted
    """
    default, partitions = fleet.policies.default, fleet.partitions
    return PolicyState(
        default=ChosenPolicy(policy=default.policy, options=list(default.options)),
        rules=policy_rules(fleet.policies),
        tried=_rule_rows(fleet.policies.trial_policies),
        partitions=[
            PartitionPolicy(
                model_name=key.model_name,
                tenant_id=key.tenant_id,
                policy=partitions[key].placer.policy_choice.policy,
                options=list(partitions[key].placer.policy_choice.options),
            )
            for key in sorted(partitions)
        ],
        kept=is_persisted,
    )
