"""Under which names the service may be asked for: a guard against DNS rebinding."""

import ipaddress
from collections.abc import Iterable

from select_service.errors import SelectError
from select_service.http.head import Headers
from select_service.spelling import shown


class HostNotAllowed(SelectError):
    """The name in `host` is none of those under which the service may be asked for."""

    status, code = 403, "host_not_allowed"


class AllowedHosts:
    """Names, of which one with a dot before it stands for all that end so; and all addresses."""

    def __init__(self, names: Iterable[str]) -> None:
        lower = [name.lower() for name in names]
        self._names = frozenset(name for name in lower if not name.startswith("."))
        self._endings = tuple(name for name in lower if name.startswith("."))

    def check(self, headers: Headers) -> None:
        """Raises HostNotAllowed."""
        given = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
        host = _without_port(given).lower().rstrip(".")
        if host in self._names or host.endswith(self._endings) or _is_address(host):
            return
        raise HostNotAllowed(
            f"the service is not asked for under the name `{shown(given)}`: use an address, or a "
            "name of --allowed-hosts"
        )


def _without_port(host: str) -> str:
    if not host.startswith("["):
        return host.partition(":")[0]
    address, _, rest = host[1:].partition("]")
    return address if rest[:1] in ("", ":") else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
