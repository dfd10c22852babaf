"""Lenient second decode of request bodies that do not match their schema.

Types of request bodies forbid unknown fields, so that a body that decodes has none: regular
requests pay nothing for this check.  After a failure the body is decoded again without

* unknown fields, each of which causes a warning, and
* null fields of a type without null: null means the same as omitting the field.  A type with the
  mark of `common.NonNullFlag` stays as it is, so that its null is an error.

The same decoder then decodes the rest, so that all other rules and errors are the same.
"""

from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from select_service.http.request_warnings import RequestWarning, unknown_field
from select_service.schemas.common import REFUSES_NULL

LIST_BYTES_MAX = 256 * 1024
"""Longest list of objects to prune, bytes, since each item costs time; in longer lists unknown
fields are errors.
"""
WHITESPACE = b" \t\r\n"

T = TypeVar("T")

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


class BodySchema(Generic[T]):
    """Decoder of a body type, with the lenient variant."""

    def __init__(self, kind: type[T]) -> None:
        self.decode = msgspec.json.Decoder(kind).decode
        self.type = inspect.type_info(kind)

    def prune_body(self, body: bytes) -> "PrunedBody":
        """Return the body without fields to ignore.

        Raises msgspec.DecodeError, UnicodeDecodeError, RecursionError.
        """
        warnings: list[RequestWarning] = []
        return PrunedBody(_prune_value(body, self.type, "", warnings), warnings)


class PrunedBody(NamedTuple):
    """Remaining body, and warnings about dropped fields."""

    body: bytes
    warnings: list[RequestWarning]


def _prune_value(
    raw: bytes, kind: inspect.Type, place: str, warnings: list[RequestWarning]
) -> bytes:
    """Return the pruned JSON of a value.  place: path of `raw` in the body"""
    if not _holds_structs(kind):
        return raw
    if isinstance(kind, inspect.UnionType):
        # msgspec allows only one struct or list of structs in a union of untagged types.
        (kind,) = (part for part in kind.types if _holds_structs(part))
    first = raw.lstrip(WHITESPACE)[:1]
    if isinstance(kind, inspect.StructType) and first == b"{":
        return b"{" + b",".join(_prune_members(raw, kind, place, warnings)) + b"}"
    if isinstance(kind, inspect.ListType) and first == b"[" and len(raw) <= LIST_BYTES_MAX:
        items = (
            _prune_value(bytes(item), kind.item_type, f"{place}[{i}]", warnings)
            for i, item in enumerate(_ARRAY.decode(raw))
        )
        return b"[" + b",".join(items) + b"]"
    return raw


def _prune_members(
    raw: bytes, kind: inspect.StructType, place: str, warnings: list[RequestWarning]
) -> Iterator[bytes]:
    """Yield the remaining members of an object as JSON."""
    fields = {field.encode_name: field for field in kind.fields}
    for name, value in _OBJECT.decode(raw).items():
        field, member = fields.get(name), bytes(value)
        if field is None:
            warnings.append(unknown_field(name, tuple(fields), place))
        elif field.required or member != b"null" or _keeps_null(field.type):
            below = f"{place}.{name}" if place else name
            member = _prune_value(member, field.type, below, warnings)
            yield msgspec.json.encode(name) + b":" + member


def _holds_structs(kind: inspect.Type) -> bool:
    """Return whether a value may have fields that are known by name."""
    if isinstance(kind, inspect.UnionType):
        return any(_holds_structs(part) for part in kind.types)
    if isinstance(kind, inspect.ListType):
        return _holds_structs(kind.item_type)
    return isinstance(kind, inspect.StructType)


def _keeps_null(kind: Any) -> bool:
    """Return whether null is a valid value, or an error."""
    if isinstance(kind, inspect.Metadata) and kind.extra is not None:
        return REFUSES_NULL in kind.extra
    parts = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return any(isinstance(part, inspect.NoneType) for part in parts)
