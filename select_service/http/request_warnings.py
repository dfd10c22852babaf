"""Warnings: what of a request was not understood, or not used, although it was answered.

A client that misspells a field must hear of it.  An answer that is a JSON object of ours gets a
last field `warnings`; where the body must stay as it is, a header says the same.  An answer without
warnings is not touched.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from select_service.spelling import nearest, shown

HEADER = "x-select-warnings"
"""A JSON array of texts, in ASCII."""
WARNINGS_MAX = 16
"""Of one request; further ones are left out."""

Kind = Literal["unknown_field", "unknown_parameter", "unused_field", "unknown_policy_class"]
STRICT: frozenset[Kind] = frozenset(("unknown_field", "unknown_parameter"))
"""What --strict-fields refuses."""

OTHER_WORDS: Mapping[str, tuple[str, ...]] = {
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
"""What other interfaces call our fields, of which the first that is known here is meant; none: a
field of other routes, and no slip."""


class Warned(NamedTuple):
    kind: Kind
    text: str


def unknown_field(name: str, known: Sequence[str], place: str = "") -> Warned:
    """place: the object that holds the field, such as `pinned_worker`; empty at the top"""
    where = f"{shown(name)}` in `{place}" if place else shown(name)
    return Warned("unknown_field", f"unknown field `{where}`{_proposal(name, known)}")


def unknown_parameter(name: str, known: Sequence[str]) -> Warned:
    return Warned(
        "unknown_parameter", f"unknown query parameter `{shown(name)}`{_proposal(name, known)}"
    )


def not_heeded(names: Sequence[str], policy: str) -> Warned:
    """names: of `router_config_override`, for which the policy that decides has no use"""
    shown_names = ", ".join(f"`{name}`" for name in names)
    return Warned(
        "unused_field",
        f"{shown_names} of `router_config_override`: heeded by the policy `reference` alone, and "
        f"`{policy}` decides here",
    )


def unknown_policy_class(name: str, known: Sequence[str], default: str) -> Warned:
    """known: families and explicit classes;  default: the family that is taken instead"""
    text = f"no policy class or family is called `{shown(name)}`, the request counts as `{default}`"
    return Warned("unknown_policy_class", text + _proposal(name, known))


def _proposal(name: str, known: Sequence[str]) -> str:
    words = OTHER_WORDS.get(name, (name,))
    meant = next((word for word in words if word in known), None)
    if meant is None and words:
        meant = nearest(name, known)
    return "" if meant is None else f": did you mean `{meant}`?"


def warn(request: Request, warnings: Sequence[Warned]) -> None:
    """Remember them, at least one, until there is an answer."""
    held: list[Warned] = request.scope.setdefault("warnings", [])
    held += warnings[: WARNINGS_MAX - len(held)]


def warned(request: Request) -> Sequence[Warned]:
    found: Sequence[Warned] = request.scope.get("warnings", ())
    return found


def tell(response: Response, warnings: Sequence[Warned], in_body: bool) -> None:
    """Put the warnings, at least one, into an answer.

    in_body: the answer is a JSON object that may have a further field
    """
    texts = _json([each.text for each in warnings])
    if not in_body:
        response.headers[HEADER] = texts.decode()
        return
    body = bytes(response.body)
    assert (body[:1], body[-1:]) == (b"{", b"}")
    separator = b"" if body == b"{}" else b","
    response.body = body[:-1] + separator + b'"warnings":' + texts + b"}"
    response.headers["content-length"] = str(len(response.body))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
