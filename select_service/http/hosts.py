"""Under which names the service is answered, by the header of a request."""

from collections.abc import Iterable

from select_service.allowed_names import AllowedNames
from select_service.errors import SelectError
from select_service.http.head import Headers
from select_service.spelling import shown


class HostNotAllowed(SelectError):
    """The name in `host` is none of those under which the service may be asked for."""

    status, code = 403, "host_not_allowed"


class AllowedHosts:
    """Names as `AllowedNames` compares them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = AllowedNames(names)

    def check(self, headers: Headers) -> None:
        """Raises HostNotAllowed."""
        given = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
        if self._names.allow(given):
            return
        raise HostNotAllowed(
            f"the service is not asked for under the name `{shown(given)}`: use an address, or a "
            "name of --allowed-hosts"
        )
