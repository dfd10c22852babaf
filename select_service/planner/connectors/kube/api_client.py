"""Requests to the API server; kubernetes-asyncio handles accounts, kubeconfigs and plugins.

The library is imported at the first request.  It reads the token of a service account every
minute; a changed CA, and an answer 401, reload the whole configuration.
"""

import asyncio
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import msgspec

from select_service.net.http_client.request_error import RequestError
from select_service.net.kubernetes_config import (
    SERVICE_ACCOUNT_DIR,
    ClusterUnavailable,
    find_namespace,
    load_configuration,
)
from select_service.net.kubernetes_requests import KubernetesRequests
from select_service.planner.connectors.connector import ConnectorError
from select_service.planner.connectors.kube.api_requests import (
    ANSWER_BYTES_MAX,
    JSON,
    REQUEST_TIMEOUT_S,
    KubernetesError,
    answer_error,
)

UNAUTHORIZED = 401
_LIBRARY = "kubernetes_asyncio.client.api_client"


class KubernetesApiClient:
    """Client of an API server.

    kubeconfig: None means the service account of the pod, in `account`
    """

    def __init__(self, kubeconfig: Path | None = None, account: Path = SERVICE_ACCOUNT_DIR) -> None:
        self._kubeconfig = kubeconfig
        self._account = account
        self._client: KubernetesRequests | None = None
        self._ca: tuple[str, int, int] | None = None
        self._loading = asyncio.Lock()

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON
    ) -> bytes:
        """See Api.  Also raises ConnectorError if no cluster is configured."""
        headers = {"accept": JSON, "content-type": content_type}
        sent = None if body is None else msgspec.json.encode(body)
        # The import takes seconds on a busy machine. It stays out of the request timeout, which is
        # about the cluster, and runs in a thread.
        if self._client is None:
            with suppress(ModuleNotFoundError):
                await asyncio.to_thread(import_module, _LIBRARY)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                status, content = await self._send_request(method, path, headers, sent)
                # The token may have been rotated between two readings of the library: load it and
                # try once more.
                if status == UNAUTHORIZED:
                    await self._load_client(anew=True)
                    status, content = await self._send_request(method, path, headers, sent)
        except TimeoutError:
            raise KubernetesError(0, f"no answer within {REQUEST_TIMEOUT_S:g} s") from None
        except (RequestError, OSError) as error:
            raise KubernetesError(0, f"no answer: {error}") from None
        if not 200 <= status < 300:
            raise answer_error(status, content)
        return content

    async def _send_request(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        """Send a request and return status and body."""
        client = await self._load_client()
        async with client.request(method, path, headers, body) as answer:
            return answer.status, await answer.read_body(ANSWER_BYTES_MAX)

    async def _load_client(self, anew: bool = False) -> KubernetesRequests:
        """Return the loaded client, reloaded if due.  Raises ConnectorError."""
        async with self._loading:
            # Connections keep the CA they were opened with, so a replaced CA file needs a new
            # client.
            if self._client is not None and not anew and self._ca == _ca_file_stamp(self._ca):
                return self._client
            await self.close()
            try:
                configuration = await load_configuration(self._kubeconfig, self._account)
                self._client = await asyncio.to_thread(KubernetesRequests, configuration)
            except ModuleNotFoundError:
                text = "kubernetes_asyncio is missing: pip install 'select-service[kubernetes]'"
                raise ConnectorError(text) from None
            except ClusterUnavailable as error:
                raise ConnectorError(f"no cluster configured: {error}") from None
            except (RequestError, OSError) as error:
                raise ConnectorError(f"kubernetes: invalid CA: {error}") from None
            ca = configuration.ssl_ca_cert
            self._ca = _ca_file_stamp((ca, 0, 0)) if ca else None
            return self._client

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
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _ca_file_stamp(before: tuple[str, int, int] | None) -> tuple[str, int, int] | None:
    """Return path, time and size of a CA file now."""
    if before is None:
        return None
    try:
        found = Path(before[0]).stat()
    # A CA file that is being replaced is missing for a moment: keep the client meanwhile.
    except OSError:
        return before
    return before[0], found.st_mtime_ns, found.st_size
