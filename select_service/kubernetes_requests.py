"""EDGE: requests to an API server, with the account that kubernetes-asyncio has loaded.

Its own client is not used: it follows redirects, and reads answers of any form.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.request import getproxies, proxy_bypass

from select_service.outgoing.connecting import Tls, resolve_name, split_url
from select_service.outgoing.connection_pool import Answer, ConnectionPool

CONNECTIONS_MAX = 100


class KubernetesRequests:
    """Belongs to one event loop."""

    def __init__(self, configuration: Any) -> None:
        """configuration: of kubernetes-asyncio.  Reads its files.  Raises OSError, RequestError."""
        self._configuration = configuration
        self._url = configuration.host.rstrip("/")
        origin, *_ = split_url(self._url)
        self._tls = Tls(_context(configuration), configuration.tls_server_name or None)
        proxy = configuration.proxy or _proxy_of(origin.scheme, origin.host)
        self._pool = ConnectionPool(resolve_name, CONNECTIONS_MAX, proxy)

    async def close(self) -> None:
        """Break off what is under way."""
        await self._pool.close()

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Answer]:
        """Give an answer with whatever status.  Raises RequestError, and OSError for a token file.

        headers: names in lower case
        """
        all_headers = dict(headers)
        for setting in (await self._configuration.auth_settings()).values():
            if setting["value"]:
                all_headers[setting["key"].lower()] = setting["value"].strip()
        async with self._pool.request(
            method, self._url + path, all_headers, body, self._tls
        ) as answer:
            yield answer


def _context(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _proxy_of(scheme: str, host: str) -> str | None:
    """Return that of the environment, as other clients of a cluster do."""
    return None if proxy_bypass(host) else getproxies().get(scheme)
