"""What docs/planner.md says of settings, files and commands is what the planner knows."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from select_service.planner import __main__ as command
from select_service.planner.config import DeploymentConfig, PlannerConfig
from select_service.planner.reading import DOCUMENT, config_of

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "planner.md").read_text()
SETTINGS = TEXT.split("## Settings")[1]


def rows() -> dict[str, tuple[str, str]]:
    """Setting -> its default and that of the document, as the table has them."""
    result = {}
    for line in SETTINGS.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            names = re.findall(r"`(\w+)`", cells[0])
            defaults = cells[1].split(", ") if len(names) > 1 else [cells[1]]
            if len(defaults) != len(names):
                defaults = defaults[:1] * len(names)
            for name, default in zip(names, defaults, strict=True):
                result[name] = default.strip("`"), cells[3].strip("`")
    return result


def test_every_setting_has_a_row() -> None:
    assert set(rows()) >= set(DeploymentConfig.__struct_fields__)


def test_the_defaults_are_those_of_the_table() -> None:
    fields, defaults = DeploymentConfig.__struct_fields__, DeploymentConfig.__struct_defaults__
    known = dict(zip(fields[-len(defaults) :], defaults, strict=True))
    for name, (told, _) in rows().items():
        default = known.get(name)
        if isinstance(default, bool):
            assert told == str(default).lower(), name
        elif isinstance(default, int | float):
            assert float(told) == default, name
        elif isinstance(default, str):
            assert told == default, name


def test_what_the_document_has_otherwise_stands_in_the_last_column() -> None:
    said = {name: document for name, (_, document) in rows().items() if document}
    expected = {name: str(value).lower() for name, value in DOCUMENT.items() if name != "step"}
    assert said == expected


def test_the_file_s_own_settings_are_named() -> None:
    for name in PlannerConfig.__struct_fields__:
        assert f"`{name}`" in SETTINGS, name


def files() -> list[Any]:
    blocks = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    found = [yaml.safe_load(block) for block in blocks]
    kept = next(yaml.safe_load_all((DOCS / "examples" / "planner.yaml").read_text()))
    return [*found, yaml.safe_load(kept["data"]["planner.yaml"])]


def test_files_of_the_documentation_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("select_service.planner.judging.find_spec", lambda name: True)
    whole = [each for each in files() if "deployments" in each]
    assert len(whole) >= 2
    for each in whole:
        assert config_of(each).deployments


def test_help_and_faults_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.main(["--version"]) == 0
    assert command.main([]) == 2
    assert "what is to be planned?" in capsys.readouterr().err
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
