"""Which URLs of other services can be asked at all, judged as text, without any I/O.

What this admits never makes an HTTP client raise anything but the faults of a network.
"""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from indexer.endpoints import is_host_name

HTTP_SCHEMES = ("http", "https")
METRICS_URL_CHARS_MAX = 2048
_BRACKETS = re.compile(r"\[[^\[\]]+\](:[0-9]*)?")
_PATH = re.compile(r"[!-~]*")


def service_url_error(url: str) -> str | None:
    """What is wrong with the URL of a service, http[s]://host[:port][/path]; None for nothing."""
    parts = _parts(url)
    if isinstance(parts, str):
        return parts
    if parts.scheme not in HTTP_SCHEMES:
        return "it does not begin with http:// or https://"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "only host, port and path are expected"
    return _address_error(parts)


def metrics_url_error(url: str) -> str | None:
    """What is wrong with the URL of an engine's metrics; None for nothing.

    A query may stand in it: engines that serve only the metrics that are asked for
    take their names there.  A password may not, as the URL is shown to everybody.
    """
    if len(url) > METRICS_URL_CHARS_MAX:
        return f"it has more than {METRICS_URL_CHARS_MAX} characters"
    parts = _parts(url)
    if isinstance(parts, str):
        return parts
    if parts.scheme not in HTTP_SCHEMES:
        return "it does not begin with http:// or https://"
    if "@" in parts.netloc or parts.fragment:
        return "only host, port, path and query are expected"
    return _address_error(parts)


def engine_url_error(url: str) -> str | None:
    """What is wrong with the URL below which an engine has its routes; None for nothing."""
    error = metrics_url_error(url)
    if error is None and "?" in url:
        error = "only host, port and path are expected"
    return error


def _parts(url: str) -> SplitResult | str:
    """The URL taken apart, with a port that is a number; or what is wrong with it."""
    if not _PATH.fullmatch(url):
        return "spaces, control codes and letters beyond ASCII have no place in it"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:  # of a port or a bracket
        return str(error)
    return parts


def _address_error(parts: SplitResult) -> str | None:
    if parts.port == 0:
        return "port 0 cannot be connected to"
    return _host_error(parts)


def _host_error(parts: SplitResult) -> str | None:
    host = parts.hostname
    if not host:
        return "it has no host"
    if "[" in parts.netloc:  # Python's own parser overlooks what follows the bracket
        well_formed = _BRACKETS.fullmatch(parts.netloc) and _is_address(host)
        return None if well_formed else f"`{parts.netloc}` is no IPv6 address"
    return None if is_host_name(host) else f"`{host}` is no host name"


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
