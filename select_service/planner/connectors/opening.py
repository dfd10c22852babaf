"""From what the configuration says to a connector."""

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from select_service.planner import config
from select_service.planner.connectors.advisory import Switched
from select_service.planner.connectors.base import Connector, ReadyCounts
from select_service.planner.connectors.draining import Drainer
from select_service.planner.connectors.dry_run import DryRun
from select_service.planner.connectors.kube.client import KubeClient
from select_service.planner.connectors.kube.lease import Elections
from select_service.planner.connectors.kube.target import Target
from select_service.planner.connectors.kubernetes import KubernetesConnector
from select_service.planner.connectors.selectors import Selectors
from select_service.planner.connectors.virtual import VirtualConnector
from select_service.planner.core.inputs import Role
from select_service.planner.core.settings import min_endpoint_of, roles_of
from select_service.tls.kept import ClientTls
from select_service.whole_file import PRIVATE


def identity() -> str:
    """One that no other planner has, with the host for people."""
    return f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all deployments of a planner share.

    selectors: URLs.  api_key_file: holds the key that they ask for.
    tls: of selectors; None: whom the system trusts is believed.
    kubeconfig: None: the account of the pod.  file_mode: of files that are created.
    """

    selectors: Sequence[str] = ()
    kubeconfig: Path | None = None
    profile: Literal["ours", "document"] = "ours"
    api_key_file: str | None = None
    tls: ClientTls | None = None
    file_mode: int = PRIVATE
    elections: Elections = field(default_factory=lambda: Elections(identity()))


async def opened(
    deployment: config.DeploymentConfig, around: Surroundings, ready: ReadyCounts | None = None
) -> Switched:
    """The connector of a deployment, that `advisory` stands before.

    ready: ranks that serve, as observed.  Raises ConnectorError.
    """
    chosen = deployment.connector
    if isinstance(chosen, config.VirtualConnector):
        connector: Connector = VirtualConnector(
            None if chosen.path is None else Path(chosen.path),
            ready,
            _drainer(deployment, around, chosen.drain_timeout_s) if chosen.drain else None,
            profile=around.profile,
            mode=around.file_mode,
        )
    elif isinstance(chosen, config.KubernetesConnector):
        connector = await _kubernetes(deployment, chosen, around)
    else:
        path = None if chosen.path is None else Path(chosen.path)
        connector = DryRun(path, await _initial(deployment, ready), ready, mode=around.file_mode)
    return Switched(connector, deployment.advisory)


def virtual_of(connector: Switched) -> VirtualConnector | None:
    """What `virtual_routes` serves; None: the deployment has another kind."""
    inner = connector.connector
    return inner if isinstance(inner, VirtualConnector) else None


def _drainer(
    deployment: config.DeploymentConfig, around: Surroundings, timeout_s: float
) -> Drainer | None:
    if not around.selectors or around.profile == "document":
        return None
    scope = deployment.model_name, deployment.tenant_id
    selectors = Selectors(around.selectors, *scope, around.api_key_file, around.tls)
    return Drainer(selectors, timeout_s)


async def _initial(
    deployment: config.DeploymentConfig, ready: ReadyCounts | None
) -> dict[Role, int]:
    """What is there now, else the least that there may be."""
    seen = (None if ready is None else await ready()) or {}
    return {
        role: seen.get(role, min_endpoint_of(deployment, role)) for role in roles_of(deployment)
    }


async def _kubernetes(
    deployment: config.DeploymentConfig, chosen: config.KubernetesConnector, around: Surroundings
) -> KubernetesConnector:
    """Raises ConnectorError."""
    api = KubeClient(around.kubeconfig)
    namespace = chosen.namespace or await api.namespace()
    given = {Role.PREFILL: chosen.prefill, Role.DECODE: chosen.decode}
    targets = [
        Target(role, found.kind, found.name, namespace, found.api_version, found.component)
        for role in roles_of(deployment)
        if (found := given[role]) is not None
    ]
    election = None
    if chosen.lease is not None:
        election = around.elections.of(
            namespace, chosen.lease, lambda: KubeClient(around.kubeconfig)
        )
    drainer = _drainer(deployment, around, chosen.drain_timeout_s) if chosen.drain else None
    return KubernetesConnector(api, targets, election, drainer, worker_label=chosen.worker_label)
