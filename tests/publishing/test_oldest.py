"""Tests that scripts/test_oldest installs the lowest versions of pyproject.toml (fake pip)."""

import os
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

from tests.publishing.checkout import copy_scripts, mark_current
from tests.publishing.client_packages import PROJECT

PYTHON = """\
#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$WORK/.venv-oldest/lib/python3.11/site-packages" ;;
    "-m pip "*) echo "$*" >>"$WORK/asked"; exit "$PIP" ;;
    *) exec {python} "$@" ;;
esac
"""
COMPILERS = ("numba", "llvmlite", "numpy")


def oldest() -> list[str]:
    """Return the lower bounds of the compiler as requirements for pip."""
    found = map(Requirement, PROJECT["optional-dependencies"]["server"])
    bounds = {
        each.name: next(part.version for part in each.specifier if part.operator == ">=")
        for each in found
        if each.name in COMPILERS
    }
    return [f"{name}=={bounds[name]}" for name in COMPILERS]


def install(folder: Path, pip: int) -> subprocess.CompletedProcess[str]:
    """Run `--install` in a checkout with a fake pip, which ends with this status."""
    if not (folder / "scripts").exists():
        copy_scripts(folder, ("test_oldest", "environment.sh", "kernel_tests.sh"))
        python = folder / ".venv/bin/python"
        python.write_text(PYTHON.format(python=sys.executable))
        python.chmod(0o755)
        mark_current(folder)
    environment = os.environ | {"WORK": str(folder), "PIP": str(pip)}
    command = [folder / "scripts" / "test_oldest", "--install"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def pip_packages(folder: Path) -> list[list[str]]:
    """Return the packages of each call of pip."""
    lines = (folder / "asked").read_text().splitlines()
    return [[word for word in line.split() if "==" in word] for line in lines]


def test_the_oldest_versions_are_installed_once(tmp_path: Path) -> None:
    done = install(tmp_path, 0)
    assert done.returncode == 0, done.stderr
    assert pip_packages(tmp_path) == [oldest()]
    (others,) = (tmp_path / ".venv-oldest").rglob("*.pth")
    assert str(tmp_path) in others.read_text().splitlines()
    assert install(tmp_path, 0).returncode == 0
    assert pip_packages(tmp_path) == [oldest()]


def test_a_failed_installation_is_reported_and_repeated(tmp_path: Path) -> None:
    done = install(tmp_path, 1)
    assert done.returncode == 3
    assert "cannot be installed: is a package registry reachable?" in done.stderr
    assert install(tmp_path, 0).returncode == 0
    assert len(pip_packages(tmp_path)) == 2
