"""Validation of the head of a request, and its declared body length.

llhttp has already checked the framing (lengths, transfer encodings, characters of names).
Source: RFC 9112, 3.2 (Host) and 5 (fields); RFC 3986, 3.2.2 (syntax of a host).
"""

import re
from functools import lru_cache

import httptools

from select_service.base.errors import CapacityExceeded, SelectError

Headers = list[tuple[bytes, bytes]]
"""Header fields with names in lower case, in order of arrival."""

HEADERS_MAX = 256
"""Most fields of a head."""
HOST_BYTES_MAX = 300
"""Longest `Host` value, bytes.  A DNS name has at most 253, an IPv6 address with its zone far
less.
"""
HOSTS_CACHED = 256

_UPGRADE_HEADERS = (b"upgrade", b"http2-settings")
_HOST = re.compile(rb"(\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(:[0-9]*)?")


class MalformedHttp(SelectError):
    """The bytes are not a valid HTTP request; the connection is closed after the response."""

    status, code = 400, "malformed_http"


class HeadTooLarge(SelectError):
    """The parts of the request other than its body are too large; the connection is closed."""

    status, code = 431, "head_too_large"


def check_head(headers: Headers, parser: httptools.HttpRequestParser) -> int:
    """Return the declared length of the body in bytes, 0 without a declaration.

    Raises MalformedHttp, HeadTooLarge.
    """
    if len(headers) > HEADERS_MAX:
        raise HeadTooLarge(f"the request has more than {HEADERS_MAX} header fields")
    host, size = None, 0
    for name, value in headers:
        if name == b"host":
            # Two hosts could bypass the host check: a proxy may use one and the service the other.
            if host is not None:
                raise MalformedHttp("the request has more than one `Host` header")
            host = value
        elif name == b"content-length":
            size = int(value)
    if host is None:
        if parser.get_http_version() == "1.1":
            raise MalformedHttp("an HTTP/1.1 request needs a `Host` header")
    elif len(host) > HOST_BYTES_MAX or not _is_host(host):
        raise MalformedHttp("the `Host` header is not a valid host name with an optional port")
    return size


@lru_cache(maxsize=HOSTS_CACHED)
def _is_host(text: bytes) -> bool:
    return _HOST.fullmatch(text.strip()) is not None


def without_upgrade_headers(request_line: bytes, headers: Headers) -> bytes:
    """Return the head without the headers that offer an upgrade to another protocol."""
    lines = [request_line]
    for name, value in headers:
        if name == b"connection":
            # `connection` lists the headers of the offer by name; drop these words, keep `close`.
            words = (word.strip() for word in value.split(b","))
            value = b", ".join(w for w in words if w.lower() not in _UPGRADE_HEADERS)
        if value and name not in _UPGRADE_HEADERS:
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def parser_error(error: httptools.HttpParserError) -> SelectError:
    """Return the error behind an exception of the parser or of its callbacks."""
    cause = error.__context__
    if isinstance(cause, SelectError):
        return cause
    if isinstance(cause, MemoryError):
        return CapacityExceeded("out of memory for this request; retry later")
    return MalformedHttp("Invalid HTTP request received.")
