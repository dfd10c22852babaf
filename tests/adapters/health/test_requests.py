"""Tests of canary requests, byte for byte or, for random parts, by length."""

import json
import re

from select_service.adapters.health.canary_requests import make_canary_request


def request_parts(*args):
    request = make_canary_request(*args)
    return request.path, request.headers, json.loads(request.content)


def test_the_full_form():
    path, headers, body = request_parts("full", "m", (11, 12), 16, None)
    salt = body.pop("cache_salt")
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", salt)
    assert (path, headers) == ("/v1/completions", {})
    assert body == {
        "model": "m",
        "prompt": [11, 12],
        "max_tokens": 16,
        "temperature": 0,
        "top_p": 1,
        "seed": 0,
        "logprobs": 5,
        "stream": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
    }


def test_every_salt_is_another():
    salts = {request_parts("full", "m", (1,), 1, None)[2]["cache_salt"] for _ in range(100)}
    assert len(salts) == 100


def test_the_plain_form_has_nothing_that_is_not_of_openai():
    path, headers, body = request_parts("plain", "m", "Hello", 3, 2)
    assert (path, headers) == ("/v1/completions", {"x-data-parallel-rank": "2"})
    assert body == {
        "model": "m",
        "prompt": "Hello",
        "max_tokens": 3,
        "temperature": 0,
        "logprobs": 5,
    }


def test_the_form_of_sglangs_own_route():
    path, _, body = request_parts("generate", "m", (11, 12), 16, None)
    assert path == "/generate"
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", body.pop("extra_key"))
    assert body == request_parts("generate_plain", "m", (11, 12), 16, None)[2]
    assert body == {
        "input_ids": [11, 12],
        "sampling_params": {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 5,
    }


def test_sglangs_own_route_finds_the_rank_in_the_body_and_takes_text():
    _, _, body = request_parts("generate", "m", "Hello", 16, 1)
    assert (body["text"], body["routed_dp_rank"]) == ("Hello", 1)
    assert "input_ids" not in body
