"""Requests of the planner to the API server, see `KubernetesSession`."""

import asyncio
from pathlib import Path

import msgspec

from select_service.net.kubernetes_config import (
    SERVICE_ACCOUNT_DIR,
    ClusterUnavailable,
    find_namespace,
)
from select_service.net.kubernetes_session import KubernetesError, KubernetesSession, import_library
from select_service.planner.connectors.connector import ConnectorError
from select_service.planner.connectors.kube.api_requests import (
    ANSWER_BYTES_MAX,
    JSON,
    REQUEST_TIMEOUT_S,
    answer_error,
)

UNAUTHORIZED = 401


class KubernetesApiClient:
    """Client of an API server.

    kubeconfig: None means the service account of the pod, in `account`
    """

    def __init__(self, kubeconfig: Path | None = None, account: Path = SERVICE_ACCOUNT_DIR) -> None:
        self._kubeconfig = kubeconfig
        self._account = account
        self._session = KubernetesSession(kubeconfig, account)

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON
    ) -> bytes:
        """See Api.  Also raises ConnectorError if no cluster is configured."""
        headers = {"accept": JSON, "content-type": content_type}
        sent = None if body is None else msgspec.json.encode(body)
        # The import stays out of the request timeout, which is about the cluster.
        await import_library()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                status, content = await self._send_request(method, path, headers, sent)
                # The token may have been rotated between two readings of the library: load it and
                # try once more.
                if status == UNAUTHORIZED:
                    await self._session.close()
                    status, content = await self._send_request(method, path, headers, sent)
        except TimeoutError:
            raise KubernetesError(0, f"no answer within {REQUEST_TIMEOUT_S:g} s") from None
        except ModuleNotFoundError:
            text = "kubernetes_asyncio is missing: pip install 'select-service[kubernetes]'"
            raise ConnectorError(text) from None
        except ClusterUnavailable as error:
            raise ConnectorError(f"no cluster configured: {error}") from None
        if not 200 <= status < 300:
            raise answer_error(status, content)
        return content

    async def _send_request(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        """Send a request and return status and body."""
        async with self._session.open_response(method, path, headers, body) as answer:
            return answer.status, await answer.read_body(ANSWER_BYTES_MAX)

    async def namespace(self) -> str:
        """See Api."""
        try:
            return find_namespace(self._kubeconfig, self._account)
        except ClusterUnavailable as error:
            raise ConnectorError(
                f"kubernetes: namespace is unknown, set it under `connector`: {error}"
            ) from None

    async def close(self) -> None:
        """See Api."""
        await self._session.close()
