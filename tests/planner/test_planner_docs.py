"""Tests of docs/guides/planner.md: its settings, files and commands match the planner."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from select_service.planner import __main__ as command
from select_service.planner.config_loader import convert_config

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "guides" / "planner.md").read_text()


def files() -> list[Any]:
    blocks = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    found = [yaml.safe_load(block) for block in blocks]
    kept = next(yaml.safe_load_all((DOCS / "examples" / "planner.yaml").read_text()))
    return [*found, yaml.safe_load(kept["data"]["planner.yaml"])]


def test_files_of_the_documentation_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("select_service.planner.validation.find_spec", lambda name: True)
    whole = [each for each in files() if "deployments" in each]
    assert len(whole) >= 2
    for each in whole:
        assert convert_config(each).deployments


def test_help_and_faults_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.main(["--version"]) == 0
    assert command.main([]) == 2
    assert "no deployment given" in capsys.readouterr().err
    assert command.main(["--selector", "http://s"]) == 2
    assert "--model-name is missing" in capsys.readouterr().err
    assert command.main(["--model-name", "m"]) == 2
    assert "--selector is missing" in capsys.readouterr().err
    assert command.main(["--config", "f.yaml", "--model-name", "m"]) == 2
    assert command.main(["--config", str(tmp_path / "none.yaml")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert command.main(["--selector", "s", "--model-name", "m"]) == 2
    assert "does not begin with http" in capsys.readouterr().err
    assert command.main(["--port", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_can_be_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "planner.yaml"
    path.write_text("selectors: [http://s]\ndeployments: [{name: a, model_name: m}]\n")
    assert command.main(["check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: good, 1 deployment(s): a\n"
    path.write_text("selectors: [http://s]\ndeployments: [{name: a}]\n")
    assert command.main(["check", str(path)]) == 2
    assert "missing required field `model_name`" in capsys.readouterr().err
