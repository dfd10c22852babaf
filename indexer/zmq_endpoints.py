"""ZMQ endpoints in their text form: validation, and the port of the n-th rank.

Checks of text only.  Sockets find out whether anything answers at an endpoint.
"""

import ipaddress
import re
from functools import lru_cache

TCP_PORT_MAX = 65535
SCHEMES = ("tcp", "ipc", "inproc")
HOST_CHARS_MAX = 253
ANY_HOST = "*"
"""Wildcard host that engines bind to.  Connecting fails, and the socket reports that."""

CACHED_ENDPOINTS_MAX, CACHED_ENDPOINT_CHARS_MAX = 8192, 256
"""Size of the cache of checked endpoints, and the length of the longest cached endpoint."""

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_ZONE = re.compile(r"[A-Za-z0-9_.-]+")


def endpoint_error(endpoint: str) -> str | None:
    """Return the fault of an endpoint to connect to, or None if the endpoint is well formed.

    Accepted are `tcp://host:port` with an IPv6 host in brackets, `ipc://path` and `inproc://name`.
    Results are cached, so that the endpoints of a worker with many ranks can be checked ahead in
    several short steps.
    """
    fault = (_cached_fault if len(endpoint) <= CACHED_ENDPOINT_CHARS_MAX else _endpoint_fault)(
        endpoint
    )
    return fault and f"invalid ZMQ endpoint `{endpoint}`: {fault}"


def is_host_name(text: str) -> bool:
    """Return whether DNS can resolve the text.  IPv4 addresses have the form of a name, too."""
    labels = text.removesuffix(".").split(".")
    return len(text) <= HOST_CHARS_MAX and all(map(_LABEL.fullmatch, labels))


def is_address(text: str) -> bool:
    """Return whether the text is a numeric address without brackets.  A zone (fe80::1%eth0) is
    allowed.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    zone = address.scope_id if isinstance(address, ipaddress.IPv6Address) else None
    return zone is None or _ZONE.fullmatch(zone) is not None


def tcp_host(endpoint: str) -> str | None:
    """Return the host of a well-formed TCP endpoint, without brackets; None for other schemes."""
    scheme, _, address = endpoint.partition("://")
    host = address.rpartition(":")[0]
    return host.removeprefix("[").removesuffix("]") if scheme == "tcp" else None


def offset_port(endpoint: str, position: int) -> str | None:
    """Return the endpoint of the rank at `position` of a data-parallel group, from that of rank 0.

    None means that no such endpoint exists: the port exceeds 65535, or `endpoint` is an ipc path.
    Source: vLLM's ZmqEventPublisher.offset_endpoint_port, which SGLang follows.
    """
    if position == 0:
        return endpoint
    scheme, _, address = endpoint.partition("://")
    if scheme == "inproc":
        return f"{endpoint}_dp{position}"
    host, _, port = address.rpartition(":")
    if scheme != "tcp" or not _is_decimal(port) or _port_number(port) + position > TCP_PORT_MAX:
        return None
    return f"tcp://{host}:{_port_number(port) + position}"


def _endpoint_fault(endpoint: str) -> str | None:
    scheme, separator, address = endpoint.partition("://")
    if not separator and not _tcp_fault(endpoint):
        return f"missing scheme; did you mean `tcp://{endpoint}`?"
    if not separator or not scheme:
        return "missing scheme"
    if not address:
        return "missing address"
    if scheme not in SCHEMES:
        return f"unsupported scheme `{scheme}`"
    if not address.isprintable() or " " in address:
        return "unprintable character in address"
    return _tcp_fault(address) if scheme == "tcp" else None


_cached_fault = lru_cache(maxsize=CACHED_ENDPOINTS_MAX)(_endpoint_fault)


def _tcp_fault(address: str) -> str | None:
    host, separator, port = address.rpartition(":")
    if not separator or (host.startswith("[") and not host.endswith("]")):
        return "missing TCP port"
    if not host or host == "[]":
        return "missing TCP host"
    if ":" in host and not host.startswith("["):
        return "IPv6 host must be in brackets"
    if not port:
        return "missing TCP port"
    fault = _host_fault(host)
    if fault:
        return fault
    if not _is_decimal(port):
        return "invalid TCP port: invalid digit found in string"
    number = _port_number(port)
    if number > TCP_PORT_MAX:
        return "invalid TCP port: number too large to fit in target type"
    return "TCP port 0 cannot be connected to" if number == 0 else None


@lru_cache(maxsize=256)
def _host_fault(host: str) -> str | None:
    """Return the fault of a host.  Cached, since the ranks of a worker mostly share a host."""
    if host.startswith("["):
        is_ipv6 = is_address(host[1:-1]) and ":" in host
        return None if is_ipv6 else f"`{host}` is not an IPv6 address"
    return None if host == ANY_HOST or is_host_name(host) else f"`{host}` is not a host name"


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _port_number(digits: str) -> int:
    """Return the value of a decimal number.  Digits are cut off, as int() refuses thousands of
    them.
    """
    return int(digits.lstrip("0")[: len(str(TCP_PORT_MAX)) + 1] or 0)
