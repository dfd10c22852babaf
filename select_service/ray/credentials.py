"""API key and trusted CAs for calls to selectors.

Arguments carry file names instead of keys, because Ray stores and shows the arguments of actors and
deployments.
"""

from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext
from typing import NamedTuple

import httpx

from select_service.auth.client_credentials import read_api_key
from select_service.client.client_options import Options
from select_service.net.tls.ssl_contexts import client_context
from select_service.net.tls.tls_paths import ClientTlsPaths


class Credentials(NamedTuple):
    """Files on the node of the calling process.

    api_key_file: file of the API key; None means no key
    ca_file: PEM file of CAs that https trusts besides those of the system
    """

    api_key_file: str | None = None
    ca_file: str | None = None

    def client_options(self) -> Options:
        """Return the options of a client.  Raises ValueError with one line.  Blocks."""
        options: Options = {}
        if self.api_key_file is not None:
            options["api_key"] = read_api_key(Path(self.api_key_file))
        if (context := self.ssl_context()) is not None:
            options["ssl_context"] = context
        return options

    def ssl_context(self) -> SSLContext | None:
        """Return the TLS settings; None means those of the system.

        Raises ValueError with one line.  Blocks.
        """
        if self.ca_file is None:
            return None
        return client_context(ClientTlsPaths(Path(self.ca_file), None)).context

    def make_auth(self) -> Callable[[httpx.Request], httpx.Request] | None:
        """Return a function that adds the key to a request; None without a key.

        The file is read for each request, so a new key takes effect at once.
        """
        if self.api_key_file is None:
            return None
        path = Path(self.api_key_file)

        def with_key(request: httpx.Request) -> httpx.Request:
            try:
                request.headers["authorization"] = f"Bearer {read_api_key(path)}"
            except ValueError as error:
                # httpx lets only its own errors pass to the caller's handlers.
                raise httpx.RequestError(f"API key for selectors is unreadable: {error}") from None
            return request

        return with_key


NO_CREDENTIALS = Credentials()
"""Credentials without a key, with the CAs of the system."""
