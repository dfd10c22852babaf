"""The policies that a configuration may name."""

from select_service.core.decide.least_work import LEAST_WORK
from select_service.core.decide.policy import Policy
from select_service.core.decide.reference import REFERENCE
from select_service.core.decide.router_config import RouterConfig
from select_service.core.decide.work import WORK

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (WORK, LEAST_WORK, REFERENCE)}
"""Their names are POLICY_NAMES."""


def policy_of(config: RouterConfig) -> Policy:
    return POLICIES[config.policy]


def policy_number(policy: Policy) -> int:
    """By which decisions that are kept name it."""
    return list(POLICIES).index(policy.name)


def policy_numbered(number: int) -> Policy:
    """The one of a number."""
    return list(POLICIES.values())[number]
