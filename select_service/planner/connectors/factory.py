"""Factory of connectors from the configuration."""

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from select_service.files.atomic_file import PRIVATE_MODE
from select_service.net.tls.current_tls import ClientTls
from select_service.planner import config
from select_service.planner.connectors.connector import PlatformConnector, ReadReadyCounts
from select_service.planner.connectors.dry_run_connector import DryRunConnector
from select_service.planner.connectors.kube.api_client import KubernetesApiClient
from select_service.planner.connectors.kube.leader_election import LeaderElections
from select_service.planner.connectors.kube.pod_replacement import PodRules
from select_service.planner.connectors.kube.scale_target import DYNAMO_GRAPH_KIND, ScaleTarget
from select_service.planner.connectors.kubernetes_connector import KubernetesConnector
from select_service.planner.connectors.selector_client import SelectorClients
from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.connectors.worker_drain import WorkerDrainer
from select_service.planner.core.settings import minimum_replicas, scaled_roles
from select_service.planner.core.tick_input import Role
from select_service.planner.graph_targets import kubernetes_targets


def make_identity() -> str:
    """Return a unique identity of this planner, with the host name for readers."""
    return f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class ConnectorEnvironment:
    """Settings shared by all deployments of a planner.

    selectors:    URLs
    api_key_file: file with the key for selectors
    tls:          settings for selectors; None means the system's CAs
    kubeconfig:   None means the service account of the pod
    file_mode:    mode of created files
    """

    selectors: Sequence[str] = ()
    kubeconfig: Path | None = None
    profile: Literal["ours", "document"] = "ours"
    api_key_file: str | None = None
    tls: ClientTls | None = None
    file_mode: int = PRIVATE_MODE
    elections: LeaderElections = field(default_factory=lambda: LeaderElections(make_identity()))


async def make_connector(
    deployment: config.DeploymentConfig,
    environment: ConnectorEnvironment,
    ready: ReadReadyCounts | None = None,
) -> PlatformConnector:
    """Build the connector of a deployment.

    ready: function for serving ranks, as observed.  Raises ConnectorError.
    """
    chosen = deployment.connector
    if isinstance(chosen, config.KubernetesConnectorConfig):
        return await _make_kubernetes_connector(deployment, chosen, environment)
    path, mode = None if chosen.path is None else Path(chosen.path), environment.file_mode
    if isinstance(chosen, config.VirtualConnectorConfig):
        drainer = _make_drainer(deployment, chosen, environment)
        return VirtualConnector(path, ready, drainer, profile=environment.profile, mode=mode)
    return DryRunConnector(path, await _initial_counts(deployment, ready), ready, mode=mode)


def _make_drainer(
    deployment: config.DeploymentConfig,
    chosen: config.VirtualConnectorConfig | config.KubernetesConnectorConfig,
    environment: ConnectorEnvironment,
) -> WorkerDrainer | None:
    """Build the drainer; None if off, without selectors, or in the document profile."""
    if not chosen.drain or not environment.selectors or environment.profile == "document":
        return None
    scope = deployment.model_name, deployment.tenant_id
    selectors = SelectorClients(
        environment.selectors, *scope, environment.api_key_file, environment.tls
    )
    return WorkerDrainer(selectors, chosen.drain_timeout_s)


async def _initial_counts(
    deployment: config.DeploymentConfig, ready: ReadReadyCounts | None
) -> dict[Role, int]:
    """Return the current replicas, else the minimums."""
    seen = (None if ready is None else await ready()) or {}
    return {
        role: seen.get(role, minimum_replicas(deployment, role))
        for role in scaled_roles(deployment)
    }


async def _make_kubernetes_connector(
    deployment: config.DeploymentConfig,
    chosen: config.KubernetesConnectorConfig,
    environment: ConnectorEnvironment,
) -> KubernetesConnector:
    """Build a Kubernetes connector. Raises ConnectorError."""
    api = KubernetesApiClient(environment.kubeconfig)
    namespace = chosen.namespace or await api.namespace()
    given = kubernetes_targets(chosen)
    targets = [
        _make_target(role, given[role], namespace, deployment.model_name)
        for role in scaled_roles(deployment)
        if role in given
    ]
    election = None
    if chosen.lease is not None:
        election = environment.elections.election_for(
            namespace, chosen.lease, lambda: KubernetesApiClient(environment.kubeconfig)
        )
    drainer = _make_drainer(deployment, chosen, environment)
    return KubernetesConnector(
        api,
        targets,
        election,
        drainer,
        pods=PodRules(chosen.worker_label, chosen.replace),
    )


def _make_target(
    role: Role, given: config.KubernetesTargetConfig, namespace: str, model_name: str
) -> ScaleTarget:
    """Build a target."""
    found = ScaleTarget(role, given.kind, given.name, namespace, given.api_version, given.component)
    # A component that is named is taken as it is; one that is found must serve the model.
    is_found = given.kind == DYNAMO_GRAPH_KIND and given.component is None
    return found._replace(model_name=model_name) if is_found else found
