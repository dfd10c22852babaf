"""Tests with some vectors of each format that guided the planner's development."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vectors.formats import format_of

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "decisions.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.get("id"))
def test_vector(case: dict[str, object]) -> None:
    assert list(format_of(case).play(case)) == []


def test_the_formats_need_no_library_that_the_predictors_environment_has_not() -> None:
    code = "import sys; sys.modules['aiohttp'] = None; import tests.vectors.formats"
    subprocess.run((sys.executable, "-c", code), check=True, timeout=60)
