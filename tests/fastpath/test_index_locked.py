"""Tests of requests while another thread has the lock of the index, and of the lock's uses."""

import json

import pytest

from indexer.index.prefix_index import PrefixIndex
from indexer.jit.mutex import Mutex
from tests.builders import worker_body
from tests.fastpath.lock_holder import hold_lock_elsewhere
from tests.fastpath.requests import HTTPX, request
from tests.fastpath.two_services import TwoServices

PROMPT = {"model_name": "m", "block_hashes": [1, 2], "sequence_hashes": [1, 2], "isl_tokens": 8}
SELECT = request("POST /select", HTTPX, PROMPT)
RESERVE = request("POST /select_and_reserve", HTTPX, {**PROMPT, "reservation_id": "r"})


@pytest.fixture
def services():
    with TwoServices() as both:
        for number in (1, 2):
            both.send(request("POST /workers", HTTPX, worker_body(number)))
        both.send(SELECT)
        yield both


def index_of(side) -> PrefixIndex:
    (partition,) = side.selector.fleet.partitions.values()
    return partition.index


@pytest.mark.parametrize("question", [SELECT, RESERVE])
def test_a_request_waits_for_the_index_lock_and_gets_the_same_answer(services, question):
    expected = services.ordinary.send(question)
    answered = services.fast.handler.answered
    with hold_lock_elsewhere(index_of(services.fast).lock) as order:
        found = services.fast.send(question)
        order.append("answered")
    assert order == ["held", "answered"]
    assert services.fast.handler.answered == answered + 1
    assert json.loads(found.partition(b"\r\n\r\n")[2]) == json.loads(
        expected.partition(b"\r\n\r\n")[2]
    )


def test_no_bytecode_runs_under_the_lock_while_requests_are_answered(services, monkeypatch):
    taken = []
    take = Mutex.__enter__

    def record_taken(mutex):
        taken.append(mutex)
        take(mutex)

    monkeypatch.setattr(Mutex, "__enter__", record_taken)
    for side in (services.fast, services.ordinary):
        assert b" 200 OK" in side.send(SELECT)
        assert b" 20" in side.send(RESERVE)
    assert not taken
