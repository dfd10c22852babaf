"""Tests that every benchmark script starts: rarely used scripts must not break unnoticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.polling import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path.name
    for path in (ROOT / "scripts/bench").glob("*.py")
    if "argparse.ArgumentParser(" in path.read_text()
)


@pytest.mark.parametrize("name", FILES)
def test_help_shows_the_usage(name: str) -> None:
    command = (sys.executable, str(ROOT / "scripts/bench" / name), "--help")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
