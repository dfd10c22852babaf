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
