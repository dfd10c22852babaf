"""HTTP requests to a Kubernetes API server, with the credentials loaded by kubernetes-asyncio.

The client of that library is not used: it follows redirects and does not limit responses.  Unlike
`HttpSession`, this client uses the proxy of the environment and credentials of any kind, and
returns responses of every status.
"""

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import getproxies, proxy_bypass

from select_service.base.errors import PicklableError
from select_service.net.http_client.connection_opener import ConnectionTls, resolve_name, split_url
from select_service.net.http_client.connection_pool import ConnectionPool, HttpResponse
from select_service.net.http_client.http_error import HttpError
from select_service.net.kubernetes_config import (
    SERVICE_ACCOUNT_DIR,
    UNREADABLE,
    ClusterUnavailable,
    load_configuration,
    one_line_text,
)

CONNECTIONS_MAX = 100
_LIBRARY = "kubernetes_asyncio.client.api_client"


class KubernetesError(PicklableError):
    """Error of a request to an API server.

    status: HTTP status; 0 without a complete response
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed at the next tick without intervention."""
        return (
            self.status in (0, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)
            or self.status >= 500
        )


class _FileStamp(NamedTuple):
    """Path, time and size of a file."""

    path: str
    mtime_ns: int = 0
    size: int = 0


class _LoadedCluster(NamedTuple):
    """API server with the files of a configuration of kubernetes-asyncio."""

    configuration: Any
    url: str
    tls: ConnectionTls
    pool: ConnectionPool
    ca: _FileStamp | None


class KubernetesSession:
    """Client of an API server.  Belongs to one event loop.

    The library reads the token of a service account every minute.  A changed CA, and `close`,
    reload the whole configuration.
    """

    def __init__(self, kubeconfig: Path | None, account: Path = SERVICE_ACCOUNT_DIR) -> None:
        """kubeconfig: None means the service account of the pod, in `account`"""
        self._kubeconfig, self._account = kubeconfig, account
        self._cluster: _LoadedCluster | None = None
        self._loading = asyncio.Lock()

    async def close(self) -> None:
        """Cancel running requests; the next request loads the configuration again."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.pool.close()

    @contextlib.asynccontextmanager
    async def open_response(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[HttpResponse]:
        """Send a request and yield the response, whatever its status.

        headers: headers by lower-case name
        Raises KubernetesError, also while the body is read, ClusterUnavailable, and
        ModuleNotFoundError without the library.
        """
        cluster = await self._load_cluster()
        all_headers = dict(headers)
        try:
            # Evaluated per request: service account tokens are rotated on disk.
            for setting in (await cluster.configuration.auth_settings()).values():
                if setting["value"]:
                    all_headers[setting["key"].lower()] = setting["value"].strip()
            async with cluster.pool.open_request(
                method, cluster.url + path, all_headers, body, cluster.tls
            ) as answer:
                yield answer
        except TimeoutError:
            raise  # a time limit of the caller, although the class is an OSError
        except (HttpError, OSError) as error:
            raise KubernetesError(0, f"no answer: {one_line_text(error)}") from None

    async def _load_cluster(self) -> _LoadedCluster:
        """Return the loaded cluster, reloaded if its CA changed."""
        async with self._loading:
            # Connections keep the CA they were opened with, so a replaced CA file needs new
            # connections.
            if self._cluster is not None and self._cluster.ca == _restamp(self._cluster.ca):
                return self._cluster
            await self.close()
            configuration = await load_configuration(self._kubeconfig, self._account)
            try:
                self._cluster = await asyncio.to_thread(_make_cluster, configuration)
            except (HttpError, *UNREADABLE) as error:
                raise ClusterUnavailable(one_line_text(error)) from None
            return self._cluster


async def import_library() -> None:
    """Import the library on a thread, which takes seconds on a busy machine."""
    if _LIBRARY not in sys.modules:
        with contextlib.suppress(ModuleNotFoundError):  # raised again by the first request
            await asyncio.to_thread(import_module, _LIBRARY)


def _make_cluster(configuration: Any) -> _LoadedCluster:
    """Read the files of a configuration.  Raises OSError, HttpError.  Blocks."""
    url = configuration.host.rstrip("/")
    origin, *_ = split_url(url)
    tls = ConnectionTls(_make_ssl_context(configuration), configuration.tls_server_name or None)
    proxy = configuration.proxy or _environment_proxy(origin.scheme, origin.host)
    pool = ConnectionPool(resolve_name, CONNECTIONS_MAX, proxy)
    ca = configuration.ssl_ca_cert
    return _LoadedCluster(configuration, url, tls, pool, _restamp(_FileStamp(ca) if ca else None))


def _restamp(before: _FileStamp | None) -> _FileStamp | None:
    """Return the stamp of a file now."""
    if before is None:
        return None
    try:
        found = Path(before.path).stat()
    # A CA file that is being replaced is missing for a moment: keep the connections meanwhile.
    except OSError:
        return before
    return _FileStamp(before.path, found.st_mtime_ns, found.st_size)


def _make_ssl_context(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _environment_proxy(scheme: str, host: str) -> str | None:
    """Return the proxy of the environment, as other Kubernetes clients do."""
    return None if proxy_bypass(host) else getproxies().get(scheme)
