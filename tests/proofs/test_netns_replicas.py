"""The script that disturbs selectors in network namespaces, for a few seconds."""

import json
import subprocess
import sys

import pytest

from scripts.netns_replicas.namespaced_replicas import why_not_available
from tests.builders.launched_process import ROOT

RUN_S_MAX = 280.0


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "scripts.netns_replicas", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


@pytest.mark.process
def test_a_short_history_breaks_no_guarantee(tmp_path):
    reason = why_not_available()
    file = tmp_path / "history.json"
    done = run("history", "--seconds", 6, "--without-leases", "--out", file)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    if reason is not None:
        assert done.stdout == f"skipped: {reason}\n"
        pytest.skip(reason)
    assert "verdict: 0 violations" in done.stdout
    assert "'kill': " in done.stdout
    lose_a_reservation(file)
    again = run("check", file)
    assert again.returncode == 1
    assert "no reservation is lost" in again.stdout


def lose_a_reservation(file):
    """Take a row out of the settled state that no client has ended."""
    history = json.loads(file.read_text())
    ended = {each["name"] for each in history["operations"] if each["kind"] == "end"}
    views = history["settled"]["views"]
    name = next(row["name"] for row in views[0]["rows"] if row["name"] not in ended)
    for view in views:
        view["rows"] = [row for row in view["rows"] if row["name"] != name]
    file.write_text(json.dumps(history))
