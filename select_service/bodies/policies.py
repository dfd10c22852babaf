"""HTTP bodies about the policies that choose ranks."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.bodies.common import Name, RequestBody, tenant_of

OPTIONS_MAX = 16
NAME_BYTES_MAX = 64

Option = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]


class ScopeOfPolicy(RequestBody, kw_only=True):
    """What a policy, or an experiment, counts for."""

    model_name: Name | UnsetType = UNSET
    """Model that it counts for; all of them when left out."""
    tenant_id: Name | UnsetType = UNSET
    """Tenant of that model that it counts for; all of them when left out."""
    routing_group: Name | UnsetType = UNSET
    """Another name of `tenant_id`; when both are given they must be equal."""

    @property
    def of_model(self) -> str | None:
        return None if isinstance(self.model_name, UnsetType) else self.model_name

    @property
    def of_tenant(self) -> str | None:
        """Raises BadRequest when its two names contradict each other."""
        if self.tenant_id is UNSET and self.routing_group is UNSET:
            return None
        return tenant_of(self.tenant_id, self.routing_group)


class PolicyChange(ScopeOfPolicy, kw_only=True):
    """PUT /policy: by which policy ranks are chosen in a scope."""

    policy: Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
    """Name of the policy: `reference`, `work` or `least_work`."""
    options: Annotated[tuple[Option, ...], Meta(max_length=OPTIONS_MAX)] = ()
    """Names of its options, as --policy-options has them; none when left out."""


class ChosenPolicy(Struct, kw_only=True):
    """A policy with its options."""

    policy: str
    """Name of the policy."""
    options: list[str]
    """Names of its options that are on."""


class PolicyRule(Struct, kw_only=True):
    """The policy that was set for a scope."""

    model_name: str | None
    """Model that it counts for; null: all."""
    tenant_id: str | None
    """Tenant of that model that it counts for; null: all."""
    policy: str
    """Name of the policy."""
    options: list[str]
    """Names of its options that are on."""


class PartitionPolicy(Struct, kw_only=True):
    """The policy by which ranks are chosen now for a model and tenant that somebody serves."""

    model_name: str
    """The model."""
    tenant_id: str
    """The tenant."""
    policy: str
    """Name of the policy."""
    options: list[str]
    """Names of its options that are on."""


class PolicyState(Struct, kw_only=True):
    """Which policy counts where; the most specific rule wins."""

    default: ChosenPolicy
    """That of --policy and --policy-options, where no rule counts."""
    rules: list[PolicyRule]
    """What was set at run time, by model and tenant."""
    tried: list[PolicyRule]
    """What running experiments let count now, before all rules, by model and tenant."""
    partitions: list[PartitionPolicy]
    """What follows from it, by model and tenant."""
    kept: bool
    """Do the rules outlive the process? Not without --snapshot-path, nor while its disk is full."""
