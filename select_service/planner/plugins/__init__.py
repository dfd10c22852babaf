"""Plugins of the planner: the names that authors of plugins import."""

from select_service.planner.core.plugin_contracts import (
    EngineContext,
    PluginContext,
    ReplicaTarget,
    ReplicaTargets,
    RoleContext,
)
from select_service.planner.core.reconcile import BoundType
from select_service.planner.core.stages import Prediction, Stage
from select_service.planner.core.tick_input import Role

__all__ = [
    "BoundType",
    "EngineContext",
    "PluginContext",
    "Prediction",
    "ReplicaTarget",
    "ReplicaTargets",
    "Role",
    "RoleContext",
    "Stage",
]
