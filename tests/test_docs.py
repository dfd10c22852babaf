"""The documents say what the service does: examples are replayed, tables are complete."""

import json
import re
from pathlib import Path

import pytest

from select_service.settings.table import SETTINGS, WITHOUT_EFFECT
from tests.api.in_process import Api
from tests.api.routes import ROUTES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
INTERFACE = (DOCS / "api.md").read_text()
CONFIGURATION = (DOCS / "configuration.md").read_text()
EXAMPLE = re.compile(r"```http\n(\w+) (\S+)\n(.*?)```\n```json (\d+)\n(.*?)```", re.DOTALL)
FIELDS_OF_A_RUN = re.compile(r'"(age_seconds|expires_in_seconds|router_id)": [0-9.]+')

NAMED_FILE = re.compile(r"(?<![\w./*])\w[\w./-]*\.(?:py|md|toml|sh|ya?ml|lock|svg)\b")
FILES_OF_USERS = {
    "keys.toml",
    "replicas.toml",
    "workers.yaml",
    "sources.yaml",
    "prometheus.yml",
    "planner.yaml",
    "now.yaml",
    "other.yaml",
}
FILES = [
    str(path)
    for folder in ("select_service", "indexer", "tests", "scripts", "docs")
    for path in (ROOT / folder).rglob("*.*")
] + [str(path) for path in ROOT.iterdir()]


def in_order(body):
    """The body as text, but for what differs from run to run."""
    return FIELDS_OF_A_RUN.sub(r'"\1": 0', json.dumps(body))


def test_the_examples_of_the_interface_happen_as_written():
    examples = EXAMPLE.findall(INTERFACE)
    assert len(examples) == INTERFACE.count("```http") == INTERFACE.count("```json ")
    with Api() as api:
        for method, path, sent, status, expected in examples:
            answer = api.call(method, path, json.loads(sent) if sent else None)
            assert (answer.status, in_order(answer.body)) == (
                int(status),
                in_order(json.loads(expected)),
            ), f"{method} {path}"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation_id)
def test_every_route_is_in_the_document_of_the_interface(route):
    assert f"{route.method} {route.path}" in INTERFACE


def test_every_code_of_a_refusal_is_in_the_document_of_the_interface():
    for route in ROUTES:
        for refusal in route.refusals:
            assert f"| {refusal.status} | `{refusal.code}` |" in INTERFACE


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_in_the_document_of_the_configuration(setting):
    rows = [line for line in CONFIGURATION.splitlines() if line.startswith("|")]
    for name in setting.variables + ((setting.flag,) if setting.flag else ()):
        (row,) = [row for row in rows if f"`{name}`" in row]
        if setting.default is not None:
            default = setting.default
            text = ",".join(default) if isinstance(default, tuple) else str(default)
            shown = text.removesuffix(".0").lower()
            assert f"| `{shown}" in row


def test_variables_without_effect_are_in_the_document_of_the_configuration():
    assert all(f"`{name}`" in CONFIGURATION for name in WITHOUT_EFFECT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_project_leads_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page):
    """A name may leave out folders at its beginning; the changelog also speaks of what was."""
    if page.name == "changelog.md":
        return
    named = set(NAMED_FILE.findall(page.read_text())) - FILES_OF_USERS
    missing = [name for name in named if not any(f.endswith(f"/{name}") for f in FILES)]
    assert missing == []


def test_the_layout_names_every_room_and_nothing_that_is_not_there():
    """Rooms as folders, `name/`; modules whose names are of several words are found as files."""
    layout = (DOCS / "architecture.md").read_text().partition("## Layout")[2].split("```")[1]
    rooms = {
        path.parent.name
        for package in ("select_service", "indexer")
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert rooms - set(re.findall(r"\w+(?=/)", layout)) == set()
    modules = set(re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b(?!/)", layout))
    scripts = {path.name for path in (ROOT / "scripts").iterdir()}
    assert modules - {Path(file).stem for file in FILES} - scripts == set()
