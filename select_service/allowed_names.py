"""Under which names a server may be asked for: a guard against DNS rebinding.

A page in a browser can let a name of its own lead to an address that the browser can reach, and
then talk to what listens there.  It can neither show a key nor do that without a name, so names
matter where no key is asked for, and addresses never do.
"""

import ipaddress
from collections.abc import Iterable, Sequence

LOOPBACK_NAME = "localhost"
ANY = "*"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""


def is_loopback(host: str) -> bool:
    """Can nobody reach this address but from the same machine?"""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == LOOPBACK_NAME


def names_at(
    host: str, given: Sequence[str] | None, *, asks_for_key: bool
) -> tuple[str, ...] | None:
    """Names under which what listens at `host` may be asked for; None: all.

    given: by the operator, `*` among them for all; None: nothing was said
    """
    here = (LOOPBACK_NAME,) if is_loopback(host) else ()
    if given is not None:
        return None if ANY in given else (*given, *here)
    return here if here and not asks_for_key else None


class AllowedNames:
    """Names, of which one with a dot before it stands for all that end so; and all addresses."""

    def __init__(self, names: Iterable[str]) -> None:
        lower = [name.lower() for name in names]
        self._names = frozenset(name for name in lower if not name.startswith("."))
        self._endings = tuple(name for name in lower if name.startswith("."))

    def allow(self, given: str) -> bool:
        """given: what the header `host` says, with or without a port

        Empty where there is none, as in the health checks of HAProxy (HTTP/1.0): no name, so none
        that could have been rebound.
        """
        host = _without_port(given).lower().rstrip(".")
        return not given or host in self._names or host.endswith(self._endings) or _is_address(host)


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
    """Return whether a page of another origin than the host asks for a change.

    origin, host: values of the headers
    """
    return method not in READING and origin.partition("://")[2].lower() != host.lower()
