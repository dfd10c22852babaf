"""HTTP requests to a Kubernetes API server, with the credentials loaded by kubernetes-asyncio.

The client of that library is not used: it follows redirects and does not limit responses.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.request import getproxies, proxy_bypass

from select_service.net.http_client.connection_opener import ConnectionTls, resolve_name, split_url
from select_service.net.http_client.connection_pool import ConnectionPool, HttpResponse

CONNECTIONS_MAX = 100


class KubernetesRequests:
    """Client of an API server.  Belongs to one event loop."""

    def __init__(self, configuration: Any) -> None:
        """Read the files of a configuration of kubernetes-asyncio.

        Raises OSError, RequestError.
        """
        self._configuration = configuration
        self._url = configuration.host.rstrip("/")
        origin, *_ = split_url(self._url)
        self._tls = ConnectionTls(
            _make_ssl_context(configuration), configuration.tls_server_name or None
        )
        proxy = configuration.proxy or _environment_proxy(origin.scheme, origin.host)
        self._pool = ConnectionPool(resolve_name, CONNECTIONS_MAX, proxy)

    async def close(self) -> None:
        """Cancel running requests."""
        await self._pool.close()

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[HttpResponse]:
        """Send a request and yield the response, whatever its status.

        headers: headers by lower-case name
        Raises RequestError, and OSError for the token file.
        """
        all_headers = dict(headers)
        # Evaluated per request: service account tokens are rotated on disk.
        for setting in (await self._configuration.auth_settings()).values():
            if setting["value"]:
                all_headers[setting["key"].lower()] = setting["value"].strip()
        async with self._pool.open_request(
            method, self._url + path, all_headers, body, self._tls
        ) as answer:
            yield answer


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
