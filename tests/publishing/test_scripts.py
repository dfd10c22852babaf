"""Tests that scripts end with the status of their work, not with the status of the cleanup."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
OWN = {"docs", "indexer", "scripts", "select_service", "tests"}
OF_USERS = {
    *("boto3", "datasets", "dynamo", "fastapi", "flask", "grpc", "huggingface_hub", "jax"),
    *("kubernetes", "lmcache", "matplotlib", "mooncake", "nixl", "pandas", "prophet", "ray"),
    *("redis", "scipy", "sglang", "statsmodels", "tensorrt_llm", "tokenizers", "torch"),
    *("torchvision", "tqdm", "transformers", "triton", "vllm"),
}
"""Packages that run next to this project and need not be installed here."""
TRAP = re.compile(r"^ *trap .* EXIT$", re.MULTILINE)
NAME = re.compile(r"\$\{?(\w+)")
GONE = "4194305"
"""Number above all process numbers of Linux, and not the name of a file here."""


def traps() -> list[tuple[str, str]]:
    """Return (script, line) of all traps at the end of scripts."""
    texts = {
        path.name: path.read_text()
        for path in sorted(SCRIPTS.iterdir())
        if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env bash")
    }
    return [(name, line.strip()) for name, text in texts.items() for line in TRAP.findall(text)]


def status_after(trap: str, folder: Path) -> int:
    """Return the status of a successful script after a trap with targets that are all gone."""
    given = "; ".join(f"{name}=({GONE})" for name in NAME.findall(trap))
    script = f"set -euo pipefail; {given}\n{trap}\nexit 0"
    return subprocess.run(["bash", "-c", script], cwd=folder, check=False).returncode


def test_there_are_traps():
    assert {"test", "test_slow", "lock"} <= {script for script, _ in traps()}


@pytest.mark.parametrize(("script", "trap"), traps())
def test_tidying_up_does_not_change_the_status(script, trap, tmp_path):
    assert status_after(trap, tmp_path) == 0


def test_a_trap_that_fails_would_be_noticed(tmp_path):
    trap = """trap 'kill "${background[@]}" 2>/dev/null; rm -f "$report"' EXIT"""
    assert status_after(trap, tmp_path) == 1


AUDIT = """\
#!/bin/sh
while [ "$1" != --output ]; do shift; done
[ -z "$ANSWER" ] || printf '%s' "$ANSWER" > "$2"
[ -n "$ANSWER" ] || echo "ConnectionError: nobody there" >&2
exit 1
"""


@pytest.mark.parametrize(
    ("package", "status", "told"),
    [
        (None, 2, "no database of advisories answered"),
        ({"skip_reason": "not found"}, 2, "does not know 1 of 1 packages"),
        ({"version": "1", "vulns": []}, 0, "no advisory concerns its 1 packages"),
        (
            {"version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]},
            1,
            "a.lock: a 1: PYSEC-1, mended in 2",
        ),
    ],
)
def test_an_audit_never_takes_silence_for_good_news(tmp_path, package, status, told):
    tool, lock = tmp_path / "pip-audit", tmp_path / "a.lock"
    tool.write_text(AUDIT)
    tool.chmod(0o755)
    lock.write_text("a==1\n")
    answer = "" if package is None else json.dumps({"dependencies": [{"name": "a"} | package]})
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ANSWER": answer}
    done = subprocess.run(
        [SCRIPTS / "audit", lock], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, told in done.stdout + done.stderr) == (status, True), done


def script_folders() -> Iterator[Path]:
    """Yield the folders that Python puts first on the path: those of scripts started by file name.

    A folder with `__init__` is a package, which is started with `-m`.
    """
    yield ROOT
    for top in sorted(OWN):
        folders = [ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir())]
        for folder in folders:
            files = [path for path in folder.iterdir() if path.is_file()]
            if not (folder / "__init__.py").exists() and any(map(is_started, files)):
                yield folder


def is_started(file: Path) -> bool:
    begin = file.read_bytes()[:80].split(b"\n")[0]
    return file.suffix == ".py" or (begin.startswith(b"#!") and b"python" in begin)


def modules_in(folder: Path) -> set[str]:
    """Return the names that `import` finds in the folder."""
    packages = {path.name for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    return packages | {path.stem for path in folder.glob("*.py")}


def test_the_folders_of_scripts_are_found():
    assert {SCRIPTS, SCRIPTS / "bench", ROOT / "docs" / "examples"} <= set(script_folders())


@pytest.mark.parametrize(
    "folder", list(script_folders()), ids=lambda path: str(path.relative_to(ROOT))
)
def test_scripts_hide_no_package(folder):
    others = {*sys.stdlib_module_names, *packages_distributions(), *OF_USERS} - OWN
    assert not modules_in(folder) & others


OF_SCRIPTS = ("bench", "metrics", "pages", "proofs", "publishing")
"""Folders of tests with a script as the subject."""


def imports_of(folder: Path, package: str) -> set[str]:
    """Return the files below that import the package, relative to the checkout."""
    found = re.compile(rf"^ *(?:from|import) {package}\b", re.MULTILINE)
    texts = {path: path.read_text() for path in sorted(folder.rglob("*.py"))}
    return {str(path.relative_to(ROOT)) for path, text in texts.items() if found.search(text)}


def test_scripts_import_nothing_of_tests():
    assert imports_of(SCRIPTS, "tests") == set()
    assert imports_of(ROOT / "tests" / "publishing", "tests"), "the pattern finds nothing"


def test_only_builders_and_tests_of_scripts_import_scripts():
    others = {
        path
        for path in imports_of(ROOT / "tests", "scripts")
        if not path.startswith(tuple(f"tests/{each}/" for each in OF_SCRIPTS))
    }
    names = ("launched_process", "reference_python", "simulated_engines")
    assert others == {f"tests/builders/{name}.py" for name in names}


def test_scripts_name_tests_that_exist():
    texts = {path.name: path.read_text() for path in SCRIPTS.iterdir() if path.is_file()}
    named = {
        (name, path)
        for name, text in texts.items()
        for path in re.findall(r"\btests/[\w/]+\.py", text)
    }
    assert len(named) > 20
    assert sorted(pair for pair in named if not (ROOT / pair[1]).exists()) == []
