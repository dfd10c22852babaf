"""Tests that continuous integration runs the suite in a folder with the name of most clones."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = """\
#!/usr/bin/env bash
cd "$(dirname "${BASH_SOURCE[0]}")/.."
find . -type f | sort
basename "$PWD"
exit 3
"""
"""Fake of scripts/test, which lists the files and the name of the checkout, and fails."""


ENVIRONMENTS = {
    *re.findall(r"(\.venv(?:-\w+)?)\b", (ROOT / ".gitignore").read_text()),
    *(path.name for path in ROOT.glob(".venv*")),
}


def run_in(checkout: Path) -> tuple[int, list[str]]:
    """Return the exit status and the output of `.ci/run` in a checkout that has SUITE."""
    for name in ("scripts/test", "tests/new.py", *(f"{each}/bin/python" for each in ENVIRONMENTS)):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text(SUITE if name == "scripts/test" else "")
    (checkout / "scripts/test").chmod(0o755)
    (checkout / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci")
    command = [checkout / ".ci" / "run"]
    temporary = checkout.parent / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert list(temporary.iterdir()) == [], "the copy stays"
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("name", ["main", "select_service", "with a space"])
def test_the_suite_runs_in_a_folder_of_that_name_and_its_status_counts(tmp_path, name):
    status, lines = run_in(tmp_path / name)
    assert (status, lines[-1]) == (3, "select_service")
    assert {"./tests/new.py", "./scripts/test", "./.ci/run"} <= set(lines)


def test_the_copy_leaves_out_all_environments(tmp_path):
    """Environments contain the path of the checkout for which the environment was made."""
    assert {".venv", ".venv-oldest"} <= ENVIRONMENTS
    _, lines = run_in(tmp_path / "main")
    assert [line for line in lines if ".venv" in line] == []
