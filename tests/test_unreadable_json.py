"""Whoever reads JSON of others says that it cannot be read, however wrong it is."""

import re
from pathlib import Path

import pytest

import select_service
from select_service.client.errors import SelectorError
from select_service.client.streams import read_event
from select_service.core.discovery.engine_facts import _json
from select_service.edge.discovery.kubernetes_api import STATUS_BYTES_MAX, _told
from select_service.edge.health.answers import MalformedAnswer, completion, generated
from select_service.edge.health.results import _refusal_text
from select_service.planner.connectors.kube.api import KubeError, decoded, error_of
from select_service.planner.edge.selector_source import _refusal

DEEP = b"[" * 3000 + b"]" * 3000
HOSTILE = {
    "no JSON": b"<html>",
    "a text that is not UTF-8": b'{"message":"\xff","error":"\xff","choices":[{"logprobs":'
    b'{"tokens":["\xff"]}}],"meta_info":{"finish_reason":{"type":"\xff"}}}',
    "deep": b'{"x":' + DEEP + b"}",
    "deep where it is read": b'{"message":'
    + DEEP
    + b',"choices":'
    + DEEP
    + b',"text":'
    + DEEP
    + b"}",
}


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE)
def content(request):
    return request.param


def test_an_engine(content):
    with pytest.raises(MalformedAnswer):
        completion(content, False)
    with pytest.raises(MalformedAnswer):
        generated(content)
    assert _refusal_text(content) == ""
    assert _json(content) == {}


def test_an_api_server(content):
    assert _told(content) == content[:100].decode(errors="replace")
    assert str(error_of(500, content)) == "status 500"
    with pytest.raises(KubeError, match="not what was expected"):
        decoded(content, dict[str, int])


def test_words_of_an_api_server_that_would_be_endless():
    """As YAML, aliases of aliases are more than fits into memory."""
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    for n in range(1, 30):
        bomb += f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n"
    bomb += "message: *a29\n"
    assert len(bomb) < STATUS_BYTES_MAX
    assert _told(bomb.encode()) == bomb[:100]
    assert _told(b'{"kind":"Status","message":"pods is forbidden"}') == "pods is forbidden"


def test_a_selector(content):
    assert _refusal(content).code == ""
    with pytest.raises(SelectorError):
        read_event(b"data: " + content)


def test_nobody_expects_one_of_these_errors_alone():
    alone = re.compile(r"except msgspec\.(DecodeError|MsgspecError)\b")
    root = Path(select_service.__file__).parent
    assert [each.name for each in root.rglob("*.py") if alone.search(each.read_text())] == [
        "engine_api.py"  # of simulated engines
    ]
