"""Tests of the parsed answers of engines."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.adapters.health import canary_responses
from select_service.adapters.health.canary_responses import (
    MalformedResponse,
    parse_completion,
    parse_generated,
)
from select_service.core.health.answers.answer_check import CanaryAnswer, judge_answer
from select_service.core.health.health_kinds import CheckKind
from tests.builders.toy_engine import ToyEngine, generate, no_numbers

ALL = {"return_tokens_as_token_ids": True, "return_token_ids": True}
STEPS = generate([5, 6, 7], 4)
IDS = [step.read_token for step in STEPS]
TEXTS = [f"<{step.read_token}>" for step in STEPS]
LOGPROBS = [step.logprob for step in STEPS]


def answer_document(style, asked=ALL, steps=STEPS):
    return ToyEngine(style).of_completions(steps, asked)


def plain(answer):
    """Return the answer with its likely tokens as a list."""
    return answer._replace(top=list(answer.top))


def to_json(document):
    return json.dumps(document).encode()


def change_answer(path, value, style="vllm"):
    """Return an engine's answer with one changed value."""
    document = answer_document(style)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return to_json(document)


def test_vllm_names_ids_everywhere():
    read = parse_completion(to_json(answer_document("vllm")), by_ids=False)
    assert plain(read.answer) == CanaryAnswer(IDS, LOGPROBS, [step.likely for step in STEPS])
    assert (read.engine, read.weight_version) == ("vllm", "")


def test_sglang_compares_texts_since_its_likely_tokens_have_no_ids():
    read = parse_completion(to_json(answer_document("sglang")), by_ids=False)
    likely = [{f"<{token}>": x for token, x in step.likely.items()} for step in STEPS]
    assert plain(read.answer) == CanaryAnswer(TEXTS, LOGPROBS, likely)
    assert (read.engine, read.weight_version) == ("sglang", "default")


def test_ids_of_sglang_are_compared_with_configured_ids():
    assert (
        list(parse_completion(to_json(answer_document("sglang")), by_ids=True).answer.tokens) == IDS
    )


def test_without_ids_texts_are_compared():
    assert (
        parse_completion(to_json(answer_document("vllm", {})), by_ids=False).answer.tokens == TEXTS
    )
    assert (
        parse_completion(to_json(answer_document("vllm", {})), by_ids=True).answer.tokens == TEXTS
    )


def test_ids_in_place_of_texts_are_read():
    asked = {"return_tokens_as_token_ids": True}
    assert (
        parse_completion(to_json(answer_document("vllm", asked)), by_ids=True).answer.tokens == IDS
    )


def test_generate_of_sglang_names_ids_everywhere():
    read = parse_generated(to_json(ToyEngine("sglang").of_generate(STEPS)))
    assert plain(read.answer) == CanaryAnswer(IDS, LOGPROBS, [step.likely for step in STEPS])
    assert (read.engine, read.weight_version) == ("sglang", "default")


def test_a_near_tie_is_found_in_every_form():
    first, *others = STEPS
    second = next(token for token in first.likely if token != first.read_token)
    near = first._replace(likely={**first.likely, second: first.logprob})
    turned = near._replace(read_token=second)
    for style in ("vllm", "sglang"):
        right = parse_completion(
            to_json(answer_document(style, steps=[near, *others])), by_ids=False
        ).answer
        other = parse_completion(
            to_json(answer_document(style, steps=[turned, *others])), by_ids=False
        ).answer
        assert judge_answer(right, other, 0.02).kind is CheckKind.PASS


def test_the_weights_that_vllm_names_are_read():
    spans = [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 4}]
    body = change_answer(("choices", 0, "weight_versions"), spans)
    assert parse_completion(body, by_ids=False).weight_version == "2"


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"<html>",
    b"\xff\xfe",
    b'{"error": {"message": "oh"}}',
    b'{"choices": []}',
    b'{"choices": null}',
    b"[" * 100_000,
    change_answer(("choices", 0, "logprobs", "token_logprobs"), ["x"]),
    change_answer(("choices", 0, "logprobs", "tokens"), None),
    change_answer(("choices", 0, "token_ids"), ["x"]),
    change_answer(("choices", 0, "finish_reason"), "abort"),
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_unreadable_answers_are_malformed(body):
    with pytest.raises(MalformedResponse) as caught:
        parse_completion(body, by_ids=False)
    assert len(str(caught.value)) <= canary_responses.FAULT_CHARS_MAX
    with pytest.raises(MalformedResponse):
        parse_generated(body)


def test_answers_aborted_by_sglang_are_malformed():
    document = ToyEngine("sglang").of_generate(STEPS)
    document["meta_info"]["finish_reason"] = {"type": "abort", "message": "queue"}
    with pytest.raises(MalformedResponse, match="abort"):
        parse_generated(to_json(document))


INCOMPLETE = [
    change_answer(("choices", 0, "logprobs"), None),
    change_answer(("choices", 0, "logprobs", "token_logprobs"), LOGPROBS[:-1]),
    change_answer(("choices", 0, "token_ids"), []),
]


@pytest.mark.parametrize("body", INCOMPLETE, ids=range(len(INCOMPLETE)))
def test_lengths_that_differ_are_left_for_the_judge(body):
    read = parse_completion(body, by_ids=False).answer
    assert judge_answer(CanaryAnswer(IDS, LOGPROBS), read, 0.3).kind is CheckKind.MALFORMED


FIELDS = ["finish_reason", "stop_reason", "matched_stop", "weight_versions", "prompt_logprobs"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, 7, "x", [], [[1]], {"a": {"b": 1}}])
def test_unchecked_fields_may_have_any_value(field, value):
    body = change_answer(("choices", 0, field), value)
    assert list(parse_completion(body, by_ids=False).answer.tokens) == IDS
    body = change_answer(("metadata",), value)
    assert list(parse_completion(body, by_ids=False).answer.tokens) == IDS


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "null", "-9999.0"])
def test_invalid_numbers_are_judged_as_drift(number):
    text = json.dumps(answer_document("vllm")).replace(str(LOGPROBS[1]), number)
    read = parse_completion(text.encode(), by_ids=False).answer
    assert judge_answer(CanaryAnswer(IDS, LOGPROBS), read, 0.3).kind is CheckKind.LOGIT_DRIFT


def test_logits_that_are_no_numbers_look_so():
    body = to_json(answer_document("vllm", steps=no_numbers(STEPS)))
    read = parse_completion(body, by_ids=False).answer
    assert judge_answer(CanaryAnswer([0] * 4, LOGPROBS), read, 0.3).kind is CheckKind.LOGIT_DRIFT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.binary() | JSON.map(lambda document: json.dumps(document).encode()))
def test_any_bytes_are_parsed_or_malformed(body):
    for read in (lambda: parse_completion(body, by_ids=False), lambda: parse_generated(body)):
        with contextlib.suppress(MalformedResponse):
            read()
