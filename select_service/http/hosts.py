"""Which names and which pages a request may come from, by its headers."""

from collections.abc import Iterable

from select_service.allowed_names import AllowedNames, is_foreign_change
from select_service.errors import SelectError
from select_service.http.head import Headers
from select_service.spelling import shown


class HostNotAllowed(SelectError):
    """The name in `host` is none of those under which the service may be asked for."""

    status, code = 403, "host_not_allowed"


class OriginNotAllowed(SelectError):
    """A page of another origin asks for a change."""

    status, code = 403, "origin_not_allowed"


class AllowedHosts:
    """Names as `AllowedNames` compares them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = AllowedNames(names)

    def check(self, headers: Headers) -> None:
        """Raises HostNotAllowed."""
        host = _value(headers, b"host") or ""
        if self._names.allow(host):
            return
        raise HostNotAllowed(
            f"the service is not asked for under the name `{shown(host)}`: use an address, or a "
            "name of --allowed-hosts"
        )


def check_origin(method: str, headers: Headers) -> None:
    """Refuse a change that a page of another origin asks for.  Raises OriginNotAllowed.

    Needed where no keys are asked for: a browser sends requests without a body to any origin, and
    adds no key by itself.
    """
    origin = _value(headers, b"origin")
    if origin is None or not is_foreign_change(method, origin, _value(headers, b"host") or ""):
        return
    raise OriginNotAllowed(
        f"pages of the origin `{shown(origin)}` may change nothing here: send the request without "
        "the header `Origin`, or start the service with --api-keys-file"
    )


def _value(headers: Headers, wanted: bytes) -> str | None:
    """Return the first value of a header."""
    found = next((value for name, value in headers if name == wanted), None)
    return None if found is None else found.decode("latin-1")
