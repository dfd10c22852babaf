"""Tests of faults that end the start of a planner with one line, before any request or scaling."""

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from select_service.files.file_claims import claim_file
from select_service.planner.__main__ import ONE_THREAD, main

FOLDER = "FOLDER"


@pytest.mark.parametrize(
    ("top", "deployment", "said"),
    [
        (
            {"api_key_file": f"{FOLDER}/none"},
            {},
            "token file `FOLDER/none` cannot be read: No",
        ),
        (
            {"api_key_file": f"{FOLDER}/empty"},
            {},
            "`FOLDER/empty` does not contain a key",
        ),
        (
            {"ca_file": f"{FOLDER}/none"},
            {},
            "client_key_file: `FOLDER/none` cannot be read",
        ),
        (
            {"ca_file": f"{FOLDER}/planner.yaml"},
            {},
            "`FOLDER/planner.yaml`: no PEM certificate in the file",
        ),
        ({"report": {"path": f"{FOLDER}/no/r.html"}}, {}, "report: directory "),
        (
            {"report": {"path": "/dev/null"}},
            {},
            "report: cannot use `/dev/null`: not a regular file but a device, give a regular file",
        ),
        (
            {"report": {"path": f"{FOLDER}/planner.yaml"}},
            {},
            "planner.yaml` is not a planner report",
        ),
        (
            {},
            {"connector": {"kind": "dry-run", "path": FOLDER}},
            "not a regular file but a directory, give a regular file",
        ),
        (
            {},
            {"connector": {"kind": "dry-run", "path": f"{FOLDER}/planner.yaml"}},
            "does not contain JSON lines",
        ),
        (
            {},
            {"connector": {"kind": "virtual", "path": f"{FOLDER}/planner.yaml"}},
            "is not a decision file of",
        ),
        (
            {"decision_log": f"{FOLDER}/planner.yaml"},
            {},
            "existing file has no JSON lines, give another",
        ),
        (
            {"decision_log": f"{FOLDER}/pipe"},
            {},
            "not a regular file but a pipe, give a regular file",
        ),
        (
            {"api_key_file": f"{FOLDER}/pipe"},
            {},
            "not a regular file but a pipe, give a regular file",
        ),
        ({"ca_file": f"{FOLDER}/pipe"}, {}, "not a regular file but a pipe, give a regular file"),
        (
            {},
            {"connector": {"kind": "virtual", "path": f"{FOLDER}/pipe"}},
            "not a regular file but a pipe",
        ),
        ({}, {"warmup_trace": f"{FOLDER}/pipe"}, "not a regular file but a pipe"),
        (
            {"decision_log": f"{FOLDER}/log", "report": {"path": f"{FOLDER}/log"}},
            {},
            "report and decision_log both name `FOLDER/log`",
        ),
        ({}, {"warmup_trace": f"{FOLDER}/planner.yaml"}, "warmup_trace: "),
    ],
)
def test_a_wrong_file_is_one_line(
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
    assert f"decision_log: `{log}` is in use by another process" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--host", "--decision-log"])
@pytest.mark.parametrize("value", ["", "a\0b"])
def test_no_text_is_not_every_address_nor_the_folder(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--selector", "http://127.0.0.1:9", "--model-name", "m", "--port", "0"]
    assert main([*words, flag, value]) == 2
    assert f"{flag}: expected some text" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["check"], ["replay"], ["profile"]])
def test_help_has_purpose_examples_and_the_kind_of_each_option(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    lead, _, rest = text.partition("usage: ")
    command = " ".join(("select-planner", *words))
    assert lead.count(f"\n  {command}") == 3
    assert rest.splitlines()[0].startswith(command)
    assert rest.splitlines()[1] == ""
    for actions in re.split(r"\n  (?=-)", rest)[1:]:
        names, *explained = actions.replace("\n", "  ").split("  ", 1)
        assert "".join(explained).strip(), names
        flag, _, kind = names.rpartition(" ")
        if kind != "--help" and flag:
            assert re.fullmatch(r"[A-Z,]+|\{[a-z,]+\}", kind), names
            assert "default" in actions or flag in _WITHOUT_DEFAULT, names


_WITHOUT_DEFAULT = {"--log", "--trace", "--selector", "--model-name", "--engine", "--out"}
"""Options without a default, one of which must be given."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prot", "1"], "unknown argument `--prot`: did you mean `--port`?"),
        (["--port", "x"], "--port: expected a whole number from 0 to 65535, got `x`"),
        (["--config"], "--config: a value is missing"),
        (["--ttft-ms", "0"], "--ttft-ms: expected a number above 0, got `0`"),
        (["check"], "is missing, see select-planner check --help"),
        (["check", "/nowhere.yaml"], "/nowhere.yaml: No such file or directory"),
        (["profile", "--engine", "http://x", "--out", "x", "--gpus", "0"], "--gpus: expected a"),
        (["profile", "--engine", "x", "--out", "x"], "--engine: "),
        (["replay", "--log", "/nowhere"], "--log: `/nowhere` cannot be read: No such file"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_advice(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    fault = capsys.readouterr().err
    assert fault.startswith("select-planner: error: ")
    assert said in fault
    assert fault.count("\n") == 1


def test_a_port_in_use_names_the_way_to_a_free_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["--selector", "http://127.0.0.1:9", "--model-name", "m", "--port", port]
        assert main(words) == 2
    assert f"127.0.0.1:{port} cannot be bound: Address already in use" in (
        fault := capsys.readouterr().err
    )
    assert "--port 0" in fault


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("4", "4")])
def test_linear_algebra_has_one_thread_by_default(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ONE_THREAD:
        monkeypatch.setenv(name, before or "")
        if before is None:
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["select-planner", "--version"])
    assert main() == 0
    assert [os.environ[name] for name in ONE_THREAD] == [after, after]
