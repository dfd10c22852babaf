"""Documents that operators write, or that somebody wrote over: a line for each fault, no crash."""

import pytest

from select_service.access.keys_file import read_keys
from select_service.yaml_document import NESTING_MAX, decoded


@pytest.mark.parametrize("deep", [b"[" * 100_000, b"{a: " * 100_000, b"- " * 100_000])
def test_what_is_nested_deeply_is_refused_before_the_reader_runs_out_of_stack(deep, tmp_path):
    with pytest.raises(ValueError, match=f"nested deeper than {NESTING_MAX} levels"):
        decoded(deep)
    file = tmp_path / "keys.yaml"
    file.write_bytes(deep)
    with pytest.raises(ValueError, match="nested"):
        read_keys(file)


def test_what_is_nested_as_deeply_as_may_be_is_read():
    found = decoded(b"[" * NESTING_MAX + b"]" * NESTING_MAX)
    for _ in range(NESTING_MAX - 1):
        (found,) = found
    assert found == []


@pytest.mark.parametrize("text", [b"a: [1", b"a: b: c", b"\x00", b"!!int x", b"2001-99-99"])
def test_what_is_no_yaml_is_one_line(text):
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
        decoded(text)


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
        decoded(text)


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
    assert decoded(text) is not None
    assert decoded(text)


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_a_file_of_keys_does_not_keep_the_last_of_two_lists(ending, tmp_path):
    file = tmp_path / f"keys.{ending}"
    file.write_text("keys: []\nkeys: []\n")
    with pytest.raises(ValueError, match="'keys' of line 1 is repeated in line 2"):
        read_keys(file)
