"""Roles of a connector's decision by their outcome."""

from select_service.planner.connectors.connector import ConnectorDecision, ConnectorStatus
from select_service.planner.core.tick_input import Role


def roles_with(decision: ConnectorDecision, status: ConnectorStatus) -> tuple[Role, ...]:
    """Return the roles whose wish ended with this status."""
    return tuple(role for role, decided in decision.roles.items() if decided.status == status)
