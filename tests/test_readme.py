"""The README's commands work with its own worker; its section on Ray: tests/ray/test_readme.py."""

import json
import re
from pathlib import Path

import pytest

from tests.api.in_process import Api

README = (Path(__file__).parent.parent / "README.md").read_text()
CURL = re.compile(
    r"^curl -s (?:-X +(?P<method>\w+) +)?localhost:8092(?P<path>\S+)"
    r"(?:[^\n]*?(?: \\\n)?[^\n]*? -d '(?P<body>[^']*)')?",
    re.MULTILINE,
)


def commands(section):
    """(method, path, body) of the curl lines of a section."""
    (text,) = re.findall(rf"^#+ {section}\n(.*?)(?=^#+ |\Z)", README, re.DOTALL | re.MULTILINE)
    for found in CURL.finditer(text):
        body = None if found["body"] is None else json.loads(found["body"])
        yield found["method"] or ("GET" if body is None else "POST"), found["path"], body


@pytest.fixture
def api():
    """A service that has heard of the README's worker, whose event endpoints it never reaches."""
    with Api(DYN_USE_KV_EVENTS="false") as service:
        for method, path, body in commands("2. Register the workers"):
            assert service.call(method, path, body).status == 201
        yield service


def test_the_readme_registers_one_worker():
    (command,) = commands("2. Register the workers")
    assert command[:2] == ("POST", "/workers")


def test_the_calls_of_the_readme_succeed_as_shown(api):
    calls = list(commands("3. Ask"))
    assert [path.rsplit("/", 1)[-1] for _, path, _ in calls] == [
        "select_and_reserve",
        "prefill_complete",
        "output_block",
        "request-123",
    ]
    answers = [api.call(method, path, body) for method, path, body in calls]
    assert [answer.status for answer in answers] == [200] * 4
    assert all("warnings" not in answer.body for answer in answers)
    shown = re.search(r"```json\n(\{\"reservation_id\".*?)```", README, re.DOTALL)
    assert answers[0].body == json.loads(shown[1])
