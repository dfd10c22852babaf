"""Checks of the `Host` and `Origin` headers of a request."""

from collections.abc import Iterable

from select_service.base.errors import SelectError
from select_service.base.suggestions import printable_name
from select_service.http.request_head import Headers
from select_service.net.allowed_hosts import HostAllowList, is_foreign_change


class HostNotAllowed(SelectError):
    """The host name in `host` is not allowed for this service."""

    status, code = 403, "host_not_allowed"


class OriginNotAllowed(SelectError):
    """A web page of another origin attempts a change."""

    status, code = 403, "origin_not_allowed"


class HostCheck:
    """Allowed host names, compared as `HostAllowList` does."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = HostAllowList(names)

    def check_host(self, headers: Headers) -> None:
        """Raise HostNotAllowed unless the `host` header is allowed."""
        host = _header_value(headers, b"host") or ""
        if not self._names.allows_host(host):
            raise HostNotAllowed(
                f"the host name `{printable_name(host)}` is not allowed: use an IP address, or add "
                "the name to --allowed-hosts"
            )


def check_origin(method: str, headers: Headers) -> None:
    """Refuse changes requested by web pages of another origin.  Raises OriginNotAllowed.

    Needed without keys: browsers send requests without a body to any origin, while keys are never
    attached by browsers themselves.
    """
    origin, host = _header_value(headers, b"origin"), _header_value(headers, b"host") or ""
    if origin is not None and is_foreign_change(method, origin, host):
        raise OriginNotAllowed(
            f"changes by web pages of the origin `{printable_name(origin)}` are not allowed: send "
            "the request without the header `Origin`, or start the service with --api-keys-file"
        )


def _header_value(headers: Headers, wanted: bytes) -> str | None:
    """Return the first value of a header."""
    found = next((value for name, value in headers if name == wanted), None)
    return None if found is None else found.decode("latin-1")
