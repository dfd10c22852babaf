"""Readable messages for validation errors of a body or a file.

The decoder reports "Expected `int | null`, got `str` - at `$.isl_tokens`"; the client receives
"`isl_tokens`: expected a whole number, got "5"".
"""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import inspect

from select_service.base.suggestions import nearest_name, printable_name

T = TypeVar("T")
VALUE_CHARS_MAX = 64
"""Maximum number of characters of a shown value."""
VALUE_BYTES_MAX = 64 * 1024
"""Size of a list above which values are not looked up."""

_WORDS: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_EXPECTED = re.compile(
    r"^Expected `(?P<kinds>[^`]+)`(?: (?P<limit>.*?))?(?:, got `(?P<got>[^`]+)`)?$"
)
_LENGTH = re.compile(r"^of length (?:(?P<bound><=|>=) )?(?P<n>[0-9]+)$")
_NUMBER = re.compile(r"^(?P<bound><=|>=) (?P<n>\S+)$")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>[0-9]+|\.\.\.)\]")

MISSING, UNKNOWN = "Object missing required field ", "Object contains unknown field "
"""Beginnings of decoder messages."""
ANY = "[...]"
"""Decoder notation for an entry of a mapping, or of a list inside a mapping."""
_FIRST_BYTES: Mapping[str, bytes] = {
    "int": b"-0123456789",
    "float": b"-0123456789",
    "str": b'"',
    "bool": b"tf",
    "array": b"[",
    "object": b"{",
    "null": b"n",
}
"""Possible first bytes of JSON values by kind."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def convert_document(
    document: object, kind: type[T], instead: Mapping[str, str] | None = None
) -> T:
    """Return the document as a type.  Raises ValueError with a one-line message.

    instead: advice by field name, for fields of other programs
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        if document is None:
            raise ValueError("the document is empty") from None
        # msgspec has no structured errors: the text is the only source.
        name = str(error).removeprefix(UNKNOWN).split("`")[1:2]
        advice = (instead or {}).get(name[0]) if name and str(error).startswith(UNKNOWN) else None
        if advice is not None:
            raise ValueError(f"unknown field `{name[0]}`: {advice}") from None
        try:
            body = msgspec.json.encode(document, enc_hook=str)
        except (TypeError, OverflowError):  # keys and numbers unknown to JSON
            body = b""
        raise ValueError(
            readable_error(error, body, inspect.type_info(kind), "the document")
        ) from None


def readable_error(
    error: msgspec.ValidationError, body: bytes, kind: inspect.Type, whole: str = "the body"
) -> str:
    """Return a readable message for a validation error.

    body: decoded document, as JSON
    kind: expected type
    whole: name of the document as a whole
    """
    found = _PLACE.match(str(error))
    assert found is not None
    what, path = found["what"], found["path"] or ""
    if path.endswith(ANY):
        path = _first_wrong_entry(body, path, what) or path
    place = f"`{path.removeprefix('.')}`" if path else whole
    if what.startswith(MISSING):
        return f"{place}: the field {what[len(MISSING) :]} is missing"
    if what.startswith(UNKNOWN):
        unknown = _unknown_field_text(what[len(UNKNOWN) :].strip("`"), kind, path)
        return f"{place}: {unknown}" if path else unknown
    value = _value_at(body, path)
    is_text_key = bool(found["key"]) and what.startswith("Expected `str`")
    seen = None if is_text_key else _wrong_key_text(value) if found["key"] else _value_text(value)
    if found["key"]:
        place = f"a key of {place}"
    if what.startswith("Invalid enum value "):
        found_kind = _type_at(kind, path)
        values = found_kind.values if isinstance(found_kind, inspect.LiteralType) else ()
        choices = " or ".join(f'"{choice}"' for choice in values)
        return f"{place}: expected {choices}, got {seen}"
    expected = _EXPECTED.match(what)
    if expected is None:
        return f"{place}: {what[:1].lower()}{what[1:]}" if path else what
    if _LENGTH.match(expected["limit"] or "") and expected["kinds"].startswith("array"):
        seen = _item_count_text(value) or seen
    got = seen or _WORDS.get(expected["got"] or "")
    return f"{place}: expected {_expected_text(expected)}" + (f", got {got}" if got else "")


def _expected_text(expected: re.Match[str]) -> str:
    kinds = [kind for kind in expected["kinds"].split(" | ") if kind != "null"]
    words = " or ".join(_WORDS.get(kind, kind) for kind in kinds)
    limit = expected["limit"]
    if limit is None:
        return words
    length, number = _LENGTH.match(limit), _NUMBER.match(limit)
    if length is not None:
        bound = {"<=": "at most ", ">=": "at least "}.get(length["bound"] or "", "")
        unit = "characters" if kinds == ["str"] else "items"
        return f"{words} of {bound}{length['n']} {unit}"
    if number is not None:
        return f"{words} of {'at most' if number['bound'] == '<=' else 'at least'} {number['n']}"
    return f"{words} {limit.replace('matching regex', 'that matches')}"


def _unknown_field_text(name: str, kind: inspect.Type, path: str) -> str:
    found = _type_at(kind, path)
    fields = found.fields if isinstance(found, inspect.StructType) else ()
    known = [field.encode_name for field in fields]
    meant = nearest_name(name, known)
    end = f"known fields: {', '.join(known)}" if meant is None else f"did you mean `{meant}`?"
    return f"unknown field `{printable_name(name)}`: {end}"


def _type_at(kind: inspect.Type, path: str) -> inspect.Type | None:
    """Return the type at a path, or None if ambiguous."""
    parts = _union_types(kind)
    for step in _STEP.finditer(path):
        inner = [_inner_type(part, step["name"]) for part in parts]
        parts = [part for each in inner if each is not None for part in _union_types(each)]
    return next((part for part in parts if not isinstance(part, inspect.NoneType)), None)


def _union_types(kind: inspect.Type) -> list[inspect.Type]:
    return list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]


def _inner_type(kind: inspect.Type, name: str | None) -> inspect.Type | None:
    """Return the type of a field, or of the entries if no name is given."""
    if name is not None:
        fields = kind.fields if isinstance(kind, inspect.StructType) else ()
        return next((field.type for field in fields if field.encode_name == name), None)
    if isinstance(kind, inspect.DictType):
        return kind.value_type
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType):
        return kind.item_type
    return None


def _value_at(body: bytes, path: str) -> bytes | None:
    """Return the JSON value at a path; None if unnamed or too expensive to find."""
    raw = body
    for step in _STEP.finditer(path):
        try:
            if step["name"] is not None:
                raw = bytes(_OBJECT.decode(raw)[step["name"]])
            # Error messages must stay cheap: a hostile body could make each of them parse
            # megabytes.
            elif step["index"] == "..." or len(raw) > VALUE_BYTES_MAX:
                return None
            else:
                raw = bytes(_ARRAY.decode(raw)[int(step["index"])])
        except (msgspec.MsgspecError, KeyError, IndexError, UnicodeDecodeError, RecursionError):
            return None
    return raw


def _first_wrong_entry(body: bytes, path: str, what: str) -> str | None:
    """Return the path of the first mapping entry that has another type than expected.

    None means that all types fit and another constraint is violated.
    """
    expected, parent = _EXPECTED.match(what), _value_at(body, path.removesuffix(ANY))
    if expected is None or parent is None or len(parent) > VALUE_BYTES_MAX:
        return None
    if not parent.lstrip().startswith(b"{"):
        return None
    begins = b"".join(_FIRST_BYTES.get(kind, b"") for kind in expected["kinds"].split(" | "))
    for name, raw in _OBJECT.decode(parent).items():
        if bytes(raw).lstrip()[0] not in begins and _STEP.fullmatch(f".{name}"):
            return f"{path.removesuffix(ANY)}.{name}"
    return None


def _wrong_key_text(raw: bytes | None) -> str | None:
    """Return the object key that is meant when a key is not a rank; all rank keys are numbers."""
    if raw is None or not raw.lstrip().startswith(b"{"):
        return None
    keys = _OBJECT.decode(raw)
    odd = [key for key in keys if not (key.isascii() and key.isdigit())]
    return _value_text(msgspec.json.encode(odd[0] if odd else max(keys, key=len)))


def _item_count_text(raw: bytes | None) -> str | None:
    """Return the number of items of a list; None if too expensive to find."""
    if raw is None or len(raw) > VALUE_BYTES_MAX:
        return None
    return f"{len(_ARRAY.decode(raw))} items"


def _value_text(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    kinds = {b"{": "an object", b"[": "a list"}
    kind = kinds.get(raw.lstrip()[:1])
    if kind is not None:
        return kind
    text = raw[: 4 * VALUE_CHARS_MAX].decode("utf-8", "replace")
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "..."
