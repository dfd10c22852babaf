"""Does an object of a JSON text have a key twice?  Found without parsing the text a second time.

Decoders keep the last of two equal keys; a request that says two things is an error.

Outside of strings only five characters matter: an object begins or ends, a string stands here, and
a colon stands behind a key.  What is between the strings is stripped down to these.  The numbers
that most of a request consists of are passed over with `bytes.find`, at the speed of memory; other
methods of bytes, which look at one after the other, see little more than strings and braces.

The text must be valid JSON.
"""

import json

_MARKS = b'{}":'
_NOT_MARKS = bytes(set(range(256)) - set(_MARKS))
_BEGIN, _END, _STRING, _COLON = _MARKS

LONG_TEXT = 2048
"""Bytes from which on `find` is faster than `split`, as long as there are not many strings."""
MANY_PARTS = 512
LONG_PART = 64


class TooManyStrings(Exception):
    """More strings than allowed."""


def duplicate_key(text: bytes, strings_max: int) -> str | None:
    """The first key that an object has twice, or None.  Raises TooManyStrings."""
    if b"\\" in text:
        # Afterwards every quote begins or ends a string, and no string has changed its meaning.
        text = text.replace(b"\\\\", b"\\u005c").replace(b'\\"', b"\\u0022")
    parts = _split(text)
    strings = parts[1::2]
    if len(strings) > strings_max:
        raise TooManyStrings
    if b"\\" in text:
        strings = _without_escapes(strings)
    if len(set(strings)) == len(strings):
        return None
    found = _first_duplicate(_structure(parts[0::2]), strings)
    return None if found is None else found.decode(errors="replace")


def _split(text: bytes) -> list[bytes]:
    """`text.split(b'"')`: what stands between strings and in them, in turn."""
    if len(text) < LONG_TEXT:
        return text.split(b'"')
    parts: list[bytes] = []
    begin, end = 0, text.find(b'"')
    while end >= 0:
        if len(parts) == MANY_PARTS:
            return parts + text[begin:].split(b'"')
        parts.append(text[begin:end])
        begin = end + 1
        end = text.find(b'"', begin)
    parts.append(text[begin:])
    return parts


def _structure(between: list[bytes]) -> bytes:
    """The marks alone, without empty objects: each that is left has a key."""
    short = [part if len(part) < LONG_PART else _shortened(part) for part in between]
    return b'"'.join(short).translate(None, _NOT_MARKS).replace(b"{}", b"")


def _shortened(part: bytes) -> bytes:
    """`part` without the numbers that stand before its first brace."""
    braces = (part.find(b"{"), part.find(b"}"))
    first = min((at for at in braces if at >= 0), default=len(part))
    colon = b":" if part.find(b":", 0, first) >= 0 else b""
    return colon + part[first:]


def _first_duplicate(structure: bytes, strings: list[bytes]) -> bytes | None:
    """strings: one for each quote of the structure."""
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


def _without_escapes(strings: list[bytes]) -> list[bytes]:
    """The same strings, each spelled in the one way that has no escapes."""
    at = [n for n, string in enumerate(strings) if b"\\" in string]
    plain = json.loads(b'["' + b'","'.join(strings[n] for n in at) + b'"]')
    result = list(strings)
    for n, string in zip(at, plain, strict=True):
        result[n] = string.encode(errors="surrogatepass")
    return result
