"""The policies that a configuration may name, and what is chosen among them."""

from collections.abc import Sequence
from typing import NamedTuple

from select_service.core.decide.least_work import LEAST_WORK
from select_service.core.decide.policy import Policy
from select_service.core.decide.reference import REFERENCE
from select_service.core.decide.router_config import RouterConfig
from select_service.core.decide.work import WORK
from select_service.errors import InvalidBody
from select_service.spelling import nearest, shown

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (WORK, LEAST_WORK, REFERENCE)}
"""Their names are POLICY_NAMES."""


class PolicyChoice(NamedTuple):
    """A policy by its name, and its options."""

    policy: str
    options: tuple[str, ...] = ()

    def within(self, config: RouterConfig) -> RouterConfig:
        """A configuration with this policy in place of its own."""
        return config._replace(policy=self.policy, policy_options=self.options)

    def __str__(self) -> str:
        """As `choice_named` reads it."""
        return "+".join((self.policy, *self.options))


def choice_of(config: RouterConfig) -> PolicyChoice:
    return PolicyChoice(config.policy, config.policy_options)


def checked_choice(
    policy: str, options: Sequence[str], fields: tuple[str, str] = ("policy", "options")
) -> PolicyChoice:
    """What a client chose.  Raises InvalidBody for a policy or an option that there is not.

    fields: what refusals call the two
    """
    of_policy, of_options = fields
    if policy not in POLICIES:
        raise InvalidBody(_unknown(of_policy, policy, "policies", tuple(POLICIES)))
    known = POLICIES[policy].options
    for option in options:
        if option not in known and not known:
            text = f"`{of_options}`: the policy `{policy}` has no options, got `{shown(option)}`"
            raise InvalidBody(text)
        if option not in known:
            text = _unknown(of_options, option, f"options of `{policy}`", known)
            raise InvalidBody(text)
    return PolicyChoice(policy, tuple(option for option in known if option in options))


def choice_named(text: str, field: str = "policy") -> PolicyChoice:
    """As `work`, or with options `work+strict-tail`.  Raises InvalidBody.

    field: what refusals call it
    """
    policy, *options = text.split("+")
    return checked_choice(policy, options, (field, field))


def _unknown(field: str, name: str, kind: str, known: Sequence[str]) -> str:
    meant = nearest(name, known)
    proposal = "" if meant is None else f"; did you mean `{meant}`?"
    return f"`{field}`: the {kind} are {', '.join(known)}, got `{shown(name)}`{proposal}"


def policy_number(policy: Policy) -> int:
    """By which decisions that are kept name it."""
    return list(POLICIES).index(policy.name)


def policy_numbered(number: int) -> Policy:
    """The one of a number."""
    return list(POLICIES.values())[number]
