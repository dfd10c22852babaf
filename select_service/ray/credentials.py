"""API key and trusted CAs for calls to selectors.

Arguments carry file names instead of keys, because Ray stores and shows the arguments of actors and
deployments.
"""

from pathlib import Path
from typing import NamedTuple

from select_service.client.client_options import Options
from select_service.net.tls.current_tls import ClientTls
from select_service.net.tls.tls_paths import ClientTlsPaths
from select_service.net.token_file import read_api_key


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
        if (tls := self.client_tls()) is not None:
            options["ssl_context"] = tls.context
        return options

    def client_tls(self) -> ClientTls | None:
        """Return the TLS settings; None means those of the system.

        Raises ValueError with one line.  Blocks.
        """
        if self.ca_file is None:
            return None
        return ClientTls(ClientTlsPaths(Path(self.ca_file)))


NO_CREDENTIALS = Credentials()
"""Credentials without a key, with the CAs of the system."""
