"""The head of a request: what it may hold, and what it says of the body.

llhttp has checked the framing already (lengths, transfer encodings, characters of names).
Source: RFC 9112, 3.2 (Host) and 5 (fields); RFC 3986, 3.2.2 (the form of a host).
"""

import re
from functools import lru_cache

import httptools

from select_service.errors import SelectError

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, in the order in which they came."""

HEADERS_MAX = 256
"""Fields of one head."""
HOST_BYTES_MAX = 300
"""A DNS name has 253 at most, an IPv6 address with its zone much less."""
HOSTS_REMEMBERED = 256

_OFFER = (b"upgrade", b"http2-settings")
_HOST = re.compile(rb"(\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(:[0-9]*)?")


class MalformedHttp(SelectError):
    """What came is not a request; the connection is closed after the answer."""

    status, code = 400, "malformed_http"


class HeadTooLarge(SelectError):
    """More of a request than may be which is not its body; the connection is closed."""

    status, code = 431, "head_too_large"


def checked_head(headers: Headers, parser: httptools.HttpRequestParser) -> int:
    """Bytes of the body as the head says them, 0 when it does not.

    Raises MalformedHttp, HeadTooLarge.
    """
    if len(headers) > HEADERS_MAX:
        raise HeadTooLarge(f"a request has more than {HEADERS_MAX} header fields")
    host, size = None, 0
    for name, value in headers:
        if name == b"host":
            if host is not None:
                raise MalformedHttp("a request has more than one `Host` header")
            host = value
        elif name == b"content-length":
            size = int(value)
    if host is None:
        if parser.get_http_version() == "1.1":
            raise MalformedHttp("a request of HTTP/1.1 must have a `Host` header")
    elif len(host) > HOST_BYTES_MAX or not _is_host(host):
        raise MalformedHttp("the `Host` header is not a host name with or without a port")
    return size


@lru_cache(maxsize=HOSTS_REMEMBERED)
def _is_host(text: bytes) -> bool:
    return _HOST.fullmatch(text.strip()) is not None


def without_offer(request_line: bytes, headers: Headers) -> bytes:
    """The head as it would be without an offer to change to another protocol."""
    lines = [request_line]
    for name, value in headers:
        if name == b"connection":
            words = (word.strip() for word in value.split(b","))
            value = b", ".join(w for w in words if w.lower() not in _OFFER)
        if value and name not in _OFFER:
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"
