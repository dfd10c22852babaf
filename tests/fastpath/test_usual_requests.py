"""Tests that the fast path answers usual requests of every kind, and answers correctly."""

import json
from typing import Any

import pytest

from select_service.core.identity import Rank
from tests.builders import worker_body
from tests.fastpath.prompts import post, prompt_of
from tests.fastpath.requests import BARE, HTTPX, request
from tests.fastpath.test_equality import DRAWS, HEADERS
from tests.fastpath.two_services import TwoServices


@pytest.fixture
def two() -> Any:
    with TwoServices() as services:
        for worker in range(1, 4):
            services.send(
                post("/workers", worker_body(worker, model_name="llama", data_parallel_size=worker))
            )
        yield services


def test_usual_requests_are_answered_by_the_fast_path(two: TwoServices) -> None:
    usual = [
        post("/select", {"model_name": "llama", **prompt_of(30, as_tokens)}, headers)
        for as_tokens in (True, False)
        for headers in HEADERS
    ]
    for data in usual:
        assert two.send(data).startswith(b"HTTP/1.1 200 ")
    assert two.answered == len(usual)
    assert two.fast.protocol._ordinary is not None  # made by the registrations of workers


def test_the_life_of_a_request_is_the_fast_path_s(two: TwoServices) -> None:
    prompt = {"model_name": "llama", **prompt_of(30, False)}
    reserved = post("/select_and_reserve", {**prompt, "reservation_id": "a"})
    lives = [
        reserved,
        post("/select_and_reserve", {"model_name": "llama", **prompt_of(30, True)}),
        post("/reservations", {**prompt, "reservation_id": "b", "worker_id": 3, "dp_rank": 2}),
        *(
            request(f"POST /reservations/{name}/{verb}")
            for name in ("a", "b")
            for verb in ("prefill_complete", "output_block", "renew")
        ),
        request("DELETE /reservations/a"),
        reserved,
    ]
    for number, data in enumerate(lives, 1):
        assert two.send(data).startswith(b"HTTP/1.1 20")
        assert two.answered == number
    for refused in (reserved, request("DELETE /reservations/c")):
        assert two.send(refused).startswith(b"HTTP/1.1 4")
    assert two.answered == len(lives)


def test_ranks_out_of_rotation_are_in_no_usual_answer(two: TwoServices) -> None:
    select = post("/select", {"model_name": "llama", **prompt_of(8, False)})
    ranks = [Rank(worker, dp_rank) for worker in range(1, 4) for dp_rank in range(worker)]
    for number, rank in enumerate(ranks[:-1], 1):
        for side in (two.fast, two.ordinary):
            side.selector.fleet.set_weight(rank, 0.0, "draining")
        for drawn in DRAWS:
            body = json.loads(two.send(select, drawn=drawn).split(b"\r\n\r\n")[1])
            assert (body["worker_id"], body["dp_rank"]) in ranks[number:]
    assert two.answered == len(DRAWS) * number
    for side in (two.fast, two.ordinary):
        side.selector.fleet.set_weight(ranks[-1], 0.0, "draining")
    assert b'"code":"no_eligible_rank"' in two.send(select)
    assert two.answered == len(DRAWS) * number


def test_a_stream_cut_at_any_byte(two: TwoServices) -> None:
    stream = post("/select", {"model_name": "llama", **prompt_of(8, True)}, BARE) * 2
    answers = two.send(stream)
    for at in range(1, len(stream)):
        assert two.send(stream[:at], stream[at:], drawn=0.5).count(b"HTTP/1.1 200") == 2
    assert answers.count(b"HTTP/1.1 200") == 2


def test_a_change_of_a_worker_is_in_the_next_answer(two: TwoServices) -> None:
    select = post("/select", {"model_name": "llama", **prompt_of(8, False)})
    for endpoint in ("http://b", "http://c" * 60, "http://d"):
        two.send(request("PATCH /workers/1", HTTPX, {"endpoint": endpoint}))
        body = json.loads(two.send(select).split(b"\r\n\r\n")[1])
        assert (body["worker_id"], body["endpoint"]) == (1, endpoint)
    two.send(request("DELETE /workers/1"))
    assert b'"worker_id":2,' in two.send(select)
    for worker in (2, 3):
        two.send(request(f"DELETE /workers/{worker}"))
    assert two.send(select).startswith(b"HTTP/1.1 503 ")
