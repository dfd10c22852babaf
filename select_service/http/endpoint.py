"""Declaration of endpoints: one declaration above each handler.

    WORKERS = Noun("workers", "Catalog of the engines available for selection.")

    @WORKERS.declare(
        Route("GET", "/workers", "list_workers", "List the workers", {200: Answer(...)},
              may_call=within_tenants(CALLER, OPERATOR))
    )
    async def listing(service: Service, request: Request) -> Response: ...

The application routes by these declarations and generates the OpenAPI document from them, so both
always contain exactly the existing endpoints.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from msgspec import StructMeta
from starlette.responses import Response

from select_service.auth.roles import RoutePermission
from select_service.base.errors import (
    BadRequest,
    BodyTooLarge,
    CapacityExceeded,
    InvalidBody,
    MalformedJson,
    SelectError,
    ShuttingDown,
    UnknownField,
    UnsupportedMediaType,
)
from select_service.schemas.common import Status

JSON = "application/json"

Handler = Callable[..., Awaitable[Response]]
"""Handler of a route.  Arguments: the service, the request, and those of the path parameter, query
(texts by name) and body that the route declares.
"""

HandlerType = TypeVar("HandlerType", bound=Handler)


class RequestTimeout(SelectError):
    """The request did not arrive completely in time; sent before any handler runs."""

    status, code = 408, "timeout"


BODY_ERRORS: tuple[type[SelectError], ...] = (
    MalformedJson,
    BadRequest,
    RequestTimeout,
    BodyTooLarge,
    UnsupportedMediaType,
    InvalidBody,
    UnknownField,
    CapacityExceeded,
    ShuttingDown,
)
"""Errors possible for any request with a body, before the service processes the request."""


class BodySpec(NamedTuple):
    """Request body: a type that msgspec can decode, and valid examples by name.

    optional: a missing or empty body is treated as an empty object
    unused_fields_warning: returns a warning about fields that are overridden by others, or None
    """

    type: Any
    examples: Mapping[str, Any]
    optional: bool = False
    unused_fields_warning: Callable[[Any], str | None] | None = None


class ResponseSpec(NamedTuple):
    """Successful response.  `type` is a type that msgspec can describe, or None.

    media_type: empty for a response without a body
    """

    summary: str
    type: Any
    example: Any = None
    media_type: str = JSON
    alternative_types: tuple[str, ...] = ()
    """Media types of alternative forms, selected by `accept`; binary for a JSON document."""

    @property
    def may_be_extended(self) -> bool:
        """Whether the body is an object to which a field may be added."""
        return isinstance(self.type, StructMeta) and not issubclass(self.type, Status)


class PathParameter(NamedTuple):
    """Parameter `{name}` of a path.  `read` decodes the raw segment; raises BadRequest."""

    name: str
    type: Any
    summary: str
    example: Any
    read: Callable[[str], Any]


class QueryParameter(NamedTuple):
    """Optional query parameter."""

    name: str
    type: Any
    summary: str
    default: Any = None


class HeaderParameter(NamedTuple):
    """Optional request header."""

    name: str
    summary: str


class RouteSpec(NamedTuple):
    """Method of a path: parameters, responses and errors.

    may_call: roles of the keys that may call this route, where keys are on
    is_strict: unknown fields and parameters are errors instead of warnings, because dropping a
    misspelt scope would widen the scope
    """

    method: str
    path: str
    operation_id: str
    summary: str
    answers: Mapping[int, ResponseSpec]
    may_call: RoutePermission
    detail: str = ""
    in_path: PathParameter | None = None
    query: tuple[QueryParameter, ...] = ()
    headers: tuple[HeaderParameter, ...] = ()
    body: BodySpec | None = None
    refusals: tuple[type[SelectError], ...] = ()
    is_strict: bool = False


class RouteHandler(NamedTuple):
    """Route and its handler."""

    route: RouteSpec
    handler: Handler


class EndpointGroup:
    """Endpoints of a resource, in the order of the document."""

    def __init__(self, name: str, summary: str) -> None:
        self.name = name
        self.summary = summary
        self.endpoints: list[RouteHandler] = []

    def declare_route(self, route: RouteSpec) -> Callable[[HandlerType], HandlerType]:
        """Decorate the handler of `route`."""

        def attach(handler: HandlerType) -> HandlerType:
            self.endpoints.append(RouteHandler(route, handler))
            return handler

        return attach
