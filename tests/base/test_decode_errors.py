"""Tests that every reader of foreign JSON reports unreadable JSON, however wrong."""

import re
from pathlib import Path

import pytest

import select_service
from select_service.adapters.discovery.kubernetes_watch import STATUS_BYTES_MAX, _status_text
from select_service.adapters.health.attempt_results import _refusal_text
from select_service.adapters.health.canary_responses import (
    MalformedResponse,
    parse_completion,
    parse_generated,
)
from select_service.client.errors import SelectorError
from select_service.client.streamed_answers import decode_event
from select_service.core.registry.discovery.engine_facts import _decode_object
from select_service.net.kubernetes_session import KubernetesError
from select_service.planner.connectors.kube.api_requests import (
    answer_error,
    decode_answer,
)
from select_service.planner.connectors.selector_client import decode_refusal

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
    with pytest.raises(MalformedResponse):
        parse_completion(content, False)
    with pytest.raises(MalformedResponse):
        parse_generated(content)
    assert _refusal_text(content) == ""
    assert _decode_object(content) == {}


def test_an_api_server(content):
    assert _status_text(content) == content[:100].decode(errors="replace")
    assert str(answer_error(500, content)) == "status 500"
    with pytest.raises(KubernetesError, match="unexpected answer"):
        decode_answer(content, dict[str, int])


def test_words_of_an_api_server_that_would_be_endless():
    """Read as YAML, aliases of aliases would not fit into memory."""
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    for n in range(1, 30):
        bomb += f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n"
    bomb += "message: *a29\n"
    assert len(bomb) < STATUS_BYTES_MAX
    assert _status_text(bomb.encode()) == bomb[:100]
    assert _status_text(b'{"kind":"Status","message":"pods is forbidden"}') == "pods is forbidden"


def test_a_selector(content):
    assert decode_refusal(content).code == ""
    with pytest.raises(SelectorError):
        decode_event(b"data: " + content)


def test_no_module_catches_only_some_decode_errors():
    alone = re.compile(r"except msgspec\.(DecodeError|MsgspecError)\b")
    root = Path(select_service.__file__).parent
    assert [each.name for each in root.rglob("*.py") if alone.search(each.read_text())] == [
        "worker_api.py"  # JSON of simulated engines
    ]
