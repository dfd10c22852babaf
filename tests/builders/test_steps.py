"""Tests of the count of the service's lines, wherever the checkout is."""

import pytest

from tests.builders.steps import PACKAGE, lines_of


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (f"{PACKAGE}core/selector.py", 2),
        ("/home/user/select_service/tests/test_it.py", 0),
        ("/home/user/select_service/.venv/lib/python3.11/site-packages/numpy/__init__.py", 0),
    ],
)
def test_only_lines_of_the_package_count_in_a_folder_of_its_name(path, lines):
    code = compile("first = 1\nsecond = 2\n", path, "exec")
    assert lines_of(lambda: exec(code, {})) == lines
