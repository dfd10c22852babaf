"""Registry of the placement policies a configuration may name."""

from collections.abc import Sequence
from typing import NamedTuple

from select_service.base.errors import InvalidBody
from select_service.base.suggestions import nearest_name, printable_name
from select_service.core.placement.policies.least_work_policy import LEAST_WORK_POLICY
from select_service.core.placement.policies.policy import PlacementPolicy
from select_service.core.placement.policies.reference_policy import REFERENCE_POLICY
from select_service.core.placement.policies.work_policy import WORK_POLICY
from select_service.core.placement.router_config import RouterConfig

POLICIES: dict[str, PlacementPolicy] = {
    policy.name: policy for policy in (WORK_POLICY, LEAST_WORK_POLICY, REFERENCE_POLICY)
}
"""Policies by name; the names equal POLICY_NAMES."""


class PolicyChoice(NamedTuple):
    """Name of a policy with its options."""

    policy: str
    options: tuple[str, ...] = ()

    def apply_to(self, config: RouterConfig) -> RouterConfig:
        """Return a configuration with this policy instead of its own."""
        return config._replace(policy=self.policy, policy_options=self.options)

    def __str__(self) -> str:
        """Return the text form that `parse_policy_choice` parses."""
        return "+".join((self.policy, *self.options))


def policy_choice_of(config: RouterConfig) -> PolicyChoice:
    return PolicyChoice(config.policy, config.policy_options)


def validate_policy_choice(
    policy: str, options: Sequence[str], fields: tuple[str, str] = ("policy", "options")
) -> PolicyChoice:
    """Return a validated choice.  Raises InvalidBody for an unknown policy or option.

    fields: names of the two fields in error texts
    """
    of_policy, of_options = fields
    if policy not in POLICIES:
        raise InvalidBody(_unknown_name_text(of_policy, policy, "policies", tuple(POLICIES)))
    option_names = POLICIES[policy].options
    for option in options:
        if option not in option_names and not option_names:
            text = (
                f"`{of_options}`: the policy `{policy}` has no options, got "
                f"`{printable_name(option)}`"
            )
            raise InvalidBody(text)
        if option not in option_names:
            text = _unknown_name_text(of_options, option, f"options of `{policy}`", option_names)
            raise InvalidBody(text)
    # In the policy's own order, so that equal choices compare equal.
    return PolicyChoice(policy, tuple(option for option in option_names if option in options))


def parse_policy_choice(text: str, field: str = "policy") -> PolicyChoice:
    """Parse `work` or, with options, `work+strict-tail`.  Raises InvalidBody.

    field: name of the field in error texts
    """
    policy, *options = text.split("+")
    return validate_policy_choice(policy, options, (field, field))


def _unknown_name_text(field: str, name: str, kind: str, known_names: Sequence[str]) -> str:
    meant = nearest_name(name, known_names)
    proposal = "" if meant is None else f"; did you mean `{meant}`?"
    return (
        f"`{field}`: the {kind} are {', '.join(known_names)}, got "
        f"`{printable_name(name)}`{proposal}"
    )


def policy_number(policy: PlacementPolicy) -> int:
    """Return the number of a policy in recorded decisions."""
    return list(POLICIES).index(policy.name)


def policy_by_number(number: int) -> PlacementPolicy:
    """Return the policy of a number in recorded decisions."""
    return list(POLICIES.values())[number]
