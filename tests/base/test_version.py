"""Test that all places have the same version."""

import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from select_service.base import version

ROOT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_newest_changes_are_those_of_this_version():
    headings = re.findall(r"^## (\S+) \((.+)\)$", (ROOT / "docs/changelog.md").read_text(), re.M)
    assert headings[0][0] == DECLARED


def test_a_source_tree_that_is_not_installed_has_its_version(monkeypatch):
    def none(_name: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(version, "version", none)
    assert version.package_version() == f"{DECLARED}+source"


def test_examples_of_the_api_name_this_version():
    files = (
        "docs/reference/api-operations.md",
        "select_service/api/endpoints/inspection.py",
        "select_service/api/endpoints/doctor.py",
    )
    for file in files:
        shown = re.findall(r'"version": "(\d+\.\d+\.\d+)"', (ROOT / file).read_text())
        assert set(shown) == {DECLARED}, file


def test_the_chart_has_this_version():
    chart = (ROOT / "scripts/deploy/helm/Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): (\S+)$", chart, re.M) == [DECLARED, DECLARED]


def test_a_commit_that_is_released_is_tagged_with_its_version():
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    command = ("git", "-C", ROOT, "tag", "--points-at", "HEAD", "v*")
    tags = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert set(tags) <= {f"v{DECLARED}"}
