"""Tests of the checkout's scripts and lock files that need no network."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = ["demo", "test", "test_slow", "check", "lock", "beside_engines"]
LOCKS = {
    "requirements/server.lock": ["server"],
    "requirements/demo.lock": ["demo"],
    "requirements/dev.lock": ["dev"],
}


def locked_versions(lock: str) -> dict[str, set[str]]:
    """Return every version that the lock file pins by package; markers may pin several."""
    versions: dict[str, set[str]] = {}
    for line in (ROOT / lock).read_text().splitlines():
        if found := re.match(r"([a-z0-9-]+)==(\S+)", line):
            versions.setdefault(found[1], set()).add(found[2])
    return versions


def direct_requirements(extras: list[str]) -> set[str]:
    """Return the requirements of the project and of the extras, including named extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = set()
    for line in project["dependencies"] + _lines_of(extras, project["optional-dependencies"]):
        found.add(re.split(r"[^A-Za-z0-9._-]", line)[0].lower().replace("_", "-"))
    return found


def _lines_of(extras: list[str], lines: dict[str, list[str]]) -> list[str]:
    found = []
    for extra in extras:
        for line in lines[extra]:
            if named := re.fullmatch(r"select-service\[(.*)\]", line):
                found += _lines_of(named[1].split(","), lines)
            else:
                found.append(line)
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_explains_itself_from_any_directory(script: str, tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / script), "--help"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"usage: scripts/{script}" in shown.stdout


@pytest.mark.parametrize("script", [*(f"scripts/{name}" for name in SCRIPTS), ".ci/run"])
def test_every_script_is_strict(script: str) -> None:
    text = (ROOT / script).read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text


def test_a_machine_without_python_gets_a_clear_error(tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "env"):
        found = subprocess.run(["which", tool], capture_output=True, text=True, check=True)
        (tmp_path / tool).symlink_to(found.stdout.strip())
    command = [str(ROOT / "scripts" / "demo"), "--help"]
    ended = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "needs Python 3.11" in ended.stderr


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_names_every_direct_requirement(lock: str) -> None:
    assert direct_requirements(LOCKS[lock]) <= locked_versions(lock).keys()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_pins_hashes_and_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    entries = re.split(r"\n(?=[a-z0-9-]+==)", text)[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert "--index" not in text


def test_the_lock_files_agree_on_every_version() -> None:
    dev = locked_versions("requirements/dev.lock")
    for lock in LOCKS:
        assert all(dev[name] == pinned for name, pinned in locked_versions(lock).items())


def test_the_service_alone_does_not_pull_in_the_demo() -> None:
    assert not {"rich", "httpx"} & locked_versions("requirements/server.lock").keys()
