"""Targets of a Kubernetes connector, with the planner's own DynamoGraphDeployment as default."""

import os
from collections.abc import Mapping
from typing import Final

from select_service.planner.config import KubernetesConnectorConfig, KubernetesTargetConfig
from select_service.planner.core.tick_input import Role

PARENT_GRAPH_VARIABLE: Final = "DYN_PARENT_DGD_K8S_NAME"
"""Variable with the name of the object that a pod belongs to, set by Dynamo's operator."""


def kubernetes_targets(
    connector: KubernetesConnectorConfig,
) -> Mapping[Role, KubernetesTargetConfig]:
    """Return the targets that are given, else those of the graph, for roles with a target."""
    graph = connector.graph or os.environ.get(PARENT_GRAPH_VARIABLE)
    given = {Role.PREFILL: connector.prefill, Role.DECODE: connector.decode}
    own = KubernetesTargetConfig("DynamoGraphDeployment", graph) if graph else None
    # Roles of a deployment are either all in the graph or all given: a forgotten target must not
    # become another object that happens to be there.
    if any(given.values()):
        own = None
    return {role: each for role, target in given.items() if (each := target or own) is not None}
