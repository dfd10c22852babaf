"""Schema and validation of the file of API keys; errors are one line."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from select_service.auth.api_key import HASH_PREFIX, ApiKey, Quotas
from select_service.auth.roles import CALLER, METRICS, OPERATOR, REPLICA, Role
from select_service.base.shape_errors import convert_document

API_KEYS_MAX = 1024
TENANTS_MAX = 256
"""Most tenants of a key."""
NAME_CHARS_MAX = 64
ALL_TENANTS = "all"
CREATE_KEY_ADVICE = "create a key with `select-service keys new NAME --role caller --file FILE`"

KeyName: TypeAlias = Annotated[
    str, Meta(pattern=f"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARS_MAX - 1}}}$")
]
_Hash: TypeAlias = Annotated[str, Meta(pattern=f"^{HASH_PREFIX}[0-9a-f]{{64}}$")]
_Tenant: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
_Tenants: TypeAlias = Annotated[tuple[_Tenant, ...], Meta(min_length=1, max_length=TENANTS_MAX)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**40)]


class _Quotas(msgspec.Struct, forbid_unknown_fields=True):
    requests_per_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    burst: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    reservations: _Count | None = None
    workers: _Count | None = None
    reserved_blocks: _Count | None = None
    partitions: _Count | None = None
    event_ranks: _Count | None = None
    queued_requests: _Count | None = None
    queued_tokens: _Count | None = None
    queued_blocks: _Count | None = None
    queued_allowed_ids: _Count | None = None
    connections: _Count | None = None
    body_bytes: _Count | None = None
    migration_waiters: _Count | None = None
    live_streams: _Count | None = None
    dumps: _Count | None = None
    examinations: _Count | None = None


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    name: KeyName
    hash: _Hash
    roles: Annotated[tuple[Role, ...], Meta(min_length=1)]
    tenants: Literal["all"] | _Tenants | None = None
    quotas: _Quotas = msgspec.field(default_factory=_Quotas)


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    keys: Annotated[list[_Key], Meta(max_length=API_KEYS_MAX)]


def parse_keys(document: object) -> tuple[ApiKey, ...]:
    """Return the keys.

    Raises ValueError with one line that names the invalid key and the fault.
    """
    if not document:
        raise ValueError(f"the file is empty: {CREATE_KEY_ADVICE}")
    found = convert_document(document, _Document).keys
    for each in found:
        _check_key(each)
    check_unique("keys", "the name", [each.name for each in found])
    check_unique("keys", "the hash", [each.hash for each in found])
    return tuple(_make_key(each) for each in found)


def _check_key(key: _Key) -> None:
    """Raise ValueError for invalid combinations of roles, tenants and quotas."""
    roles = set(key.roles)
    if roles & {CALLER} and key.tenants is None:
        raise ValueError(
            f"key `{key.name}`: `tenants` is missing for the role {CALLER}: give "
            f"a list, or `{ALL_TENANTS}`"
        )
    if roles & {REPLICA, METRICS} and key.tenants not in (None, ALL_TENANTS):
        raise ValueError(
            f"key `{key.name}`: `tenants` can only bind the roles {CALLER} and {OPERATOR}; "
            f"{REPLICA} and {METRICS} see the whole service"
        )
    if key.quotas.burst is not None and key.quotas.requests_per_s is None:
        raise ValueError(f"key `{key.name}`: `burst` needs `requests_per_s`")


def check_unique(entries: str, what: str, values: list[str]) -> None:
    """Raise ValueError if two entries have the same value.  what: name of the values, with `the`"""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"two {entries} have {what} `{value}`")
        seen.add(value)


def _make_key(given: _Key) -> ApiKey:
    """Return the key of an entry."""
    # Both mean all tenants; only the role caller has to choose explicitly (see _check_key).
    tenants = None if given.tenants in (None, ALL_TENANTS) else frozenset(given.tenants or ())
    quotas = Quotas(*msgspec.structs.astuple(given.quotas))
    digest = bytes.fromhex(given.hash.removeprefix(HASH_PREFIX))
    return ApiKey(given.name, digest, frozenset(given.roles), tenants, quotas)
