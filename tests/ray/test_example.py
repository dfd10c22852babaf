"""Tests that the fleet of the documents runs with a single command and serves its purpose."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "ray_fleet.py"
SMALL = ("--users", "8", "--turns", "6", "--engines", "3")


def cached_percent(router: str) -> float:
    done = subprocess.run(
        [sys.executable, EXAMPLE, *SMALL, "--router", router],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"48 requests .*\ncached: ([\d.]+)%", done.stdout)
    assert found, done.stdout + done.stderr
    return float(found[1])


def test_selectors_choose_cached_ranks_more_often_than_serve() -> None:
    assert cached_percent("select-service") > cached_percent("serve") + 10
