"""Validation of URLs of other services, as text without I/O.

With an accepted URL, an HTTP client raises only network errors.
"""

import re
from urllib.parse import SplitResult, urlsplit

from indexer.zmq_endpoints import is_address, is_host_name

HTTP_SCHEMES = ("http", "https")
METRICS_URL_CHARS_MAX = 2048
_BRACKETS = re.compile(r"\[[^\[\]]+\](:[0-9]*)?")
_PATH = re.compile(r"[!-~]*")


def service_url_error(url: str) -> str | None:
    """Return what is wrong with a service URL http[s]://host[:port][/path], or None."""
    return _url_error(url, "only host, port and path are expected", allows_query=False)


def metrics_url_error(url: str) -> str | None:
    """Return what is wrong with the URL of engine metrics, or None.

    A query is permitted: engines that serve selected metrics only take names from it.  A password
    is not, since the URL is displayed.
    """
    if len(url) > METRICS_URL_CHARS_MAX:
        return f"more than {METRICS_URL_CHARS_MAX} characters"
    return _url_error(url, "only host, port, path and query are expected", allows_query=True)


def engine_url_error(url: str) -> str | None:
    """Return what is wrong with the base URL of an engine, or None."""
    error = metrics_url_error(url)
    if error is None and "?" in url:
        error = "only host, port and path are expected"
    return error


def _url_error(url: str, expected: str, *, allows_query: bool) -> str | None:
    # urlsplit silently drops line breaks and tabs, which an HTTP client would then send or reject.
    if not _PATH.fullmatch(url):
        return "spaces, control codes and non-ASCII letters are not allowed"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:  # invalid port or bracket
        return str(error)
    if parts.scheme not in HTTP_SCHEMES:
        return "it does not begin with http:// or https://"
    if "@" in parts.netloc or parts.fragment or (parts.query and not allows_query):
        return expected
    if port == 0:
        return "port 0 cannot be connected to"
    return _host_error(parts)


def _host_error(parts: SplitResult) -> str | None:
    host = parts.hostname
    if not host:
        return "the host is missing"
    if "[" in parts.netloc:  # urlsplit ignores text after the bracket
        well_formed = _BRACKETS.fullmatch(parts.netloc) and ":" in host and is_address(host)
        return None if well_formed else f"`{parts.netloc}` is not an IPv6 address"
    return None if is_host_name(host) else f"`{host}` is not a host name"
