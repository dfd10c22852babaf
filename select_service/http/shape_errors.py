"""What is wrong with the shape of a body, in the words of its author.

The decoder says "Expected `int | null`, got `str` - at `$.isl_tokens`"; the client is told
"`isl_tokens`: expected a whole number, got "5"".
"""

import re
from collections.abc import Mapping

import msgspec
from msgspec import inspect

VALUE_CHARS_MAX = 64
"""Of the value that is shown."""
VALUE_BYTES_MAX = 64 * 1024
"""Within longer lists the value is not looked up."""

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

ANY = "[...]"
"""How the decoder names an entry of a mapping, or of a list in one."""
_FIRST_BYTES: Mapping[str, bytes] = {
    "int": b"-0123456789",
    "float": b"-0123456789",
    "str": b'"',
    "bool": b"tf",
    "array": b"[",
    "object": b"{",
    "null": b"n",
}
"""How JSON of a kind may begin."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def in_words(error: msgspec.ValidationError, body: bytes, kind: inspect.Type) -> str:
    """The error for the client.  body: what was decoded;  kind: as what"""
    found = _PLACE.match(str(error))
    assert found is not None
    what, path = found["what"], found["path"] or ""
    if path.endswith(ANY):
        path = _entry(body, path, what) or path
    place = f"`{path.removeprefix('.')}`" if path else "the body"
    if what.startswith("Object missing required field "):
        return f"{'the body' if not path else place}: the field {what[30:]} is missing"
    value = _value(body, path)
    seen = _odd_key(value) if found["key"] else _shown(value)
    if found["key"]:
        place = f"a key of {place}"
    if what.startswith("Invalid enum value "):
        choices = " or ".join(f'"{choice}"' for choice in _choices(kind, path))
        return f"{place}: expected {choices}, got {seen}"
    expected = _EXPECTED.match(what)
    if expected is None:
        return f"{place}: {what[:1].lower()}{what[1:]}" if path else what
    if _LENGTH.match(expected["limit"] or "") and expected["kinds"].startswith("array"):
        seen = _counted(value) or seen
    got = seen or _WORDS.get(expected["got"] or "")
    return f"{place}: expected {_expectation(expected)}" + (f", got {got}" if got else "")


def _expectation(expected: re.Match[str]) -> str:
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
    return f"{words} {limit}"


def _choices(kind: inspect.Type, path: str) -> tuple[object, ...]:
    """The values of the enumeration at a path of names."""
    for step in _STEP.finditer(path):
        if isinstance(kind, inspect.StructType):
            kind = next(f.type for f in kind.fields if f.encode_name == step["name"])
        parts = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        kind = next(part for part in parts if not isinstance(part, inspect.NoneType))
    return kind.values if isinstance(kind, inspect.LiteralType) else ()


def _value(body: bytes, path: str) -> bytes | None:
    """The JSON at a path; None when it cannot be named or would cost too much to find."""
    raw = body
    for step in _STEP.finditer(path):
        try:
            if step["name"] is not None:
                raw = bytes(_OBJECT.decode(raw)[step["name"]])
            elif step["index"] == "..." or len(raw) > VALUE_BYTES_MAX:
                return None
            else:
                raw = bytes(_ARRAY.decode(raw)[int(step["index"])])
        except (msgspec.MsgspecError, KeyError, IndexError, UnicodeDecodeError, RecursionError):
            return None
    return raw


def _entry(body: bytes, path: str, what: str) -> str | None:
    """The path of the first entry of a mapping that is not of the kind expected; None: it is of the
    kind, and something else is wrong with it."""
    expected, parent = _EXPECTED.match(what), _value(body, path.removesuffix(ANY))
    if expected is None or parent is None or len(parent) > VALUE_BYTES_MAX:
        return None
    if not parent.lstrip().startswith(b"{"):
        return None
    begins = b"".join(_FIRST_BYTES.get(kind, b"") for kind in expected["kinds"].split(" | "))
    for name, raw in _OBJECT.decode(parent).items():
        if bytes(raw).lstrip()[0] not in begins and _STEP.fullmatch(f".{name}"):
            return f"{path.removesuffix(ANY)}.{name}"
    return None


def _odd_key(raw: bytes | None) -> str | None:
    """The key of an object that is meant when a key is no rank; all such keys are numbers."""
    if raw is None or not raw.lstrip().startswith(b"{"):
        return None
    keys = _OBJECT.decode(raw)
    odd = [key for key in keys if not (key.isascii() and key.isdigit())]
    return _shown(msgspec.json.encode(odd[0] if odd else max(keys, key=len)))


def _counted(raw: bytes | None) -> str | None:
    """How many items a list has; None where that would cost too much to find."""
    if raw is None or len(raw) > VALUE_BYTES_MAX:
        return None
    return f"{len(_ARRAY.decode(raw))} items"


def _shown(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    kinds = {b"{": "an object", b"[": "a list"}
    kind = kinds.get(raw.lstrip()[:1])
    if kind is not None:
        return kind
    text = raw[: 4 * VALUE_CHARS_MAX].decode("utf-8", "replace")
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "..."
