"""What one route is made of: the words in which the route table is written."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from select_service.errors import SelectError

JSON = "application/json"


class RequestTimeout(SelectError):
    """Answered by the protocol, before any handler runs."""

    status, code = 408, "timeout"


class Answer(NamedTuple):
    """A body that is not a refusal.  `body` is a type that msgspec can describe, or None."""

    summary: str
    body: Any
    media_type: str = JSON
    also: str | None = None
    """Media type of a binary form that the `accept` header may ask for."""


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
    """One method of one path.  A path parameter is a `{name}` of `PATH_PARAMETERS`."""

    method: str
    path: str
    operation_id: str
    tag: str
    summary: str
    answers: Mapping[int, Answer]
    detail: str = ""
    body: Any = None
    query: tuple[QueryParameter, ...] = ()
    refusals: tuple[type[SelectError], ...] = ()
    headers: tuple[HeaderParameter, ...] = ()
