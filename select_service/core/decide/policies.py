"""The policies that a configuration may name."""

from select_service.core.decide.policy import Policy
from select_service.core.decide.reference import REFERENCE
from select_service.core.decide.router_config import RouterConfig

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (REFERENCE,)}
"""Their names are POLICY_NAMES."""


def policy_of(config: RouterConfig) -> Policy:
    return POLICIES[config.policy]
