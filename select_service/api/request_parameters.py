"""Path and query parameters: declarations shared by several endpoints, and parsing."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated
from urllib.parse import unquote_to_bytes

from msgspec import Meta
from starlette.requests import Request

from select_service.base.errors import BadRequest, NotFound
from select_service.core.load.prefill_legs import is_prefill_leg
from select_service.http.endpoint import PathParameter, QueryParameter
from select_service.http.request_warnings import WARNINGS_MAX, add_warnings, unknown_parameter
from select_service.schemas.common import U64, U64_MAX, resolve_tenant


def _parse_worker_id(segment: str) -> int:
    """Return the worker id.  Raises BadRequest unless the segment is an unsigned 64-bit number."""
    text = _decode_segment("worker_id", segment)
    return _parse_u64(
        text,
        f"Invalid URL: Cannot parse the worker id `{text[:64]}`: "
        f"expected a whole number from 0 to {U64_MAX}",
    )


def _decode_segment(name: str, segment: str) -> str:
    """Return the segment percent-decoded once.  Raises BadRequest if the result is not UTF-8."""
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise BadRequest(f"Invalid URL: Invalid UTF-8 in `{name}`") from None


def _parse_reservation_id(segment: str) -> str:
    """Return the id.  Raises NotFound for the name of a prefill leg, which callers cannot use."""
    name = _decode_segment("reservation_id", segment)
    if is_prefill_leg(name):
        raise NotFound(f"reservation {name!r} not found")
    return name


def _text_in_path(name: str, description: str, example: str) -> PathParameter:
    text = Annotated[str, Meta(min_length=1)]
    return PathParameter(name, text, description, example, partial(_decode_segment, name))


WORKER_ID = PathParameter(
    "worker_id", U64, "Id of the worker, an unsigned 64-bit integer.", 1, _parse_worker_id
)
RESERVATION_ID = PathParameter(
    "reservation_id",
    Annotated[str, Meta(min_length=1)],
    "Id of the reservation, percent-encoded.",
    "request-123",
    _parse_reservation_id,
)
SESSION_ID = _text_in_path("session_id", "Id of the session, percent-encoded.", "conversation-7")
DECISION_ID = _text_in_path(
    "decision_id",
    "The selection_id or reservation_id of the decision, percent-encoded.",
    "request-123",
)
EXPERIMENT_ID = _text_in_path("experiment_id", "Id of the experiment, percent-encoded.", "1")
SCOPE_PARAMETERS = (
    QueryParameter("model_name", str, "Only this model."),
    QueryParameter("tenant_id", str, "Only this tenant."),
    QueryParameter(
        "routing_group", str, "Alias of `tenant_id`; when both are given they must be equal."
    ),
)
PAGE_ROWS = 100
PAGE_ROWS_MAX = 1000
"""Largest number of rows of a page of reservations or sessions; PAGE_ROWS is the default."""
PAGE_PARAMETERS = (
    QueryParameter(
        "limit",
        Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)],
        "Maximum number of rows of a page.",
        PAGE_ROWS,
    ),
    QueryParameter(
        "after",
        Annotated[str, Meta(pattern="^[0-9]{1,18}$")],
        "Value of `next` of the previous page.",
    ),
)


def parse_query(request: Request, parameters: Sequence[str]) -> dict[str, str]:
    """Return the known query parameters and attach a warning for each unknown parameter.

    Raises BadRequest for a duplicate parameter.
    """
    found: dict[str, str] = {}
    if not request.scope["query_string"]:
        return found
    unknown: dict[str, None] = {}
    for name, value in request.query_params.multi_items():
        if name not in parameters:
            unknown[name] = None
        elif name in found:
            # Same wording as Dynamo: its clients may match this text.
            raise BadRequest(f"Failed to deserialize query string: duplicate field `{name}`")
        else:
            found[name] = value
    if unknown:
        add_warnings(
            request, [unknown_parameter(name, parameters) for name in islice(unknown, WARNINGS_MAX)]
        )
    return found


def scope_filter(query: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return (model_name, tenant_id) of a query; None matches all."""
    tenant, group = query.get("tenant_id"), query.get("routing_group")
    named = tenant is not None or group is not None
    return query.get("model_name"), resolve_tenant(tenant, group) if named else None


def parse_number(query: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """Return a number of the query, or None.

    Raises BadRequest unless a whole number in the range.
    """
    text = query.get(name)
    if text is None:
        return None
    value = _parse_u64(text, f"{name}: expected a whole number, got `{text[:64]}`")
    if not low <= value <= high:
        raise BadRequest(f"{name}: expected a whole number from {low} to {high}, got {value}")
    return value


def parse_page(query: Mapping[str, str]) -> tuple[int, str | None]:
    """Return the largest number of rows of a page, and the page behind which it begins."""
    return parse_number(query, "limit", 1, PAGE_ROWS_MAX) or PAGE_ROWS, query.get("after")


def parse_flag(query: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return a flag of the query.  Raises BadRequest unless `true` or `false`."""
    text = query.get(name, str(default).lower())
    if text not in ("true", "false"):
        raise BadRequest(f"{name}: expected true or false, got `{text[:64]}`")
    return text == "true"


def parse_choice(query: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """Return a word of the query, by default the first.  Raises BadRequest for an unlisted word."""
    text = query.get(name, words[0])
    if text not in words:
        raise BadRequest(f"{name}: expected {' or '.join(words)}, got `{text[:64]}`")
    return text


def _parse_u64(text: str, complaint: str) -> int:
    # int() alone would accept signs, spaces, underscores and non-ASCII digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= U64_MAX):
        raise BadRequest(complaint)
    return int(text)
