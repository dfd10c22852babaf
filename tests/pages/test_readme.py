"""Tests that every command of the README runs: calls in this process, settings by the parser.

The section on Ray runs in tests/ray/test_readme.py.
"""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

from select_service.config.settings_loader import parse_config
from tests.builders.in_process import Api

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "start").glob("*.md"))]
WORDS_MAX = 900


OUTSIDE_QUOTES = r"(?=(?:[^']*'[^']*')*[^']*$)"


def commands():
    """Yield the words of each command of the README, in order."""
    for block in BLOCKS:
        for line in re.split(rf"\n{OUTSIDE_QUOTES}", block.replace("\\\n", " ")):
            for command in re.split(rf"&&{OUTSIDE_QUOTES}", line):
                if words := shlex.split(command, comments=True):
                    yield words


COMMANDS = list(commands())


def calls():
    """Yield (method, path, body) of the curl commands."""
    for words in COMMANDS:
        if words[0] == "curl":
            (address,) = [word for word in words if word.startswith("localhost:8092")]
            body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
            method = words[words.index("-X") + 1] if "-X" in words else "POST" if body else "GET"
            yield method, address.removeprefix("localhost:8092"), body


def worker():
    """Return the body of the README's registration."""
    (body,) = [body for _, path, body in calls() if path == "/workers"]
    return body


def test_the_calls_succeed_as_shown():
    with Api(DYN_USE_KV_EVENTS="false") as api:
        answers = [api.call(method, path, body) for method, path, body in calls()]
    assert [answer.status for answer in answers] == [201, 200, 200, 200, 200]
    assert all("warnings" not in answer.body for answer in answers)
    shown = re.search(r"```json\n(\{\"selection_id\".*?)```", README, re.DOTALL)
    assert answers[1].body == json.loads(shown[1])


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_is_one_that_runs(words):
    """Commands that need an engine, a network or much time are checked as far as possible."""
    if words[0] == "curl":
        return  # called above
    if words[:2] == ["select-service", "doctor"]:
        assert words[2:] == ["--probe"]  # runs in tests/process/test_doctor.py
    elif words[0] == "select-service":
        assert parse_config(words[1:], {})["port"] == 8092
    elif words[0] == "vllm":
        events = json.loads(words[words.index("--kv-events-config") + 1])
        sent = {"endpoint": worker()["kv_events_endpoint"]}
        sent["replay_endpoint"] = worker()["replay_endpoint"]
        ports = {name: address.rpartition(":")[2] for name, address in sent.items()}
        assert {name: events[name].rpartition(":")[2] for name in ports} == ports
        assert events["enable_kv_cache_events"]
    elif words[0].startswith("./scripts/"):
        assert (ROOT / words[0]).stat().st_mode & 0o100  # run by their own tests and by .ci/run
    elif words[:2] == ["pip", "install"]:
        files = [ROOT / word for word in words if word.endswith(".lock")]
        assert all(file.exists() for file in files)
    else:
        assert words[0] in ("python3", ".")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_of_first_steps_are_python(page):
    for program in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.M):
        ast.parse(program)


def test_the_readme_is_short():
    assert len(README.split()) <= WORDS_MAX
