"""The same seeded service with a loop and without one, with admission on and off."""

from itertools import product

import pytest

from select_service.core.identity import Rank
from tests.builders import worker_body
from tests.exploring import explored
from tests.fast.corpus import load
from tests.fast.requests import HTTPX, request
from tests.fast.test_equality import TheSameAnswers
from tests.loops.two import LoopAndOrdinary

pytestmark = pytest.mark.process


class OnALoop(TheSameAnswers):
    services = LoopAndOrdinary

    def agree_on_decisions(self) -> None:
        """What loops decide is not kept."""


class OnALoopWithThresholds(OnALoop):
    flags = ("--active-decode-blocks-threshold", "0.5", "--active-prefill-tokens-threshold", "40")


class OnALoopWithQueues(OnALoop):
    flags = ("--queue-threshold", "1.0", "--queue-timeout-secs", "0.001")


TestOnALoop = explored(OnALoop, runs=2)
TestOnALoopWithThresholds = explored(OnALoopWithThresholds, runs=3)
TestOnALoopWithQueues = explored(OnALoopWithQueues, runs=3)


def test_a_loop_chooses_no_rank_that_is_out_of_rotation() -> None:
    select = request("POST /select", HTTPX, {"model_name": "m", "token_ids": [1, 2, 3]})
    with LoopAndOrdinary() as two:
        for worker_id in (1, 2):
            two.say(request("POST /workers", HTTPX, worker_body(worker_id)))
        two.reconnect()
        for out in ((1,), (1, 2), (2,), ()):
            for side, worker_id in product((two.fast, two.ordinary), (1, 2)):
                weight = 0.0 if worker_id in out else 1.0
                side.selector.fleet.set_weight(Rank(worker_id, 0), weight, "unhealthy")
            answer = two.say(select)
            assert answer.startswith(b"HTTP/1.1 503 " if out == (1, 2) else b"HTTP/1.1 200 ")
            assert all(b'"worker_id":%d,' % worker_id not in answer for worker_id in out)
        assert two.answered


def test_a_loop_answers_the_corpus_as_the_ordinary_path_does() -> None:
    with LoopAndOrdinary() as two:
        for worker_id, model_name in enumerate(("default", "llama", "m"), 1):
            two.say(request("POST /workers", HTTPX, worker_body(worker_id, model_name=model_name)))
        for data in load():
            two.reconnect()
            two.say(data)
        assert two.answered
