"""What Ray's programs show to selectors, and whom they believe.

Files and not the key itself: Ray keeps and shows the arguments of actors and deployments.
"""

from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext
from typing import NamedTuple

import httpx

from select_service.access.presenting import key_in
from select_service.client.options import Options
from select_service.tls.contexts import asking
from select_service.tls.files import ClientFiles


class Credentials(NamedTuple):
    """Files on the node of whoever asks.

    api_key_file: holds the key; None: none is shown
    ca_file: PEM, whom to believe of https URLs besides those whom the system trusts
    """

    api_key_file: str | None = None
    ca_file: str | None = None

    def options(self) -> Options:
        """Of a client.  Raises ValueError with one line.  Blocks."""
        options: Options = {}
        if self.api_key_file is not None:
            options["api_key"] = key_in(Path(self.api_key_file))
        if (context := self.ssl_context()) is not None:
            options["ssl_context"] = context
        return options

    def ssl_context(self) -> SSLContext | None:
        """Raises ValueError with one line.  Blocks."""
        if self.ca_file is None:
            return None
        return asking(ClientFiles(Path(self.ca_file), None)).context

    def auth(self) -> Callable[[httpx.Request], httpx.Request] | None:
        """Puts the key into a request.  The file is read each time, so a new key counts at once."""
        if self.api_key_file is None:
            return None
        path = Path(self.api_key_file)

        def with_key(request: httpx.Request) -> httpx.Request:
            try:
                request.headers["authorization"] = f"Bearer {key_in(path)}"
            except ValueError as error:
                raise httpx.RequestError(f"the key for selectors: {error}") from None
            return request

        return with_key


NONE = Credentials()
"""No key, and whom the system trusts."""
