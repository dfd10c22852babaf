"""Replacement of the pods of workers that health has taken out.

The platform starts another pod in the place of a deleted one. A pod is deleted only while no
selector sends requests to its worker; a marked pod is left to another actor.
"""

import logging
from collections.abc import Iterable
from typing import Literal, NamedTuple
from urllib.parse import quote

from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.connector import ConnectorUnavailable
from select_service.planner.connectors.kube.api_requests import NOT_FOUND, KubernetesApi
from select_service.planner.connectors.kube.objects import PodObject
from select_service.planner.connectors.kube.rollout import find_worker
from select_service.planner.connectors.kube.scale_target import TargetState, annotate_pod
from select_service.planner.connectors.worker_drain import WorkerDrainer

log = logging.getLogger("select_service.planner.connectors")

ReplaceMode = Literal["delete", "annotate", "never"]
REPLACE_MARK = "select-service/replace"
"""Annotation of a pod that another actor is to replace; its value is the worker id."""


WORKER_LABEL = "select-service/worker-id"


class PodRules(NamedTuple):
    """Rules about the pods of workers.

    worker_label: label of pods with the id of their worker
    replaces: what happens to the pods of lost workers
    """

    worker_label: str = WORKER_LABEL
    replaces: ReplaceMode = "never"


class ReplacementResult(NamedTuple):
    """Result of a replacement.

    replaced: workers of the pods that are being replaced
    fault:    reason why another worker was not replaced; empty if there is none
    """

    replaced: tuple[int, ...] = ()
    fault: str = ""


class PodReplacement:
    """Replacement of pods.

    drainer: reads from the selectors whether a worker serves; None means that the tick's own
        reading suffices
    """

    def __init__(
        self,
        api: KubernetesApi,
        drainer: WorkerDrainer | None,
        rules: PodRules,
    ) -> None:
        self._api = api
        self._drainer = drainer
        self._worker_label, self._mode = rules

    async def replace_workers(
        self, lost: Iterable[int], found: Iterable[TargetState]
    ) -> ReplacementResult:
        """Replace the pods of lost workers.

        found: current state of all targets
        """
        states = list(found)
        replaced, fault = [], ""
        for worker_id in lost:
            # A pod that cannot be replaced must not keep the others from it.
            try:
                if await self._replace_worker(worker_id, states):
                    replaced.append(worker_id)
            except (KubernetesError, ConnectorUnavailable) as error:
                fault = f"worker {worker_id} is not replaced: {error}"
        return ReplacementResult(tuple(replaced), fault)

    async def _replace_worker(self, worker_id: int, states: list[TargetState]) -> bool:
        """Replace one pod; return whether the platform has begun. Raises KubernetesError,
        ConnectorUnavailable.
        """
        namespace, pod = await self._find_pod(worker_id, states)
        # Already ending, by an earlier call or another actor: its successor is on the way.
        if pod.metadata.deletion_timestamp is not None:
            return True
        # The health that the tick has read may be old by now.
        if self._drainer is not None and await self._drainer.serves_requests(worker_id):
            raise ConnectorUnavailable("it takes requests again")
        fields = {"pod": pod.metadata.name, "worker_id": worker_id, "mode": self._mode}
        if self._mode == "annotate":
            if pod.metadata.annotations.get(REPLACE_MARK) != str(worker_id):
                await annotate_pod(self._api, namespace, pod, {REPLACE_MARK: str(worker_id)})
                log.warning("pod of a lost worker marked", extra={"fields": fields})
            return False
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod.metadata.name)}"
        # A pod of the same name may be new, as with StatefulSets.
        condition = {"uid": pod.metadata.uid} if pod.metadata.uid else {}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": condition}
        try:
            await self._api.call("DELETE", path, body)
        except KubernetesError as error:
            # Without its pod nothing is left to delete; anything else is tried again later.
            if error.status != NOT_FOUND:
                raise
        log.warning("pod of a lost worker deleted", extra={"fields": fields})
        return True

    async def _find_pod(self, worker_id: int, states: list[TargetState]) -> tuple[str, PodObject]:
        """Return namespace and pod of a worker. Raises ConnectorUnavailable."""
        loads = [] if self._drainer is None else await self._drainer.read_loads()
        by_host = {load.host: load for load in loads if load.host}
        for state in states:
            for pod in state.pods:
                if find_worker(pod, by_host, self._worker_label) == worker_id:
                    return state.target.namespace, pod
        raise ConnectorUnavailable(
            f"no pod has its id in the label {self._worker_label} or its address"
        )
