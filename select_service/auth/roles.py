"""Roles of keys, and the declaration of the roles that may call a route."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Role: TypeAlias = Literal["caller", "operator", "replica", "metrics"]

CALLER: Role = "caller"
"""Places prompts and reports their progress."""
OPERATOR: Role = "operator"
"""Changes the fleet and the service."""
REPLICA: Role = "replica"
"""Another selector: reads the state needed for synchronization."""
METRICS: Role = "metrics"
"""Reads numbers, for monitoring and autoscaling."""
ROLES: tuple[Role, ...] = (CALLER, OPERATOR, REPLICA, METRICS)
ROLE_DESCRIPTIONS: Mapping[Role, str] = {
    CALLER: "places prompts, books requests and reports their ends (gateways)",
    OPERATOR: "changes workers, limits and settings, reads all, books nothing (people, planner)",
    REPLICA: "reads reservations and the index (other selectors)",
    METRICS: "reads numbers: /metrics, /planner/observation (monitoring, planner)",
}
"""Permissions of each role, as help text."""


class RoutePermission(NamedTuple):
    """Permission to call a route.

    roles: required roles; any of these is enough; empty means public, even without a key
    is_scoped: whether the handler stays within the tenants of the key.  Otherwise keys bound to
    tenants
    may not call the route, whatever their roles.
    """

    roles: frozenset[Role]
    is_scoped: bool


ANYONE = RoutePermission(frozenset(), True)


def tenant_scoped(*roles: Role) -> RoutePermission:
    """Return the permission for a route with a handler that stays within the tenants of the key."""
    return RoutePermission(frozenset(roles), True)


def service_wide(*roles: Role) -> RoutePermission:
    """Return the permission for a route that shows or changes state of all tenants."""
    return RoutePermission(frozenset(roles), False)
