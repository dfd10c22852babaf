"""Tests that the documents match the service: examples are replayed, tables are complete."""

import json
import re
from pathlib import Path

import pytest

from scripts.docs.__main__ import main as generate
from tests.builders.in_process import Api
from tests.builders.routes import ROUTES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
REFERENCE = DOCS / "reference"
INTERFACE = "\n".join(
    (REFERENCE / name).read_text() for name in ("api-workers.md", "api.md", "api-operations.md")
)
"""Pages of the API in the order in which their examples build on each other."""
EXAMPLE = re.compile(r"```http\n(\w+) (\S+)\n(.*?)```\n```json (\d+)\n(.*?)```", re.DOTALL)
FIELDS_OF_A_RUN = re.compile(
    r'"(age_seconds|expires_in_seconds|idle_seconds|router_id|sequence|writer_id)": [0-9.]+'
)

NAMED_FILE = re.compile(r"(?<![\w./*-])\w[\w./-]*\.(?:py|md|toml|sh|ya?ml|lock|svg)\b")
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
    for folder in ("select_service", "indexer", "tests", "scripts", "docs", "requirements")
    for path in (ROOT / folder).rglob("*.*")
] + [str(path) for path in ROOT.iterdir()]


def in_order(body):
    """Return the body as text without values that differ from run to run."""
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


def test_every_code_of_a_refusal_is_in_the_document_of_the_interface():
    for route in ROUTES:
        for refusal in route.refusals:
            assert f"| {refusal.status} | `{refusal.code}` |" in INTERFACE


def test_the_generated_pages_are_current():
    assert generate(["--check"]) == 0, "run python -m scripts.docs"


def anchors(page):
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_project_leads_somewhere(page):
    missing = []
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(f"{target}#{anchor}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page):
    """A name may leave out folders at its beginning; the changelog also names former files."""
    if page.name == "changelog.md":
        return
    named = set(NAMED_FILE.findall(page.read_text())) - FILES_OF_USERS
    missing = [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in FILES)]
    assert missing == []
