"""Tests that documents of operators, even overwritten files, give a line per fault and no crash."""

import pytest

from select_service.auth.keys_file import read_api_keys
from select_service.config.discovery_sources import source_settings
from select_service.config.settings_loader import ConfigError, parse_config
from select_service.files.yaml_document import NESTING_MAX, REPEATED_MAX, decode_yaml


@pytest.mark.parametrize("deep", [b"[" * 100_000, b"{a: " * 100_000, b"- " * 100_000])
def test_deep_nesting_is_refused_before_the_reader_runs_out_of_stack(deep, tmp_path):
    with pytest.raises(ValueError, match=f"nested deeper than {NESTING_MAX} levels"):
        decode_yaml(deep)
    file = tmp_path / "keys.yaml"
    file.write_bytes(deep)
    with pytest.raises(ValueError, match="nested"):
        read_api_keys(file)


def test_the_deepest_allowed_nesting_is_read():
    found = decode_yaml(b"[" * NESTING_MAX + b"]" * NESTING_MAX)
    for _ in range(NESTING_MAX - 1):
        (found,) = found
    assert found == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"a: [1", "line 2, column 1: a list starting with \\[ has no \\]"),
        (b"a: {b: 1", "line 2, column 1: a mapping starting with \\{ has no \\}"),
        (b"a: [}", "line 1, column 5: a value is missing here"),
        (b"a: b: c", "line 1, column 5: a key is not allowed here: check the indentation"),
        (b"a:\n  - b: 1\n   c: 2\n", "line 3, column 4: the indentation does not fit"),
        (b"a:\n\t- b\n", "line 2, column 1: indent with spaces instead of tabs"),
        (b"a: @b\n", "line 1, column 4: indent with spaces instead of tabs, and quote"),
        (b'a: "b\nc: d\n', "line 3, column 1: a quoted text has no end"),
        (b'a: "\\q"', "line 1, column 5: unknown escape sequence in double quotes"),
        (b"a: *b\n", "line 1, column 4: \\* refers to an undefined anchor"),
        (b"--- 1\n--- 2\n", "line 2, column 1: a second document begins here"),
        (b"a: !mine x\n", r"line 1, column 4: tags \(!\) are not supported"),
        (b"a: b\nc: \x01", "line 2: invalid character"),
        (b"a: \xff", "line 1: invalid character: write the file in UTF-8"),
        (b"!!int x", "a value cannot be read, quote it if it is a text"),
        (b"a: 2001-99-99", "a value cannot be read, quote it if it is a text"),
        (b"a: .nan", "line 1: .nan is not a number: give one"),
        (b"a:\n- 1\n- .NaN\n", "line 3: .NaN is not a number"),
        (b"&a [*a]", r"`\*a` refers to its own parent"),
    ],
)
def test_invalid_yaml_is_an_error_of_one_line(text, told):
    with pytest.raises(ValueError, match=rf"\A{told}[^\n]*\Z") as error:
        decode_yaml(text)
    assert "byte string" not in str(error.value)


def test_quoted_values_and_longer_words_are_texts():
    assert decode_yaml(b"a: '.nan'\nb: .nano\n") == {"a": ".nan", "b": ".nano"}


def test_aliases_that_multiply_are_refused_before_they_are_written_out():
    lines = [b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for n in range(1, 30):
        ten = b", ".join([b"*a%d" % (n - 1)] * 10)
        lines += [b"a%d: &a%d [%s]" % (n, n, ten)]
    with pytest.raises(ValueError, match=f"repeat more than {REPEATED_MAX} values"):
        decode_yaml(b"\n".join(lines))
    assert decode_yaml(b"\n".join(lines[:5]))


@pytest.mark.parametrize("text", [b"? [a, b]\n: 1\n", b"? 2001-01-01\n: 1\n", b"? !!null\n: 1\n"])
def test_odd_keys_are_refused_with_an_error(text, tmp_path):
    file = tmp_path / "sources.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=r"\A--discovery-config [^\n]*\Z"):
        source_settings(parse_config(["--discovery-config", str(file)], {}))


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        (b"host: a\nport: 1\nhost: b\n", "host", (1, 3)),
        (b"- {a: 1}\n- b: 1\n  'c': [1, {d: 2}]\n  c: 2\n", "c", (3, 4)),
        (b'{"x": {"y": 1, "y": 2}}', "y", (1, 1)),
        (b"? a\n: 1\n? a\n: 2\n", "a", (1, 3)),
        (b"? [k, k]\n: {k: k}\n? b\n: 1\nb: 2\n", "b", (3, 5)),
    ],
)
def test_a_key_that_is_repeated_is_refused_with_its_lines(text, key, lines):
    with pytest.raises(ValueError, match=f"'{key}' of line {lines[0]} .* in line {lines[1]}$"):
        decode_yaml(text)


@pytest.mark.parametrize(
    "text",
    [
        b"a: {x: 1}\nb: {x: 1}\n",
        b"- x: 1\n- x: 1\n",
        b"a: b\nb: a\nc: [a, a, b]\n",
        b"a: &one {x: 1}\nb: &two {y: 1}\nc:\n  <<: *one\n  <<: *two\n  x: 2\n",
    ],
)
def test_the_same_word_elsewhere_is_no_repeated_key(text):
    assert decode_yaml(text) is not None
    assert decode_yaml(text)


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_a_file_of_keys_does_not_keep_the_last_of_two_lists(ending, tmp_path):
    file = tmp_path / f"keys.{ending}"
    file.write_text("keys: []\nkeys: []\n")
    with pytest.raises(ValueError, match="'keys' of line 1 is repeated in line 2"):
        read_api_keys(file)
