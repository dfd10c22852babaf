"""HTTP bodies of the placement policies."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.schemas.common import Name, RequestBody, resolve_tenant

OPTIONS_MAX = 16
NAME_BYTES_MAX = 64

Option = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]


class ScopeOfPolicy(RequestBody, kw_only=True):
    """Scope of a policy or an experiment."""

    model_name: Name | UnsetType = UNSET
    """Model in the scope; all models when omitted."""
    tenant_id: Name | UnsetType = UNSET
    """Tenant of that model; all tenants when omitted."""
    routing_group: Name | UnsetType = UNSET
    """Alias of `tenant_id`; when both are given they must be equal."""

    @property
    def resolved_model(self) -> str | None:
        return None if isinstance(self.model_name, UnsetType) else self.model_name

    @property
    def resolved_tenant(self) -> str | None:
        """Return the tenant of the scope.  Raises BadRequest when the two names contradict."""
        if self.tenant_id is UNSET and self.routing_group is UNSET:
            return None
        return resolve_tenant(self.tenant_id, self.routing_group)


class PolicyChange(ScopeOfPolicy, kw_only=True):
    """Body of PUT /policy: placement policy of a scope."""

    policy: Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
    """Name of the policy: `reference`, `work` or `least_work`."""
    options: Annotated[tuple[Option, ...], Meta(max_length=OPTIONS_MAX)] = ()
    """Names of the policy's options, as in --policy-options; none when omitted."""


class ChosenPolicy(Struct, kw_only=True):
    """Policy with its options."""

    policy: str
    """Name of the policy."""
    options: list[str]
    """Names of the active options."""


class PolicyRule(Struct, kw_only=True):
    """Policy set for a scope."""

    model_name: str | None
    """Model in the scope; null: all models."""
    tenant_id: str | None
    """Tenant of that model; null: all tenants."""
    policy: str
    """Name of the policy."""
    options: list[str]
    """Names of the active options."""


class PartitionPolicy(Struct, kw_only=True):
    """Effective policy of a model and tenant with workers."""

    model_name: str
    """Name of the model."""
    tenant_id: str
    """Name of the tenant."""
    policy: str
    """Name of the policy."""
    options: list[str]
    """Names of the active options."""


class PolicyState(Struct, kw_only=True):
    """Policies in effect; the most specific rule wins."""

    default: ChosenPolicy
    """Policy from --policy and --policy-options, where no rule matches."""
    rules: list[PolicyRule]
    """Rules set at run time, by model and tenant."""
    tried: list[PolicyRule]
    """Policies of running experiments, by model and tenant; override all rules."""
    partitions: list[PartitionPolicy]
    """Resulting policy by model and tenant."""
    kept: bool
    """Whether the rules survive a restart. False without --snapshot-path and while its disk is
    full.
    """
