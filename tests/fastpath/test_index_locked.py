"""Requests while somebody else has the lock of the index, and how often bytecode takes it."""

import json

import pytest

from indexer.index.prefix_index import PrefixIndex
from indexer.jit.mutex import Mutex
from tests.builders import worker_body
from tests.fastpath.lock_holder import held_by_another
from tests.fastpath.requests import HTTPX, request
from tests.fastpath.two_services import TwoServices

PROMPT = {"model_name": "m", "block_hashes": [1, 2], "sequence_hashes": [1, 2], "isl_tokens": 8}
SELECT = request("POST /select", HTTPX, PROMPT)
RESERVE = request("POST /select_and_reserve", HTTPX, {**PROMPT, "reservation_id": "r"})


@pytest.fixture
def services():
    with TwoServices() as both:
        for number in (1, 2):
            both.say(request("POST /workers", HTTPX, worker_body(number)))
        both.say(SELECT)
        yield both


def index_of(side) -> PrefixIndex:
    (partition,) = side.selector.fleet.partitions.values()
    return partition.index


@pytest.mark.parametrize("question", [SELECT, RESERVE])
def test_who_finds_the_index_locked_waits_and_answers_the_same(services, question):
    expected = services.ordinary.say(question)
    answered = services.fast.handler.answered
    with held_by_another(index_of(services.fast).lock) as order:
        found = services.fast.say(question)
        order.append("answered")
    assert order == ["held", "answered"]
    assert services.fast.handler.answered == answered + 1
    assert json.loads(found.partition(b"\r\n\r\n")[2]) == json.loads(
        expected.partition(b"\r\n\r\n")[2]
    )


def test_no_bytecode_runs_under_the_lock_while_requests_are_answered(services, monkeypatch):
    taken = []
    take = Mutex.__enter__

    def counted(mutex):
        taken.append(mutex)
        take(mutex)

    monkeypatch.setattr(Mutex, "__enter__", counted)
    for side in (services.fast, services.ordinary):
        assert b" 200 OK" in side.say(SELECT)
        assert b" 20" in side.say(RESERVE)
    assert not taken
