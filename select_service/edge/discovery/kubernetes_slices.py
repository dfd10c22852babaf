"""Endpoints of services: EndpointSlices that a label selector finds."""

from collections.abc import Sequence

from select_service.core.discovery.candidates import Candidate
from select_service.core.discovery.endpoint_slices import (
    EndpointSlice,
    SliceTemplate,
    candidates_of,
    distinct,
)
from select_service.edge.discovery.kubernetes_lists import KubernetesList


class KubernetesSlices(KubernetesList[EndpointSlice]):
    """Belongs to one event loop."""

    form, path, plural = EndpointSlice, "/apis/discovery.k8s.io/v1", "endpointslices"

    def serving(self, document: EndpointSlice) -> Sequence[Candidate]:
        """Raises ValueError."""
        source = self._source
        return candidates_of(document, SliceTemplate(source.port, source.port_name, source.worker))

    def candidates(self) -> list[Candidate]:
        """Each engine once."""
        return distinct(self._found)
