"""Tests of duplicate keys in an object against the slow way: a parser that collects all pairs."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.base.errors import InvalidBody
from select_service.http import duplicate_keys
from select_service.http.body_codec import BODY_STRINGS_MAX, decode_body
from select_service.http.duplicate_keys import TooManyStrings, find_duplicate_key

MANY = 1_000_000
ANY = msgspec.json.Decoder()


class Twice(Exception):
    """Duplicate key of an object."""


def slowly(text: bytes) -> str | None:
    def pairs(found: list[tuple[str, object]]) -> None:
        keys = [key for key, _ in found]
        for n, key in enumerate(keys):
            if key in keys[:n]:
                raise Twice(key)

    try:
        json.loads(text, object_pairs_hook=pairs)
    except Twice as error:
        return str(error)
    return None


BLANKS = st.sampled_from(["", "", "", " ", "\n\t"])
LETTERS = st.sampled_from(["a", "b", '"', "\\", "/", ":", "{", "}", ",", "é", "\n", "u0061"])


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """Return a string in any of its spellings."""
    parts = []
    for letter in draw(st.lists(LETTERS, max_size=3)):
        plain = json.dumps(letter)[1:-1]
        wide = "".join(f"\\u{ord(each):04x}" for each in letter)
        raw = json.dumps(letter, ensure_ascii=False)[1:-1]
        parts.append(draw(st.sampled_from([plain, raw, wide, plain.replace("/", "\\/")])))
    return '"' + "".join(parts) + '"'


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda items, b: f"[{b}" + f",{b}".join(items) + "]", st.lists(values), BLANKS)


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.builds(lambda k, b, v: f"{k}{b}:{b}{v}", spelled(), BLANKS, values)
    pairs = st.lists(pair, max_size=4)
    return st.builds(lambda items, b: "{" + b + ",".join(items) + b + "}", pairs, BLANKS)


PLAIN = spelled() | st.sampled_from(["1", "-2.5e3", "true", "null", "[]", "{}", "[1,2,3]"])
TEXTS = st.recursive(PLAIN, lambda inner: arrays(inner) | objects(inner), max_leaves=20)


@given(TEXTS)
def test_it_finds_the_same_keys_as_a_parser(text: str) -> None:
    body = text.encode()
    assert (find_duplicate_key(body, MANY) is None) == (slowly(body) is None)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b'{"a":1,"a":2}', "a"),
        (b'{"a":{"b":1},"c":[{"a":1},{"b":2,"b":3}]}', "b"),
        (b'{"a":{"a":{"a":{}}}}', None),
        (b'[{"a":1},{"a":1}]', None),
        (b'{"a":"a","b":"b"}', None),
        (b'{"a":"{","b":"}","c":":"}', None),
        (b'{"a":{},"b":{},"a":{}}', "a"),
        (b'{"a":{"b":1},"a":1}', "a"),
        (b'{"a" : 1 ,\r\n\t"a"\n:2}', "a"),
        (rb'{"\u0061":1,"a":2}', "a"),
        (rb'{"\"":1,"\u0022":2}', '"'),
        (rb'{"\\":1,"\u005c":2}', "\\"),
        (rb'{"\\\"":1,"x":"\\","\\\"":2}', '\\"'),
        (rb'{"a\/b":1,"a/b":2}', "a/b"),
        (rb'{"a":"\"a\":1","b":"\\\\"}', None),
        (b'{"":1,"":2}', ""),
        ('{"é":1,"\\u00e9":2}'.encode(), "é"),
    ],
)
def test_the_key_is_named(text: bytes, key: str | None) -> None:
    assert find_duplicate_key(text, MANY) == key


def test_a_refusal_names_the_key_and_only_its_beginning() -> None:
    key = "k" * 1000
    with pytest.raises(InvalidBody, match=rf"duplicate field `{'k' * 64}`$"):
        decode_body(f'{{"{key}":1,"{key}":2}}'.encode(), ANY)


def test_text_that_is_not_json_is_rejected_first() -> None:
    """The structure between the strings is only read after the decoder accepted the text."""
    for text in (b'}"a":1,"a"', b'{"a"', b'"a":"a":', b'{"a":1}}', b"{]"):
        with pytest.raises(Exception, match="JSON"):
            decode_body(text, ANY)


@given(TEXTS, TEXTS)
def test_numbers_and_strings_of_any_number_change_nothing(first: str, second: str) -> None:
    """Long texts, and texts of many strings, are read in other ways."""
    numbers = ",".join(["123"] * duplicate_keys.LONG_TEXT)
    many = ",".join(f'{{"k":{n}}}' for n in range(duplicate_keys.MANY_PARTS))
    for between in (numbers, many):
        body = f'[{first},{between},{{"x":[{between}],"y":{second}}},{second}]'.encode()
        assert (find_duplicate_key(body, MANY) is None) == (slowly(body) is None)


def test_strings_are_counted() -> None:
    body = b'{"a":["b","c"]}'
    assert find_duplicate_key(body, 3) is None
    with pytest.raises(TooManyStrings):
        find_duplicate_key(body, 2)


def test_numbers_and_empty_objects_are_not_walked() -> None:
    """A body may have millions of numbers and empty objects."""
    many = b"{},1," * 1000 + b"0"
    assert len(duplicate_keys._structure_of([b"{", b":[" + many + b"],", b":1}"])) < 10


class Undecided:
    """Form with a decoder that must not be called."""

    def decode(self, body):
        raise AssertionError("decoded")


@pytest.mark.parametrize("item", [b'{"a":"b"}', b'"\\\\"', b'"a"'])
def test_far_too_many_strings_are_refused_before_a_decoder_makes_them(item):
    text = b"[" + b",".join([item] * (3 * BODY_STRINGS_MAX)) + b"]"
    with pytest.raises(InvalidBody, match="more than 65536 strings"):
        decode_body(text, Undecided())


def test_escaped_quotes_are_no_strings():
    text = b'["' + b'\\"' * (3 * BODY_STRINGS_MAX) + b'"]'
    assert decode_body(text, ANY) == ['"' * (3 * BODY_STRINGS_MAX)]
