"""Tests of the errors that the surviving gateway sends when an answer fails after its begin."""

import importlib.util
import json
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "docs/examples/surviving_gateway/gateway_selector.py"


@pytest.fixture(scope="module")
def selector():
    spec = importlib.util.spec_from_file_location("gateway_selector", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"error": "none is there", "code": "no_schedulable_workers"}, "none is there"),
        ({"error": {"message": "the prompt is too long", "type": "b"}}, "the prompt is too long"),
        ({"message": "of another form"}, '{"message": "of another form"}'),
        ({"error": {"message": 3}}, '{"error": {"message": 3}}'),
        ([1], "[1]"),
    ],
)
def test_an_event_has_the_words_of_an_answer_and_no_answer_in_quotes(selector, content, message):
    event = json.loads(selector.GatewayError(502, json.dumps(content).encode()).render_event())
    assert event == {"error": {"message": message, "code": 502}}


def test_text_that_is_no_json_is_passed_on(selector):
    event = json.loads(selector.GatewayError(500, b"<p>\xff").render_event())
    assert event["error"]["message"] == "<p>\ufffd"


def test_the_message_of_the_gateway_occurs_once(selector):
    event = json.loads(selector.GatewayError.from_message(503, "no engine is left").render_event())
    assert event == {"error": {"message": "no engine is left", "code": 503}}
