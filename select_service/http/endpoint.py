"""What an endpoint is made of, and how it is declared: once, above its handler.

    WORKERS = Noun("workers", "The catalog of engines that may be chosen.")

    @WORKERS.declare(
        Route("GET", "/workers", "list_workers", "List the workers", {200: Answer(...)},
              may_call=within_tenants(CALLER, OPERATOR))
    )
    async def listing(service: Service, request: Request) -> Response: ...

The application routes by these declarations, and the OpenAPI document is made from them, so neither
can name an endpoint that does not exist or miss one.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from msgspec import StructMeta
from starlette.responses import Response

from select_service.access.roles import MayCall
from select_service.bodies.common import Status
from select_service.errors import (
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

JSON = "application/json"

Handler = Callable[..., Awaitable[Response]]
"""Takes the service, the request, and what the route has of these: its path parameter, its query
(texts by name of the parameter), its body."""

H = TypeVar("H", bound=Handler)


class RequestTimeout(SelectError):
    """Answered by the protocol, before any handler runs."""

    status, code = 408, "timeout"


WITH_BODY: tuple[type[SelectError], ...] = (
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
"""What any request with a body may be answered before the service looks at it."""


class Body(NamedTuple):
    """What a request holds: a type that msgspec can decode, and valid bodies by name.

    optional: no body, or an empty one, is the same as an empty object
    unused: what the client should know about fields that do not count beside others
    """

    type: Any
    examples: Mapping[str, Any]
    optional: bool = False
    unused: Callable[[Any], str | None] | None = None


class Answer(NamedTuple):
    """A body that is not a refusal.  `type` is one that msgspec can describe, or None.

    media_type: empty where there is no body
    """

    summary: str
    type: Any
    example: Any = None
    media_type: str = JSON
    also: tuple[str, ...] = ()
    """Media types of other forms: of a JSON document binary ones, which `accept` may ask for."""

    @property
    def may_be_extended(self) -> bool:
        """Is it an object that may have a further field?"""
        return isinstance(self.type, StructMeta) and not issubclass(self.type, Status)


class PathParameter(NamedTuple):
    """The `{name}` of a path.  `read` takes the segment as it was sent; raises BadRequest."""

    name: str
    type: Any
    summary: str
    example: Any
    read: Callable[[str], Any]


class QueryParameter(NamedTuple):
    """An optional query parameter."""

    name: str
    type: Any
    summary: str
    default: Any = None


class HeaderParameter(NamedTuple):
    """An optional request header."""

    name: str
    summary: str


class Route(NamedTuple):
    """One method of one path: what it takes, what it answers, how it refuses.

    may_call: whose keys may call it, where keys are on
    is_strict: unknown fields and parameters are refused, and not only told of: what is left of a
    scope that is misspelt would be a wider one
    """

    method: str
    path: str
    operation_id: str
    summary: str
    answers: Mapping[int, Answer]
    may_call: MayCall
    detail: str = ""
    in_path: PathParameter | None = None
    query: tuple[QueryParameter, ...] = ()
    headers: tuple[HeaderParameter, ...] = ()
    body: Body | None = None
    refusals: tuple[type[SelectError], ...] = ()
    is_strict: bool = False


class Endpoint(NamedTuple):
    """A route and what answers it."""

    route: Route
    handler: Handler


class Noun:
    """The endpoints about one thing, in the order in which the document shows them."""

    def __init__(self, name: str, summary: str) -> None:
        self.name = name
        self.summary = summary
        self.endpoints: list[Endpoint] = []

    def declare(self, route: Route) -> Callable[[H], H]:
        """Decorates the handler of `route`."""

        def attach(handler: H) -> H:
            self.endpoints.append(Endpoint(route, handler))
            return handler

        return attach
