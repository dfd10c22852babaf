"""Pods that a label selector finds."""

from collections.abc import Sequence

from select_service.core.discovery.candidates import Candidate
from select_service.core.discovery.pods import Pod, PodTemplate, candidate_of, serves
from select_service.edge.discovery.kubernetes_lists import KubernetesList


class KubernetesPods(KubernetesList[Pod]):
    """Belongs to one event loop."""

    form, path, plural = Pod, "/api/v1", "pods"

    def serving(self, document: Pod) -> Sequence[Candidate]:
        """Raises ValueError."""
        if not serves(document):
            return ()
        template = PodTemplate(self._source.port, self._source.worker)
        return (candidate_of(document, template),)
