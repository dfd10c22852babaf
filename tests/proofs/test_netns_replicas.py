"""Test of the script that disturbs selectors in network namespaces, in a run of a few seconds."""

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
    lose_reservations(file)
    again = run("check", file)
    assert again.returncode == 1
    assert "no reservation is lost" in again.stdout


def lose_reservations(file):
    """Remove the rows without an end by a client from the settled state.

    A single row is not enough: bookings without an answer may be missing.
    """
    history = json.loads(file.read_text())
    ended = {each["name"] for each in history["operations"] if each["kind"] == "end"}
    for view in history["settled"]["views"]:
        view["rows"] = [row for row in view["rows"] if row["name"] in ended]
    file.write_text(json.dumps(history))
