"""Tests of the page about Kubernetes: values of the chart, existing secrets, parsed flags."""

import re
from pathlib import Path
from typing import get_args

import yaml

from select_service.auth.roles import Role
from select_service.config.settings_loader import parse_config
from select_service.planner.config_loader import convert_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start" / "kubernetes.md").read_text()
CHART = yaml.safe_load((ROOT / "scripts" / "deploy" / "helm" / "values.yaml").read_text())
BLOCKS = [
    yaml.safe_load(re.sub("(?m)^   ", "", block) if block.startswith("   ") else block)
    for block in re.findall(r"```yaml\n(.*?) *```", PAGE, re.DOTALL)
]
VALUES = [block for block in BLOCKS if "apiVersion" not in block]
FLAGS = re.findall(r"`((?:keys|tls|curve|monitoring|settings): \{[^`]*\})`", PAGE)
GIVEN = [*VALUES, *(yaml.safe_load(flag.replace("...", "x")) for flag in FLAGS)]


def paths(values, chart, prefix=""):
    """Yield the paths of values that the chart does not have."""
    for name, value in values.items():
        if name not in chart:
            yield prefix + name
        elif isinstance(value, dict) and chart[name]:
            yield from paths(value, chart[name], f"{prefix}{name}.")


def secrets(values):
    """Yield the names of the secrets that values use."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from secrets(value)
        elif name in ("secret", "keySecret"):
            yield value


def test_values_are_those_of_the_chart():
    assert len(VALUES) == 2
    assert [path for values in GIVEN for path in paths(values, CHART)] == []


def test_every_secret_is_made_by_a_command_of_the_page():
    made = set(re.findall(r"create secret generic ([\w-]+) ", PAGE))
    made |= {block["spec"]["secretName"] for block in BLOCKS if "spec" in block}
    assert {secret for values in GIVEN for secret in secrets(values)} == made


def test_every_file_of_a_secret_is_made_by_a_command_of_the_page():
    made = set(re.findall(r"> (\S+)$|--file (\S+)", PAGE, re.M))
    stored = set(re.findall(r"--from-file=([\w.]+)", PAGE))
    assert stored <= {name for names in made for name in names}
    assert {CHART["keys"]["keysFile"], CHART["keys"]["peerKey"]} <= stored
    assert {CHART["monitoring"]["keyName"], CHART["planner"]["keyName"]} <= stored


def test_roles_exist():
    assert set(re.findall(r"--role (\w+)", PAGE)) <= set(get_args(Role))


def test_settings_are_flags():
    (settings,) = [values["settings"] for values in VALUES if "settings" in values]
    config = parse_config([f"--{name}={value}" for name, value in settings.items()], {})
    assert config["health_checks"] == "on"


def test_the_planner_accepts_its_file():
    (config,) = [values["planner"]["config"] for values in VALUES if "planner" in values]
    assert convert_config({"selectors": ["http://selector:8092"], **config}).deployments
