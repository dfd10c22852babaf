"""Reading a body again that is not of the shape of its type, more kindly and more slowly.

Types of request bodies refuse unknown fields, so a body that decodes has none: the usual request
pays nothing for the question.  When decoding fails, the body is read once more without

* its unknown fields, which the client is told of, and
* fields that are null although their type has no null: null means the same as leaving them out.

What is left is decoded by the same decoder, so all other rules and errors are the same.
"""

from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from select_service.http.request_warnings import Warned, unknown_field

LIST_BYTES_MAX = 256 * 1024
"""Longer lists of objects are left as they are, since each item costs; unknown fields of their
items are refused."""
WHITESPACE = b" \t\r\n"

T = TypeVar("T")

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


class BodyForm(Generic[T]):
    """How bodies of one type are read."""

    def __init__(self, kind: type[T]) -> None:
        self.decode = msgspec.json.Decoder(kind).decode
        self.type = inspect.type_info(kind)

    def pruned(self, body: bytes) -> "Pruned":
        """What remains of the body.  Raises msgspec.DecodeError, UnicodeDecodeError,
        RecursionError."""
        warnings: list[Warned] = []
        return Pruned(_pruned(body, self.type, "", warnings), warnings)


class Pruned(NamedTuple):
    body: bytes
    warnings: list[Warned]


def _pruned(raw: bytes, kind: inspect.Type, place: str, warnings: list[Warned]) -> bytes:
    """place: the path of `raw` in the body"""
    if not _holds_structs(kind):
        return raw
    if isinstance(kind, inspect.UnionType):
        (kind,) = (part for part in kind.types if _holds_structs(part))
    first = raw.lstrip(WHITESPACE)[:1]
    if isinstance(kind, inspect.StructType) and first == b"{":
        return b"{" + b",".join(_members(raw, kind, place, warnings)) + b"}"
    if isinstance(kind, inspect.ListType) and first == b"[" and len(raw) <= LIST_BYTES_MAX:
        items = (
            _pruned(bytes(item), kind.item_type, f"{place}[{i}]", warnings)
            for i, item in enumerate(_ARRAY.decode(raw))
        )
        return b"[" + b",".join(items) + b"]"
    return raw


def _members(
    raw: bytes, kind: inspect.StructType, place: str, warnings: list[Warned]
) -> Iterator[bytes]:
    fields = {field.encode_name: field for field in kind.fields}
    for name, value in _OBJECT.decode(raw).items():
        field, member = fields.get(name), bytes(value)
        if field is None:
            warnings.append(unknown_field(name, tuple(fields), place))
        elif field.required or member != b"null" or _takes_null(field.type):
            below = f"{place}.{name}" if place else name
            member = _pruned(member, field.type, below, warnings)
            yield msgspec.json.encode(name) + b":" + member


def _holds_structs(kind: inspect.Type) -> bool:
    """May a value have fields that we know by name?"""
    if isinstance(kind, inspect.UnionType):
        return any(_holds_structs(part) for part in kind.types)
    if isinstance(kind, inspect.ListType):
        return _holds_structs(kind.item_type)
    return isinstance(kind, inspect.StructType)


def _takes_null(kind: Any) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(_takes_null(part) for part in kind.types)
    return isinstance(kind, inspect.NoneType)
