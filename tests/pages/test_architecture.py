"""Tests that the page about the architecture names every package."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def packages_in(folder: str) -> list[str]:
    """Return the names of the packages directly in a folder."""
    return sorted(path.parent.name for path in (ROOT / folder).glob("*/__init__.py"))


@pytest.mark.parametrize(
    ("folder", "shown_as"),
    [("select_service", "select_service"), ("select_service/core", "core"), ("indexer", "indexer")],
)
def test_every_package_has_a_row(folder: str, shown_as: str) -> None:
    rows = [line for line in PAGE.split("\n") if line.startswith(f"| `{shown_as}/")]
    named = sorted(row.split("`")[1].removeprefix(f"{shown_as}/") for row in rows)
    assert named == packages_in(folder)
