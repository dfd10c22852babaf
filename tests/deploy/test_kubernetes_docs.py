"""Tests that docs/reference/chart.md names every value of the chart with the right default."""

import re

import pytest
import yaml

from tests.deploy.chart import CHART

ROOT = CHART.parents[2]
PAGE = (ROOT / "docs" / "reference" / "chart.md").read_text()
TOLD_IN_WORDS = {"resources", "planner.resources"}


def leaves(values, prefix=""):
    """Yield (path, default) of values that are no mapping, or a mapping that users fill."""
    for name, value in values.items():
        path = prefix + name
        if isinstance(value, dict) and value and path not in TOLD_IN_WORDS:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


VALUES = dict(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))


def displayed_default(default):
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list):
        return f"[{', '.join(default)}]"
    return str(default)


def documented():
    """Yield (path, default as shown) of each row; a row may name several values."""
    section = PAGE.partition("## Values")[2].partition("\n## ")[0]
    for names, defaults in re.findall(r"^\| (`[^|]+) \| ?([^|]*?) ?\| ", section, re.M):
        paths = re.findall(r"`([^`]+)`", names)
        found = re.findall(r"`([^`]*)`", defaults)
        given = iter(found)
        for path in paths:
            has_none = path in TOLD_IN_WORDS or VALUES.get(path) == ""
            yield path, "" if has_none else next(given, "")
        assert next(given, None) is None, f"too many defaults: {names}"


def test_every_value_is_in_the_document_and_no_other():
    paths = [path for path, _ in documented()]
    assert sorted(paths) == sorted(VALUES)


@pytest.mark.parametrize(("path", "default"), list(documented()))
def test_the_default_of_a_value_is_the_one_in_the_document(path, default):
    expected = "" if path in TOLD_IN_WORDS else displayed_default(VALUES[path])
    assert default == expected


def test_the_schema_has_every_value():
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    found = set()

    def walk(node, prefix):
        node = schema["definitions"][node["$ref"].split("/")[-1]] if "$ref" in node else node
        properties = node.get("properties", {})
        if not properties or prefix.rstrip(".") in TOLD_IN_WORDS:
            found.add(prefix.rstrip("."))
            return
        for name, inner in properties.items():
            walk(inner, f"{prefix}{name}.")

    walk(schema, "")
    assert found - {"global"} == set(VALUES)
