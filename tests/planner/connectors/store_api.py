"""Store of the fake Kubernetes as the API of a connector, without a server."""

from typing import Any

import msgspec

from select_service.planner.connectors.kube.api_requests import JSON, KubernetesError
from tests.builders.fake_kubernetes.kinds import DEPLOYMENT, LEASE, POD
from tests.builders.fake_kubernetes.store import Refused, Store


class StoreApi:
    """API for pods, deployments and leases.

    fails: results of the next requests; a status (0 means a lost request), or `answer` for a
    lost answer
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.fails: list[str] = []

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON
    ) -> bytes:
        fails = self.fails.pop(0) if self.fails else ""
        if fails.isdigit():
            raise KubernetesError(int(fails), "injected")
        try:
            found = self._served(method, path.partition("?"), body, content_type)
        except Refused as refused:
            raise KubernetesError(refused.status, refused.message) from None
        if fails == "answer":
            raise KubernetesError(0, "the answer is lost")
        return msgspec.json.encode(found)

    def _served(
        self, method: str, path: tuple[str, str, str], body: Any, content_type: str
    ) -> dict[str, Any]:
        if path[0].endswith("/pods"):
            app = path[2].rpartition("%3D")[2]
            pods = self.store.list(POD, "default")
            return {"items": [pod for pod in pods if pod["metadata"]["labels"]["app"] == app]}
        *_, name, last = path[0].split("/")
        if method == "POST":
            return self.store.create(LEASE, "default", body)
        if name == "leases":
            if method == "GET":
                return self.store.get(LEASE, "default", last)
            return self.store.update(LEASE, "default", last, body)
        if last != "scale":
            return self.store.get(DEPLOYMENT, "default", last)
        if method == "PATCH":
            return self.store.patch_scale(DEPLOYMENT, "default", name, body, content_type)
        return self.store.scale(DEPLOYMENT, "default", name)

    async def namespace(self) -> str:
        return "default"

    async def close(self) -> None:
        pass
