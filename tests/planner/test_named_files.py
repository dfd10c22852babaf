"""Tests of `check`, which reads all files that a file names, and changes nothing."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from select_service.planner.__main__ import main

PREFILL = {"prefill_isl": [100, 200, 300, 400, 500], "prefill_ttft": [10, 12, 14, 16, 18]}


def write_file(path: Path, content: object) -> str:
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    path.write_text(text)
    return str(path)


def run_check(folder: Path, deployment: dict[str, Any], *words: str, **top: Any) -> int:
    own = {"name": "chat", "model_name": "m", "mode": "prefill", **deployment}
    document = {"selectors": ["http://a:1"], "deployments": [own], **top}
    file = folder / "planner.yaml"
    file.write_text(yaml.safe_dump(document))
    return main(["check", str(file), *words])


@pytest.mark.parametrize(
    ("named", "top", "fault"),
    [
        ({"profile_results_dir": "/nowhere"}, {}, "profile_results_dir: /nowhere: selected_pre"),
        ({"warmup_trace": "/nowhere"}, {}, "warmup_trace: `/nowhere` cannot be read"),
        (
            {"prometheus": {"url": "http://p:1", "token_file": "/nowhere"}},
            {},
            "prometheus.token_file: `/nowhere` cannot be read",
        ),
        (
            {"prometheus": {"url": "http://p:1", "ca_file": "/nowhere"}},
            {},
            "prometheus.ca_file: ",
        ),
        ({"fpm": {"decode": ["tcp:nowhere"]}}, {}, "fpm endpoint `tcp:nowhere`"),
        (
            {"connector": {"kind": "virtual", "path": "/nowhere/x"}},
            {},
            "/nowhere/x: directory /nowhere does not exist",
        ),
        (
            {"connector": {"kind": "dry-run", "path": "/nowhere/x"}},
            {},
            "/nowhere/x: directory /nowhere does not exist",
        ),
        ({}, {"api_key_file": "/nowhere"}, "api_key_file: `/nowhere` cannot be read"),
        ({}, {"ca_file": "/nowhere"}, "ca_file, client_cert_file: "),
        ({}, {"decision_log": "/nowhere/x"}, "decision_log: directory /nowhere does not exist"),
        ({}, {"report": {"path": "/nowhere/x"}}, "report: directory /nowhere does not exist"),
    ],
)
def test_an_unreadable_file_is_one_line(
    named: dict[str, Any],
    top: dict[str, Any],
    fault: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_check(tmp_path, named, **top) == 2
    said = capsys.readouterr().err
    assert fault in said
    assert said.count("\n") == 1
    assert run_check(tmp_path, named, "--file-only", **top) == 0


def test_contents_are_read_as_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = write_file(tmp_path / "prefill_raw_data.json", PREFILL)
    assert run_check(tmp_path, {"profile_results_dir": str(tmp_path)}) == 0
    write_file(Path(flat), PREFILL | {"prefill_ttft": [9, 8, 7, 6, 5]})
    bad = {
        "profile_results_dir": str(tmp_path),
        "connector": {"kind": "virtual", "path": write_file(tmp_path / "state", "{}x")},
    }
    log = write_file(tmp_path / "log", "no lines")
    assert run_check(tmp_path, bad, decision_log=log) == 2
    said = capsys.readouterr().err
    assert "no model of prefill: expected at least 5 points" in said
    assert "is not a decision file of a planner" in said
    assert f"`{log}` is no log of a planner" in said
    assert said.count("\n") == 3


def test_nothing_is_created(tmp_path: Path) -> None:
    before = {"planner.yaml"}
    paths = {"connector": {"kind": "virtual", "path": str(tmp_path / "state")}}
    report = {"path": str(tmp_path / "report.html")}
    log = str(tmp_path / "log.jsonl")
    assert run_check(tmp_path, paths, decision_log=log, report=report) == 0
    assert {each.name for each in tmp_path.iterdir()} == before
