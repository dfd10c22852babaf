"""EDGE: requests to the API server.  kubernetes-asyncio knows accounts, kubeconfigs and plugins.

The library is imported when the first request is made.  It reads the token of a service account
again every minute; a changed CA, and an answer 401, make us load everything again.
"""

import asyncio
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import msgspec

from select_service.kubernetes_account import ACCOUNT, NoCluster, configuration_of, namespace_of
from select_service.kubernetes_requests import KubernetesRequests
from select_service.outgoing.request_error import RequestError
from select_service.planner.connectors.base import ConnectorError
from select_service.planner.connectors.kube.api import (
    ANSWER_BYTES_MAX,
    JSON,
    REQUEST_TIMEOUT_S,
    KubeError,
    error_of,
)

UNAUTHORIZED = 401
_LIBRARY = "kubernetes_asyncio.client.api_client"


class KubeClient:
    """kubeconfig: None: the service account of the pod, in `account`."""

    def __init__(self, kubeconfig: Path | None = None, account: Path = ACCOUNT) -> None:
        self._kubeconfig = kubeconfig
        self._account = account
        self._client: KubernetesRequests | None = None
        self._ca: tuple[str, int, int] | None = None
        self._loading = asyncio.Lock()

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON
    ) -> bytes:
        """See Api.  Raises ConnectorError as well, when there is no way to the cluster at all."""
        headers = {"accept": JSON, "content-type": content_type}
        sent = None if body is None else msgspec.json.encode(body)
        if self._client is None:  # seconds on a busy machine, which are not the cluster's
            with suppress(ModuleNotFoundError):
                await asyncio.to_thread(import_module, _LIBRARY)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                status, content = await self._asked(method, path, headers, sent)
                if status == UNAUTHORIZED:
                    await self._ready(anew=True)
                    status, content = await self._asked(method, path, headers, sent)
        except TimeoutError:
            raise KubeError(0, f"no answer within {REQUEST_TIMEOUT_S:g} s") from None
        except (RequestError, OSError) as error:
            raise KubeError(0, f"no answer: {error}") from None
        if not 200 <= status < 300:
            raise error_of(status, content)
        return content

    async def _asked(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        client = await self._ready()
        async with client.request(method, path, headers, body) as answer:
            return answer.status, await answer.body(ANSWER_BYTES_MAX)

    async def _ready(self, anew: bool = False) -> KubernetesRequests:
        """The way to the cluster, loaded again where that is due.  Raises ConnectorError."""
        async with self._loading:
            if self._client is not None and not anew and self._ca == _stamp(self._ca):
                return self._client
            await self.close()
            try:
                configuration = await configuration_of(self._kubeconfig, self._account)
                self._client = await asyncio.to_thread(KubernetesRequests, configuration)
            except ModuleNotFoundError:
                text = "kubernetes needs the extra: pip install 'select-service[kubernetes]'"
                raise ConnectorError(text) from None
            except NoCluster as error:
                raise ConnectorError(f"no way to a cluster: {error}") from None
            except (RequestError, OSError) as error:
                raise ConnectorError(f"kubernetes: its CA cannot be used: {error}") from None
            ca = configuration.ssl_ca_cert
            self._ca = _stamp((ca, 0, 0)) if ca else None
            return self._client

    async def namespace(self) -> str:
        """See Api."""
        try:
            return namespace_of(self._kubeconfig, self._account)
        except NoCluster as error:
            raise ConnectorError(f"kubernetes: set the namespace: {error}") from None

    async def close(self) -> None:
        """See Api."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _stamp(before: tuple[str, int, int] | None) -> tuple[str, int, int] | None:
    """What a CA file is now: path, time and size."""
    if before is None:
        return None
    try:
        found = Path(before[0]).stat()
    except OSError:
        return before
    return before[0], found.st_mtime_ns, found.st_size
