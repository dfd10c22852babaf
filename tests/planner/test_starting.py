"""What ends the start of a planner: one line, before anything is asked or scaled."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from select_service.file_claims import claim_file
from select_service.planner.__main__ import ONE_THREAD, main

FOLDER = "FOLDER"


@pytest.mark.parametrize(
    ("top", "deployment", "said"),
    [
        ({"api_key_file": f"{FOLDER}/none"}, {}, "token file FOLDER/none: "),
        ({"api_key_file": f"{FOLDER}/empty"}, {}, "token file FOLDER/empty: there is no token"),
        (
            {"ca_file": f"{FOLDER}/none"},
            {},
            "client_key_file: `FOLDER/none` cannot be read",
        ),
        (
            {"ca_file": f"{FOLDER}/planner.yaml"},
            {},
            "`FOLDER/planner.yaml`: there is no",
        ),
        ({"report": {"path": f"{FOLDER}/no/r.html"}}, {}, "report: there is no directory"),
        ({}, {"connector": {"kind": "dry-run", "path": FOLDER}}, "it is a directory"),
        ({}, {"connector": {"kind": "dry-run", "path": f"{FOLDER}/planner.yaml"}}, "no JSON lines"),
        ({}, {"connector": {"kind": "virtual", "path": f"{FOLDER}/planner.yaml"}}, "not readable"),
        ({"decision_log": f"{FOLDER}/planner.yaml"}, {}, "holds no JSON lines"),
        ({"decision_log": f"{FOLDER}/pipe"}, {}, "it is a pipe, give a regular file"),
        ({"api_key_file": f"{FOLDER}/pipe"}, {}, "it is a pipe, give a regular file"),
        ({"ca_file": f"{FOLDER}/pipe"}, {}, "it is a pipe, give a regular file"),
        ({}, {"connector": {"kind": "virtual", "path": f"{FOLDER}/pipe"}}, "it is a pipe"),
        ({}, {"warmup_trace": f"{FOLDER}/pipe"}, "it is a pipe"),
        (
            {"decision_log": f"{FOLDER}/log", "report": {"path": f"{FOLDER}/log"}},
            {},
            "report and decision_log both mean `FOLDER/log`",
        ),
        ({}, {"warmup_trace": f"{FOLDER}/planner.yaml"}, "warmup_trace: "),
    ],
)
def test_a_file_that_is_not_what_it_should_be(
    top: dict[str, Any],
    deployment: dict[str, Any],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").write_text("\n")
    os.mkfifo(tmp_path / "pipe")
    own = {"name": "chat", "model_name": "llama", **deployment}
    document = {"selectors": ["http://127.0.0.1:9"], "deployments": [own], **top}
    path = tmp_path / "planner.yaml"
    path.write_text(yaml.safe_dump(document).replace(FOLDER, str(tmp_path)))
    assert main(["--config", str(path), "--port", "0"]) == 2
    fault = capsys.readouterr().err
    assert said.replace(FOLDER, str(tmp_path)) in fault
    assert fault.count("\n") == 1


def test_a_second_planner_on_one_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "decisions.jsonl"
    with claim_file(log):
        words = ["--selector", "http://127.0.0.1:9", "--model-name", "m", "--port", "0"]
        assert main([*words, "--decision-log", str(log)]) == 2
    assert f"decision_log: `{log}` is kept by another process" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--host", "--decision-log"])
@pytest.mark.parametrize("value", ["", "a\0b"])
def test_no_text_is_not_every_address_nor_the_folder(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--selector", "http://127.0.0.1:9", "--model-name", "m", "--port", "0"]
    assert main([*words, flag, value]) == 2
    assert f"{flag}: expected some text" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("4", "4")])
def test_linear_algebra_has_one_thread_unless_somebody_says_otherwise(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ONE_THREAD:
        monkeypatch.setenv(name, before or "")
        if before is None:
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["select-planner", "--version"])
    assert main() == 0
    assert [os.environ[name] for name in ONE_THREAD] == [after, after]
