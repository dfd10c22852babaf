"""ZMQ endpoints as users write them: are they well formed, and which port has the n-th rank.

Text only.  Whether anything answers at an endpoint is for the sockets to find out.
"""

import ipaddress
import re
from functools import lru_cache

TCP_PORT_MAX = 65535
SCHEMES = ("tcp", "ipc", "inproc")
HOST_CHARS_MAX = 253
ANY_HOST = "*"
"""What an engine binds to.  Nothing can be connected to it, which the socket tells."""

KNOWN_MAX, KNOWN_CHARS_MAX = 8192, 256
"""Endpoints whose form is remembered, and the longest of them."""

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_ZONE = re.compile(r"[A-Za-z0-9_.-]+")


def endpoint_error(endpoint: str) -> str | None:
    """What is wrong with an endpoint that is to be connected to; None when it is well formed.

    `tcp://host:port` with an IPv6 host in brackets, `ipc://path` and `inproc://name` are accepted.
    Remembered, so that the endpoints of a worker of many ranks may be looked at before, in turns.
    """
    fault = (_known_fault if len(endpoint) <= KNOWN_CHARS_MAX else _fault)(endpoint)
    return fault and f"invalid ZMQ endpoint `{endpoint}`: {fault}"


def is_host_name(text: str) -> bool:
    """Can it be looked up?  Addresses of IPv4 have the form of a name, too."""
    labels = text.removesuffix(".").split(".")
    return len(text) <= HOST_CHARS_MAX and all(map(_LABEL.fullmatch, labels))


def is_address(text: str) -> bool:
    """Is it numeric, without brackets?  A zone, as in fe80::1%eth0, is plain text."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    zone = address.scope_id if isinstance(address, ipaddress.IPv6Address) else None
    return zone is None or _ZONE.fullmatch(zone) is not None


def tcp_host(endpoint: str) -> str | None:
    """The host of a well-formed TCP endpoint, without brackets; None for other schemes."""
    scheme, _, address = endpoint.partition("://")
    host = address.rpartition(":")[0]
    return host.removeprefix("[").removesuffix("]") if scheme == "tcp" else None


def port_plus(endpoint: str, position: int) -> str | None:
    """Where the rank at `position` of a data-parallel group listens, given where rank 0 does.

    None when that cannot be said: the port would be over 65535, or `endpoint` is an ipc path.
    Source: vLLM's ZmqEventPublisher.offset_endpoint_port, which SGLang follows.
    """
    if position == 0:
        return endpoint
    scheme, _, address = endpoint.partition("://")
    if scheme == "inproc":
        return f"{endpoint}_dp{position}"
    host, _, port = address.rpartition(":")
    if scheme != "tcp" or not _is_decimal(port) or _number(port) + position > TCP_PORT_MAX:
        return None
    return f"tcp://{host}:{_number(port) + position}"


def _fault(endpoint: str) -> str | None:
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


_known_fault = lru_cache(maxsize=KNOWN_MAX)(_fault)


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
    number = _number(port)
    if number > TCP_PORT_MAX:
        return "invalid TCP port: number too large to fit in target type"
    return "TCP port 0 cannot be connected to" if number == 0 else None


@lru_cache(maxsize=256)
def _host_fault(host: str) -> str | None:
    """The ranks of a worker are mostly on one host."""
    if host.startswith("["):
        is_ipv6 = is_address(host[1:-1]) and ":" in host
        return None if is_ipv6 else f"`{host}` is no IPv6 address"
    return None if host == ANY_HOST or is_host_name(host) else f"`{host}` is no host name"


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(digits: str) -> int:
    """Value of a decimal, cut off at a few digits: int() refuses thousands of them."""
    return int(digits.lstrip("0")[: len(str(TCP_PORT_MAX)) + 1] or 0)
