"""Discovery source for pods matched by a label selector."""

from collections.abc import Sequence

from select_service.adapters.discovery.kubernetes_source import KubernetesDiscoverySource
from select_service.core.registry.discovery.engine_candidates import EngineCandidate
from select_service.core.registry.discovery.kubernetes_pods import (
    KubernetesPod,
    KubernetesPodTemplate,
    candidate_of_pod,
    is_serving,
)


class KubernetesPods(KubernetesDiscoverySource[KubernetesPod]):
    """Source for pods.  Belongs to one event loop."""

    form, path, plural = KubernetesPod, "/api/v1", "pods"

    def ready_engines(self, document: KubernetesPod) -> Sequence[EngineCandidate]:
        """Return the engine of a ready pod.  Raises ValueError."""
        if not is_serving(document):
            return ()
        template = KubernetesPodTemplate(self._source.port, self._source.worker)
        return (candidate_of_pod(document, template),)
