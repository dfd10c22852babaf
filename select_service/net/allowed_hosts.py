"""Check of the Host header, as a protection against DNS rebinding.

A web page can make its own name resolve to an address that the browser can reach, and then send
requests to that address.  Such a page can neither send an API key nor use a name of the service, so
the check applies only without keys, and addresses are always accepted.
"""

import ipaddress
from collections.abc import Iterable, Sequence

LOOPBACK_NAME = "localhost"
ANY = "*"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""


def is_loopback(host: str) -> bool:
    """Return whether the address is reachable from the same machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == LOOPBACK_NAME


def host_names_for(
    host: str, configured: Sequence[str] | None, *, needs_key: bool
) -> tuple[str, ...] | None:
    """Return the accepted host names of a service on `host`; None means all.

    given: names given by the operator, where `*` means all; None means not configured
    needs_key: whether requests need an API key
    """
    here = (LOOPBACK_NAME,) if is_loopback(host) else ()
    if configured is not None:
        return None if ANY in configured else (*configured, *here)
    return here if here and not needs_key else None


class HostAllowList:
    """Allowed host names; a leading dot matches all subdomains.  IP addresses always match."""

    def __init__(self, names: Iterable[str]) -> None:
        lower = [name.lower() for name in names]
        self._exact_hosts = frozenset(name for name in lower if not name.startswith("."))
        self._domain_suffixes = tuple(name for name in lower if name.startswith("."))

    def allows_host(self, given: str) -> bool:
        """Return whether a Host header, with or without a port, is accepted.

        An empty header, as in the HTTP/1.0 health checks of HAProxy, is accepted: without a name,
        nothing can have been rebound.
        """
        host = _without_port(given).lower().rstrip(".")
        # An address cannot be rebound: the browser connects to exactly what the page named.
        return (
            not given
            or host in self._exact_hosts
            or host.endswith(self._domain_suffixes)
            or _is_address(host)
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


def is_foreign_change(method: str, origin: str, host: str) -> bool:
    """Return whether a page of another origin requests a change.

    origin, host: values of the headers
    """
    return method not in SAFE_METHODS and origin.partition("://")[2].lower() != host.lower()
