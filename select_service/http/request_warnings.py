"""Warnings about parts of a request that were ignored although the request succeeded.

A client that misspells a field must learn of the mistake.  Responses that are JSON objects of ours
get a last field `warnings`; where the body must not change, a header carries the warnings.
Responses without warnings are unchanged.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from select_service.base.suggestions import nearest_name, printable_name

WARNINGS_HEADER = "x-select-warnings"
"""Name of the header: a JSON array of texts, in ASCII."""
WARNINGS_MAX = 16
"""Most warnings of a request; further warnings are dropped."""

WarningKind = Literal["unknown_field", "unknown_parameter", "unused_field", "unknown_policy_class"]
STRICT_KINDS: frozenset[WarningKind] = frozenset(("unknown_field", "unknown_parameter"))
"""Kinds that --strict-fields turns into errors."""

FOREIGN_NAMES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("token_ids",),
    "messages": ("token_ids",),
    "tokens": ("token_ids",),
    "input_ids": ("token_ids",),
    "prompt_token_ids": ("token_ids",),
    "temperature": ("router_temperature",),
    "tenant": ("tenant_id",),
    "id": ("reservation_id", "worker_id"),
    "url": ("endpoint",),
    "address": ("endpoint",),
    "dp_size": ("data_parallel_size",),
    "zmq_endpoint": ("kv_events_endpoint",),
    "reservation_id": (),
}
"""Names in other APIs and the corresponding fields here, of which the first that the route accepts
is suggested.  An empty tuple marks a field of other routes, for which nothing is suggested.
"""


class RequestWarning(NamedTuple):
    """Warning with its kind."""

    kind: WarningKind
    text: str


def unknown_field(name: str, known: Sequence[str], place: str = "") -> RequestWarning:
    """Return the warning.  place: object with the field, such as `pinned_worker`; empty at the
    top
    """
    where = f"{printable_name(name)}` in `{place}" if place else printable_name(name)
    return RequestWarning("unknown_field", f"unknown field `{where}`{_suggestion(name, known)}")


def unknown_parameter(name: str, known: Sequence[str]) -> RequestWarning:
    return RequestWarning(
        "unknown_parameter",
        f"unknown query parameter `{printable_name(name)}`{_suggestion(name, known)}",
    )


def ignored_override(names: Sequence[str], policy: str) -> RequestWarning:
    """Return the warning.  names: fields of `router_config_override` that the active policy
    ignores
    """
    shown_names = ", ".join(f"`{name}`" for name in names)
    return RequestWarning(
        "unused_field",
        f"{shown_names} of `router_config_override`: used only by the policy `reference`; the "
        f"active policy is `{policy}`",
    )


def ignored_advisory() -> RequestWarning:
    return RequestWarning(
        "unused_field", "`advisory` is ignored: this route books; ask for advice with POST /select"
    )


def omitted_hashes(limit: int) -> RequestWarning:
    """Return the warning.  limit: most hashes of a response"""
    return RequestWarning(
        "unused_field", f"`sequence_hashes` are left out: the prompt has more than {limit} blocks"
    )


def unknown_policy_class(name: str, known: Sequence[str], default: str) -> RequestWarning:
    """Return the warning.  known: families and explicit classes;  default: family used instead"""
    text = f"unknown policy class or family `{printable_name(name)}`, using `{default}`"
    return RequestWarning("unknown_policy_class", text + _suggestion(name, known))


def _suggestion(name: str, known: Sequence[str]) -> str:
    """Return a "did you mean" suffix, or an empty text."""
    words = FOREIGN_NAMES.get(name, (name,))
    meant = next((word for word in words if word in known), None)
    if meant is None and words:
        meant = nearest_name(name, known)
    return "" if meant is None else f": did you mean `{meant}`?"


def add_warnings(request: Request, warnings: Sequence[RequestWarning]) -> None:
    """Collect warnings, at least one, until the response."""
    held: list[RequestWarning] = request.scope.setdefault("warnings", [])
    held += warnings[: WARNINGS_MAX - len(held)]


def collected_warnings(request: Request) -> Sequence[RequestWarning]:
    """Return the warnings collected so far."""
    found: Sequence[RequestWarning] = request.scope.get("warnings", ())
    return found


def attach_warnings(response: Response, warnings: Sequence[RequestWarning], in_body: bool) -> None:
    """Attach warnings, at least one, to a response.

    in_body: whether the response is a JSON object to which a field may be added
    """
    texts = json.dumps([each.text for each in warnings]).encode()
    if not in_body:
        response.headers[WARNINGS_HEADER] = texts.decode()
        return
    body = bytes(response.body)
    # The field is spliced into the encoded bytes: decoding and encoding again would cost more, and
    # could change the numbers.
    assert (body[:1], body[-1:]) == (b"{", b"}")
    separator = b"" if body == b"{}" else b","
    response.body = body[:-1] + separator + b'"warnings":' + texts + b"}"
    response.headers["content-length"] = str(len(response.body))
