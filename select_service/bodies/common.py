"""Words that bodies of several nouns share: bounded types, the scope, status and refusals.

Field names and key order of all bodies are the wire format of the reference selection service
(Dynamo 1.3 line); what ours adds stands at the end of each body.  A field that may be left out is
`X = default`; one that may also be `null` is `X | None = None`.

Integers outside 64 bits cannot be bounded by msgspec annotations, so `U64` is only bounded below
here and `__post_init__` checks the upper end.  Hash lists are checked when they become arrays
(`core.decide.prompt`).
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.errors import BadRequest

U64_MAX = 2**64 - 1
NAME_CHARS_MAX = 512
ID_CHARS_MAX = 512
TAINTS_MAX = 256
RANKS_PER_WORKER_MAX = 1024
ALLOWED_WORKERS_MAX = 16_384
TIMEOUT_MS_MAX = 3_600_000
BUSY_TOKENS_MAX = 2**40
"""Highest threshold of active prefill tokens; beyond it no rank is ever busy."""

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0, description="Unsigned 64-bit integer.")]
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
Id = Annotated[str, Meta(max_length=ID_CHARS_MAX)]
Endpoint = Annotated[str, Meta(max_length=2048)]
Token = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Hash = Annotated[int, Meta(description="64-bit hash, as signed or unsigned integer.")]
BusyTokens = Annotated[int, Meta(ge=0, le=BUSY_TOKENS_MAX)]
TimeoutMs = Annotated[int, Meta(ge=0, le=TIMEOUT_MS_MAX)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Meta(ge=0.0)]

DEFAULT_NAME = "default"


def check_u64(body: Struct, *fields: str) -> None:
    for field in fields:
        value = getattr(body, field)
        if isinstance(value, int) and value > U64_MAX:
            raise ValueError(f"{field}: {value} does not fit in an unsigned 64-bit integer")


class RequestBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a request may hold.  Unknown fields are told to the client by the second reading."""


class Scope(RequestBody, kw_only=True):
    """Names the partition."""

    model_name: Name = DEFAULT_NAME
    """Model that is asked for; workers register under the same name."""
    tenant_id: Name | UnsetType = UNSET
    """Tenant, separate from others of the same model; `default` when left out."""
    routing_group: Name | UnsetType = UNSET
    """Another name of `tenant_id`; when both are given they must be equal."""


def tenant_of(tenant_id: str | UnsetType | None, routing_group: str | UnsetType | None) -> str:
    """The one tenant that both names agree on.  Raises BadRequest when they contradict."""
    given = {name for name in (tenant_id, routing_group) if isinstance(name, str)}
    if len(given) > 1:
        raise BadRequest(
            f"tenant_id `{tenant_id}` and routing_group `{routing_group}` differ; "
            "they are two names of one field, give one of them"
        )
    return given.pop() if given else DEFAULT_NAME


class Status(Struct, kw_only=True):
    """It is done, and there is nothing to say about it."""

    status: Literal["ok"] = "ok"
    """Always `ok`."""


class ErrorBody(Struct, kw_only=True):
    """Every refusal but one."""

    error: str
    """What was wrong and what was expected, for people; may change."""
    code: str
    """Kind of the refusal, for programs; never changes."""
    details: dict[str, str | int | dict[str, int]] | UnsetType = UNSET
    """Which bound was reached, when it is one of a policy class; or, when ranks that fit are out of
    rotation, `weight` 0, how many they are (`ranks`), how many in each state (`states`), and the
    `state` of a rank that was named."""
