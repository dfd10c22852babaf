"""Vectors of the same form as those that the planner was built by, some of each."""

import json
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
