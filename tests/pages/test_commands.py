"""Tests that commands and files of pages are accepted: flags of the service, YAML of the guides."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from select_service.config.admission_rules import admission_rules
from select_service.config.canary_file import read_canary_config
from select_service.config.discovery_sources import source_settings
from select_service.config.settings_loader import parse_config
from select_service.planner.config_loader import convert_config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
CODE = re.compile(r"```bash\n(.*?)```|((?:^ {4}.*\n)+)", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^|[\s$&|(])select-service((?: -.*)?)$")
ENDS = ("|", "&", "&&", ">")


def service_commands():
    """Yield (page, arguments) of every start of the service."""
    for page in PAGES:
        for bash, indented in CODE.findall(page.read_text()):
            for line in re.sub(r"\\\n\s*", " ", bash or indented).split("\n"):
                if found := COMMAND.search(line.strip()):
                    words = shlex.split(found[1], comments=True)
                    end = next((i for i, word in enumerate(words) if word in ENDS), len(words))
                    yield str(page.relative_to(ROOT)), [w for w in words[:end] if w != "…"]


COMMANDS = list(service_commands())


def blocks(name, language="yaml"):
    """Return the code blocks of a guide, without the indentation of a list."""
    text = (ROOT / "docs" / "guides" / name).read_text()
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(f"(?m)^{indent}", "", block) for indent, block in found]


def test_commands_are_found():
    assert len(COMMANDS) > 10


@pytest.mark.parametrize(("page", "arguments"), COMMANDS, ids=lambda part: str(part)[:60])
def test_flags_of_a_command_are_accepted(page, arguments):
    parse_config(arguments, {})


def test_the_policy_classes_of_the_guide_are_accepted(tmp_path):
    (text,) = blocks("admission.md")
    file = tmp_path / "classes.yaml"
    file.write_text(text)
    assert admission_rules(parse_config(["--policy-config", str(file)], {})).queue


def test_the_canary_file_of_the_guide_is_accepted(tmp_path):
    guide = (ROOT / "docs" / "guides" / "health.md").read_text()
    text = re.search(r"### Canary file\n\n((?: {4}.*\n)+)", guide)[1]
    file = tmp_path / "canaries.yaml"
    file.write_text(re.sub(r"(?m)^ {4}", "", text))
    read_canary_config(str(file))


def test_the_sources_of_the_guide_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources, workers, pods, services = blocks("discovery.md")
    Path("workers.yaml").write_text(workers)
    for text in (sources, pods, services):
        Path("sources.yaml").write_text(text)
        assert source_settings(parse_config(["--discovery-config", "sources.yaml"], {}))


def test_the_planner_file_of_the_guide_is_accepted():
    whole, connector = blocks("planner.md")
    document = yaml.safe_load(whole)
    assert convert_config(document).deployments
    document["deployments"][0] |= {"mode": "disagg", **yaml.safe_load(connector)}
    assert convert_config(document).deployments
