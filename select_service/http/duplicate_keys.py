"""Detection of duplicate keys in the objects of a JSON text, without a second full parse.

Decoders keep the last of two equal keys; a contradictory request must be an error instead.

Outside of strings only five characters matter: braces open or close objects, quotes delimit
strings, and a colon follows a key.  The text between strings is reduced to these.  `bytes.find`
skips the numbers, most of a typical request, at memory speed; slower per-byte methods only see
little more than strings and braces.

The text must be valid JSON.
"""

import json

_MARKS = b'{}":'
_NOT_MARKS = bytes(set(range(256)) - set(_MARKS))
_BEGIN, _END, _STRING, _COLON = _MARKS

LONG_TEXT = 2048
"""Length in bytes above which `find` is faster than `split`, as long as there are few strings."""
MANY_PARTS = 512
LONG_PART = 64


class TooManyStrings(Exception):
    """The text has more strings than allowed."""


def find_duplicate_key(text: bytes, strings_max: int) -> str | None:
    """Return the first key that occurs twice in an object, or None.  Raises TooManyStrings."""
    if b"\\" in text:
        # Afterwards every quote delimits a string, and all strings still have the same meaning.
        text = text.replace(b"\\\\", b"\\u005c").replace(b'\\"', b"\\u0022")
    parts = _split_strings(text)
    strings = parts[1::2]
    if len(strings) > strings_max:
        raise TooManyStrings
    if b"\\" in text:
        strings = _unescape(strings)
    # No string occurs twice, hence no key: the usual result, without building the structure.
    if len(set(strings)) == len(strings):
        return None
    found = _find_first_duplicate(_structure_of(parts[0::2]), strings)
    return None if found is None else found.decode(errors="replace")


def _split_strings(text: bytes) -> list[bytes]:
    """Return `text.split(b'"')`: the parts outside and inside of strings, alternating."""
    if len(text) < LONG_TEXT:
        return text.split(b'"')
    parts: list[bytes] = []
    begin, end = 0, text.find(b'"')
    while end >= 0:
        # Many short strings: from here on `split` is faster than `find`.
        if len(parts) == MANY_PARTS:
            return parts + text[begin:].split(b'"')
        parts.append(text[begin:end])
        begin = end + 1
        end = text.find(b'"', begin)
    parts.append(text[begin:])
    return parts


def _structure_of(between: list[bytes]) -> bytes:
    """Return only the marks, without empty objects: each remaining object has a key."""
    short = [part if len(part) < LONG_PART else _drop_numbers(part) for part in between]
    return b'"'.join(short).translate(None, _NOT_MARKS).replace(b"{}", b"")


def _drop_numbers(part: bytes) -> bytes:
    """Return `part` without the numbers before its first brace."""
    braces = (part.find(b"{"), part.find(b"}"))
    first = min((at for at in braces if at >= 0), default=len(part))
    colon = b":" if part.find(b":", 0, first) >= 0 else b""
    return colon + part[first:]


def _find_first_duplicate(structure: bytes, strings: list[bytes]) -> bytes | None:
    """Return the first duplicate key.  strings: one for each quote of the structure"""
    around: list[set[bytes]] = []
    keys: set[bytes] = set()
    n_strings = 0
    for mark in structure:
        if mark == _STRING:
            n_strings += 1
        elif mark == _COLON:
            key = strings[n_strings - 1]
            if key in keys:
                return key
            keys.add(key)
        elif mark == _BEGIN:
            around.append(keys)
            keys = set()
        else:
            keys = around.pop()
    return None


def _unescape(strings: list[bytes]) -> list[bytes]:
    """Return the strings in their only spelling without escapes, so that equal strings compare
    equal.
    """
    at = [n for n, string in enumerate(strings) if b"\\" in string]
    plain = json.loads(b'["' + b'","'.join(strings[n] for n in at) + b'"]')
    result = list(strings)
    for n, string in zip(at, plain, strict=True):
        result[n] = string.encode(errors="surrogatepass")
    return result
