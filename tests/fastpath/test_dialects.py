"""Tests of bookings in the names of Dynamo 1.6, which the fast path answers as those of 1.3."""

import json
from typing import Any

import pytest

from tests.fastpath.prompts import hashes_of
from tests.fastpath.requests import AIOHTTP, request
from tests.fastpath.test_bookings import services
from tests.fastpath.test_equality import post, prompt_of

BUSY = "DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD"


def body_of(answer: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


def signed(hashes: list[int]) -> list[int]:
    return [number - 2**64 if number >= 2**63 else number for number in hashes]


@pytest.mark.parametrize("policy", ["reference", "work"])
@pytest.mark.parametrize("as_tokens", [True, False])
def test_the_fast_path_answers_a_whole_life_by_the_selection_id(policy, as_tokens):
    own_rank = {"selection_id": "s", "worker_id": 1, **prompt_of(30, as_tokens)}
    with services("--policy", policy) as two:
        said = [
            post("/select_and_reserve", {"selection_id": "s", **prompt_of(30, as_tokens)}),
            request("POST /reservations/s/prefill_complete", AIOHTTP),
            request("POST /reservations/s/output_block", AIOHTTP),
            request("DELETE /reservations/s", AIOHTTP),
            post("/reservations", own_rank),
            request("DELETE /reservations/s", AIOHTTP),
        ]
        answers = [two.send(each) for each in said]
        assert [each[9:12] for each in answers] == [b"200"] * 4 + [b"201", b"200"]
        assert two.answered == len(said)
        expected = signed(hashes_of(30)["sequence_hashes"])
        assert body_of(answers[0])["sequence_hashes"] == expected
        assert min(expected) < 0 < max(expected)


def test_a_selection_id_in_use_is_refused_by_the_ordinary_path():
    body = post("/select_and_reserve", {"selection_id": "s", **prompt_of(30, True)})
    with services() as two:
        assert two.send(body).startswith(b"HTTP/1.1 200")
        assert two.send(body).startswith(b"HTTP/1.1 409")
        assert two.answered == 1


@pytest.mark.parametrize("n_blocks", [2_000, 20_000])
def test_the_fast_path_returns_hashes_of_long_prompts(n_blocks):
    prompt = prompt_of(4 * n_blocks, False)
    with services() as two:
        answer = two.send(
            post("/select_and_reserve", {"selection_id": "s", **prompt}, compact=True)
        )
        assert body_of(answer)["sequence_hashes"] == signed(prompt["sequence_hashes"])
        assert two.answered == 1


def test_the_fast_path_judges_decode_busy():
    """Eight of 4,000 blocks are the limit."""
    with services(f"{BUSY}=0.002") as two:
        for length, is_busy in ((32, False), (33, True)):
            answer = body_of(two.send(post("/select", prompt_of(length, True))))
            assert answer["decode_busy"] is is_busy
        assert two.answered == 2
        unknown = {"total_kv_blocks": None}
        for worker in (1, 2):
            two.send(request(f"PATCH /workers/{worker}", AIOHTTP, unknown))
        two.send(request("DELETE /workers/1", AIOHTTP))
        body = {"worker_id": 2, "endpoint": "http://b", "block_size": 4, "model_name": "default"}
        two.send(post("/workers", {**body, "max_num_batched_tokens": 8192}))
        answer = body_of(two.send(post("/select", prompt_of(33, True))))
        assert "decode_busy" not in answer


def test_fields_of_the_ordinary_path_go_to_the_ordinary_path():
    with services() as two:
        for fields in ({"advisory": True}, {"include_hashes": True}):
            assert two.send(post("/select", {**fields, **prompt_of(9, True)})).startswith(
                b"HTTP/1.1 200"
            )
        own_rank = {"selection_id": "s", "worker_id": 1, **prompt_of(9, True)}
        two.send(post("/reservations", {**own_rank, "track_prefill_tokens": False}))
        assert two.answered == 0
