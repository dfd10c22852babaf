"""Tests that both readers agree on the inputs kept from fuzzing (scripts/fuzz)."""

import pytest

from tests.builders import worker_body
from tests.fastpath.corpus import load
from tests.fastpath.reading import agrees, state_of
from tests.fastpath.requests import HTTPX, request
from tests.fastpath.two_services import TwoServices

INPUTS = load()


def test_no_input_of_the_corpus_is_read_in_two_ways() -> None:
    read = [agrees(data) for data in INPUTS]
    assert any(read)
    assert not all(read)


def test_bytes_behind_an_input_change_nothing() -> None:
    for data in INPUTS:
        for behind in (b"0" * 80, b'"]}' * 30, b"\r\n" * 40):
            assert state_of(data + behind, 0, len(data)) == state_of(data), data


@pytest.mark.parametrize("behind", [b"", b"]}", b"\r\n\r\n"])
def test_both_readers_agree_on_bodies_of_the_corpus(behind: bytes) -> None:
    for data in INPUTS:
        body = data.partition(b"\r\n\r\n")[2] + behind
        agrees(request("POST /select", HTTPX, body))


def test_a_service_answers_the_same_on_both_paths() -> None:
    with TwoServices() as two:
        for worker_id, model_name in enumerate(("default", "llama", "m"), 1):
            two.send(request("POST /workers", HTTPX, worker_body(worker_id, model_name=model_name)))
        for data in INPUTS:
            two.send(data, drawn=0.5)
            two.reconnect()
        assert two.answered
