"""Which URLs of other services can be asked at all; stdlib only, as the configuration uses it.

What this admits never makes an HTTP client raise anything but the faults of a network.
"""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

HOST_CHARS_MAX = 253
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PATH = re.compile(r"[!-~]*")


def service_url_error(url: str) -> str | None:
    """What is wrong with the base URL of a service, http://host[:port][/path]; None for nothing."""
    if not _PATH.fullmatch(url):
        return "spaces, control codes and letters beyond ASCII have no place in it"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:  # of a port or a bracket
        return str(error)
    if parts.scheme != "http":
        return "it does not begin with http://"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "only host, port and path are expected"
    if port == 0:
        return "port 0 cannot be connected to"
    return _host_error(parts)


def _host_error(parts: SplitResult) -> str | None:
    host = parts.hostname
    if not host:
        return "it has no host"
    if ":" in host:
        return None if _is_address(host) else f"`{host}` is no IPv6 address"
    labels = host.removesuffix(".").split(".")
    if len(host) > HOST_CHARS_MAX or not all(map(_LABEL.fullmatch, labels)):
        return f"`{host}` is no host name"
    return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
