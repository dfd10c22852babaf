"""Roles of a connector's decision, by status."""

from select_service.planner.connectors.connector import ConnectorDecision, ConnectorStatus
from select_service.planner.core.tick_input import Role


def roles_with(decision: ConnectorDecision, status: ConnectorStatus) -> tuple[Role, ...]:
    """Return the roles with this status in the decision."""
    return tuple(role for role, decided in decision.roles.items() if decided.status == status)
