"""Parameters of paths and queries: what several endpoints declare, and how all are read."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated
from urllib.parse import unquote_to_bytes

from msgspec import Meta
from starlette.requests import Request

from select_service.bodies.common import U64, U64_MAX, tenant_of
from select_service.errors import BadRequest
from select_service.http.endpoint import PathParameter, QueryParameter
from select_service.http.request_warnings import WARNINGS_MAX, unknown_parameter, warn


def _worker_id(segment: str) -> int:
    """Raises BadRequest when the segment is not an unsigned 64-bit number."""
    text = _decoded("worker_id", segment)
    return _u64(
        text,
        f"Invalid URL: Cannot parse the worker id `{text[:64]}`: "
        f"expected a whole number from 0 to {U64_MAX}",
    )


def _decoded(name: str, segment: str) -> str:
    """Percent-decoded once.  Raises BadRequest when it is not UTF-8."""
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise BadRequest(f"Invalid URL: Invalid UTF-8 in `{name}`") from None


def _text_in_path(name: str, description: str, example: str) -> PathParameter:
    text = Annotated[str, Meta(min_length=1)]
    return PathParameter(name, text, description, example, partial(_decoded, name))


WORKER_ID = PathParameter(
    "worker_id", U64, "Id of the worker, an unsigned 64-bit integer.", 1, _worker_id
)
RESERVATION_ID = _text_in_path(
    "reservation_id", "Id of the reservation, percent-encoded.", "request-123"
)
DECISION_ID = _text_in_path(
    "decision_id",
    "The selection_id or reservation_id of the decision, percent-encoded.",
    "request-123",
)
EXPERIMENT_ID = _text_in_path("experiment_id", "Id of the experiment, percent-encoded.", "1")
SCOPE = (
    QueryParameter("model_name", str, "Only this model."),
    QueryParameter("tenant_id", str, "Only this tenant."),
    QueryParameter(
        "routing_group", str, "Another name of `tenant_id`; when both are given they must be equal."
    ),
)


def query_of(request: Request, known: Sequence[str]) -> dict[str, str]:
    """The known query parameters; the client is told of others.

    Raises BadRequest when one is given twice.
    """
    found: dict[str, str] = {}
    if not request.scope["query_string"]:
        return found
    unknown: dict[str, None] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            unknown[name] = None
        elif name in found:
            raise BadRequest(f"Failed to deserialize query string: duplicate field `{name}`")
        else:
            found[name] = value
    if unknown:
        warn(request, [unknown_parameter(name, known) for name in islice(unknown, WARNINGS_MAX)])
    return found


def scope_filter(query: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(model_name, tenant_id) of a query; None admits every one."""
    tenant, group = query.get("tenant_id"), query.get("routing_group")
    named = tenant is not None or group is not None
    return query.get("model_name"), tenant_of(tenant, group) if named else None


def query_number(query: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """Raises BadRequest when it is not a whole number in the range."""
    text = query.get(name)
    if text is None:
        return None
    value = _u64(text, f"{name}: expected a whole number, got `{text[:64]}`")
    if not low <= value <= high:
        raise BadRequest(f"{name}: expected a whole number from {low} to {high}, got {value}")
    return value


def query_flag(query: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Raises BadRequest when it is neither `true` nor `false`."""
    text = query.get(name, str(default).lower())
    if text not in ("true", "false"):
        raise BadRequest(f"{name}: expected true or false, got `{text[:64]}`")
    return text == "true"


def query_word(query: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """The first when it is left out.  Raises BadRequest when it is none of them."""
    text = query.get(name, words[0])
    if text not in words:
        raise BadRequest(f"{name}: expected {' or '.join(words)}, got `{text[:64]}`")
    return text


def _u64(text: str, complaint: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= U64_MAX):
        raise BadRequest(complaint)
    return int(text)
