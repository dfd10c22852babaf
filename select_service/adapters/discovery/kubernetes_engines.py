"""Discovery sources for the pods, or the EndpointSlices, matched by a label selector."""

from collections.abc import Sequence

from select_service.adapters.discovery.kubernetes_source import KubernetesDiscoverySource
from select_service.core.registry.discovery.endpoint_slices import (
    EndpointSlice,
    EndpointSliceTemplate,
    candidates_of_slice,
    distinct_engines,
)
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


class KubernetesSlices(KubernetesDiscoverySource[EndpointSlice]):
    """Source for EndpointSlices.  Belongs to one event loop."""

    form, path, plural = EndpointSlice, "/apis/discovery.k8s.io/v1", "endpointslices"

    def ready_engines(self, document: EndpointSlice) -> Sequence[EngineCandidate]:
        """Return the ready engines of a slice.  Raises ValueError."""
        source = self._source
        return candidates_of_slice(
            document, EndpointSliceTemplate(source.port, source.port_name, source.worker)
        )

    def all_candidates(self) -> list[EngineCandidate]:
        """Return the candidates of all slices without duplicates."""
        return distinct_engines(self._ready_engines)
