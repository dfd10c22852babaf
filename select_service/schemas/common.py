"""Types shared by several bodies: bounded numbers, the scope, status and error bodies.

Field names and key order of all bodies are the wire format of Dynamo's selection service
(Dynamo 1.3 line); our additions come at the end of each body.  An optional field is
`X = default`; a field that may also be `null` is `X | None = None`.

msgspec annotations cannot bound integers beyond 64 bits, so `U64` has only a lower bound here
and `__post_init__` checks the upper bound.  Hash lists are checked on conversion to arrays
(`core.placement.prompt`).
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.base.errors import BadRequest, InvalidBody
from select_service.base.suggestions import printable_name

U64_MAX = 2**64 - 1
NAME_CHARS_MAX = 512
ID_CHARS_MAX = 512
ENDPOINT_CHARS_MAX = 2048
RANK_DIGITS_MAX = 10
"""Decimal digits of the largest data-parallel rank."""
TAINTS_MAX = 256
RANKS_PER_WORKER_MAX = 1024
ALLOWED_WORKERS_MAX = 16_384
TIMEOUT_MS_MAX = 3_600_000
BUSY_TOKENS_MAX = 2**40
"""Largest threshold of active prefill tokens; a larger threshold would never make a rank busy."""

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0, description="Unsigned 64-bit integer.")]
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
Id = Annotated[str, Meta(max_length=ID_CHARS_MAX)]
Endpoint = Annotated[str, Meta(max_length=ENDPOINT_CHARS_MAX)]
Token = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Hash = Annotated[int, Meta(description="64-bit hash, as signed or unsigned integer.")]
BusyTokens = Annotated[int, Meta(ge=0, le=BUSY_TOKENS_MAX)]
TimeoutMs = Annotated[int, Meta(ge=0, le=TIMEOUT_MS_MAX)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Meta(ge=0.0)]
REFUSES_NULL = "refuses_null"
"""Mark of optional fields whose null is an error instead of an omission."""
NonNullFlag = Annotated[bool, Meta(extra={REFUSES_NULL: True})]

DEFAULT_NAME = "default"


def check_u64_fields(body: Struct, *fields: str) -> None:
    for field in fields:
        value = getattr(body, field)
        if isinstance(value, int) and value > U64_MAX:
            raise ValueError(f"{field}: {value} does not fit in an unsigned 64-bit integer")


class RequestBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of request bodies.  Clients learn of unknown fields from the lenient second decode."""


class Scope(RequestBody, kw_only=True):
    """Fields that name the model and the tenant."""

    model_name: Name = DEFAULT_NAME
    """Requested model; workers register under the same name."""
    tenant_id: Name | UnsetType = UNSET
    """Tenant, isolated from other tenants of the same model; `default` when omitted."""
    routing_group: Name | UnsetType = UNSET
    """Alias of `tenant_id`; when both are given they must be equal."""


def resolve_tenant(tenant_id: str | UnsetType | None, routing_group: str | UnsetType | None) -> str:
    """Return the tenant given by either name.  Raises BadRequest when the two names contradict."""
    if not isinstance(tenant_id, str):
        return routing_group if isinstance(routing_group, str) else DEFAULT_NAME
    if isinstance(routing_group, str) and routing_group != tenant_id:
        raise BadRequest(
            f"tenant_id `{tenant_id}` and routing_group `{routing_group}` differ; "
            "they are two names of one field, give one of them"
        )
    return tenant_id


def check_rank_keys(field: str, by_rank: Mapping[str, object]) -> None:
    """Raise BadRequest for a key that is no number, and InvalidBody for a number of no rank.

    Source of the distinction: Dynamo, measured.
    """
    for key in by_rank:
        digits = key.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise BadRequest(
                f"a key of `{field}` is `{printable_name(key)}`: expected a data-parallel rank"
            )
        if key != str(int(key[:RANK_DIGITS_MAX])) or not 0 <= int(key) < 2**32:
            raise InvalidBody(
                f"a key of `{field}` is `{printable_name(key)}`: expected a data-parallel rank, "
                "a whole number from 0 to 4294967295"
            )


class RankAddress(Struct, kw_only=True):
    """Worker and data-parallel rank."""

    worker_id: int
    """Id of the worker."""
    dp_rank: int
    """Data-parallel rank of the worker."""


class Status(Struct, kw_only=True):
    """Response of a request that succeeded without a result."""

    status: Literal["ok"] = "ok"
    """Always `ok`."""


class ErrorBody(Struct, kw_only=True):
    """Body of every error response except the overload refusal."""

    error: str
    """Explanation for people: the fault and the expected value; the wording may change."""
    code: str
    """Kind of the error, for programs; never changes."""
    details: dict[str, str | int | dict[str, int]] | UnsetType = UNSET
    """Limit that was reached, for a limit of a policy class. For eligible ranks that are out of
    rotation (`weight` 0): the number of ranks (`ranks`), the number in each state (`states`), and
    the `state` of the rank named in the request.
    """


Certainty: TypeAlias = Literal["exact", "at_most", "at_least", "unknown", "assumed"]
"""Certainty of a number of reusable tokens: exact, an upper bound, a lower bound, unknown (perhaps
too high, perhaps too low, as after lost events), or assumed because of earlier bookings, without
events that confirm it.
"""
MATCH_CERTAINTIES: tuple[Certainty, ...] = ("exact", "at_most", "at_least", "unknown")
"""Certainties of a match by number (`indexer.index.reuse_layout`)."""
AnswerResult: TypeAlias = Literal["added", "not_assumed", "prompt_unknown", "prompt_evicted"]
"""What became of the blocks of a reported answer."""
