"""One version, wherever it is said."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from select_service import version

ROOT = Path(__file__).resolve().parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_newest_changes_are_those_of_this_version() -> None:
    headings = re.findall(r"^## (\S+) \((.+)\)$", (ROOT / "docs/changelog.md").read_text(), re.M)
    assert headings[0][0] == DECLARED


def test_a_source_tree_that_is_not_installed_says_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(_name: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(version, "version", none)
    assert version.package_version() == f"{DECLARED}+source"


def test_examples_of_the_api_name_this_version() -> None:
    shown = re.findall(r'"version": "(\d+\.\d+\.\d+)"', (ROOT / "docs/api.md").read_text())
    source = (ROOT / "select_service/api/inspection.py").read_text()
    assert set(shown + re.findall(r'"version": "(\d+\.\d+\.\d+)"', source)) == {DECLARED}
