"""The roles that a key may have, and the words in which a route says who may call it."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Role: TypeAlias = Literal["caller", "operator", "replica", "metrics"]

CALLER: Role = "caller"
"""Asks where prompts go, and reports their lives."""
OPERATOR: Role = "operator"
"""Changes the fleet and the service."""
REPLICA: Role = "replica"
"""Another selector: reads what it needs to agree with this one."""
METRICS: Role = "metrics"
"""Reads numbers, for monitoring and autoscaling."""
ROLES: tuple[Role, ...] = (CALLER, OPERATOR, REPLICA, METRICS)
MEANINGS: Mapping[Role, str] = {
    CALLER: "asks where prompts go, books requests and reports their ends (gateways)",
    OPERATOR: "changes workers, limits and settings, reads all but books nothing (people, planner)",
    REPLICA: "reads reservations and the index (other selectors)",
    METRICS: "reads numbers: /metrics, /planner/observation (monitoring, planner)",
}
"""What a key of each role may do, for people."""


class MayCall(NamedTuple):
    """roles: one of them is needed; none: everybody may, without a key, too
    is_scoped: what is done and shown keeps within the tenants of the key.  If not, a key that is
    bound to tenants may not call it, whatever its roles.
    """

    roles: frozenset[Role]
    is_scoped: bool


ANYONE = MayCall(frozenset(), True)


def within_tenants(*roles: Role) -> MayCall:
    """Of a route whose handler shows and changes nothing outside the tenants of the key."""
    return MayCall(frozenset(roles), True)


def whole_service(*roles: Role) -> MayCall:
    """Of a route that shows or changes what belongs to all tenants."""
    return MayCall(frozenset(roles), False)
