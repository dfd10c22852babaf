"""Tests of random calls to this service and to the reference: answers and loads must agree.

The choice of a rank is left out, since each side breaks ties by chance: requests name the rank. The
tests run only where SELECT_SERVICE_REFERENCE_PYTHON names a Python that has ai-dynamo-runtime.
"""

import contextlib
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.launched_process import LaunchedProcess, free_port, plain_environment
from tests.builders.reference_python import HAS_SESSIONS, NEEDS_REFERENCE, PYTHON
from tests.builders.service_process import Answer, ServiceClient
from tests.golden.exchanges import in_order

pytestmark = NEEDS_REFERENCE

CALLS = 400
SCOPE = {"model_name": "m", "tenant_id": "t", "routing_group": "t"}
RANKS = [(worker_id, dp_rank) for worker_id in (1, 2, 3) for dp_rank in (0, 1)]
IDS = [f"id-{number}" for number in range(12)]
FLAGS = () if HAS_SESSIONS else ("--no-assumed-index",)
ONLY_REFERENCE = {"sequence_hashes"}
"""Fields that this service leaves out for requests with the names of 1.3."""
FOLLOWS_S = 2.0
"""Seconds that the reference may need until its index contains a booking."""


class BothServices:
    """Two services that receive the same calls and must agree."""

    def __init__(self, ours: ServiceClient, theirs: ServiceClient, seed: int) -> None:
        self._both = ours, theirs
        self._random = Random(seed)
        self._kinds: list[Callable[[], None]] = [
            *(self.select, self.select_and_reserve, self.reserve) * 2,
            *(self.complete, self.add_output_block, self.free),
            *(self.compare_potential_loads, self.compare_overlap),
        ]
        if HAS_SESSIONS:
            self._kinds += [self.replay] * 2

    def register_workers(self) -> None:
        for worker_id in sorted({worker_id for worker_id, _ in RANKS}):
            body = worker_body(worker_id, **SCOPE, data_parallel_size=2)
            self._call("POST", "/workers", body | {"max_num_batched_tokens": 10**6})
        time.sleep(0.5)  # the reference needs some time after the answer to use the workers

    def call_something(self) -> None:
        self._random.choice(self._kinds)()
        self._agree("GET", "/loads", None)

    def select(self) -> None:
        self._agree("POST", "/select", self._placed() | {"selection_id": self._id()})

    def select_and_reserve(self) -> None:
        name = self._id()
        body = self._placed() | {"selection_id": name, "reservation_id": name}
        self._agree("POST", "/select_and_reserve", body)

    def reserve(self) -> None:
        name, (worker_id, dp_rank) = self._id(), self._random.choice(RANKS)
        prompt = self._prompt()
        body = {
            **SCOPE,
            **prompt,
            "selection_id": name,
            "reservation_id": name,
            "worker_id": worker_id,
            "dp_rank": dp_rank,
            "effective_prefill_tokens": self._random.randrange(len(prompt["token_ids"]) + 2),
        }
        if self._agree("POST", "/reservations", body).status >= 400:
            # A refused booking ends a selection of its id in the reference only.
            self._agree("POST", "/select", self._placed() | {"selection_id": name})

    def replay(self) -> None:
        self._agree("POST", "/reservations", {**SCOPE, "selection_id": self._id()})

    def complete(self) -> None:
        self._agree("POST", f"/reservations/{self._id()}/prefill_complete", None)

    def add_output_block(self) -> None:
        body = self._random.choice(({}, {"decay_fraction": 0.5}, {"decay_fraction": 2.0}))
        self._agree("POST", f"/reservations/{self._id()}/output_block", body)

    def free(self) -> None:
        answers = self._call("DELETE", f"/reservations/{self._id()}", None)
        if HAS_SESSIONS:  # before, an unknown id was no error
            assert answers[0].status == answers[1].status

    def compare_potential_loads(self) -> None:
        self._agree("POST", "/potential_loads", SCOPE | self._prompt())

    def compare_overlap(self) -> None:
        self._agree("POST", "/overlap_scores", SCOPE | self._prompt())

    def _id(self) -> str:
        return self._random.choice(IDS)

    def _prompt(self) -> dict[str, Any]:
        """Return a prompt of any length with a common beginning."""
        begin = 1000 * self._random.randrange(3)
        length = self._random.choice((1, 3, 4, 8, 21, 40))
        tail = self._random.choice(((), (7, 7, 7, 7), (8, 8)))
        return {"token_ids": [*range(begin, begin + length), *tail]}

    def _placed(self) -> dict[str, Any]:
        worker_id, dp_rank = self._random.choice(RANKS)
        return (
            SCOPE | self._prompt() | {"pinned_worker": {"worker_id": worker_id, "dp_rank": dp_rank}}
        )

    def _agree(self, method: str, path: str, body: Any) -> Answer:
        ours, theirs = self._call(method, path, body)
        changes_nothing = method == "GET" or path in ("/select", "/overlap_scores")
        until = time.monotonic() + FOLLOWS_S
        while changes_nothing and not agree(ours, theirs) and time.monotonic() < until:
            time.sleep(0.02)
            ours, theirs = self._call(method, path, body)
        assert agree(ours, theirs), (method, path, body, ours, theirs)
        return ours

    def _call(self, method: str, path: str, body: Any) -> list[Answer]:
        if method == "POST":
            return [service.post(path, body or {}) for service in self._both]
        return [service.call(method, path, None, {}) for service in self._both]


def agree(ours: Answer, theirs: Answer) -> bool:
    """Return whether this service has the status and all the fields of the reference."""
    if ours.status != theirs.status:
        return False
    return theirs.status >= 400 or contains(ours.body, theirs.body)


def contains(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        names = theirs.keys() - ONLY_REFERENCE
        return all(name in ours and contains(ours[name], theirs[name]) for name in names)
    if isinstance(theirs, list):
        pairs = zip(in_order(ours), in_order(theirs), strict=False)
        return len(ours) == len(theirs) and all(contains(*pair) for pair in pairs)
    return bool(ours == theirs)


@pytest.mark.parametrize("seed", range(3))
def test_both_answer_and_count_alike_whatever_is_called(seed, tmp_path):
    environment = {"DYN_USE_KV_EVENTS": "false"}
    port = free_port()
    command = (str(PYTHON), "-m", "dynamo.select_service", "--port", str(port))
    with contextlib.ExitStack() as stack:
        flags = ("--policy", "reference", *FLAGS)
        running = stack.enter_context(InThread(*flags, folder=tmp_path, environment=environment))
        launched = LaunchedProcess(command, plain_environment() | environment, port)
        stack.callback(launched.kill)
        launched.wait_until_healthy()
        ours, theirs = (
            stack.enter_context(contextlib.closing(ServiceClient(each)))
            for each in (running.port, port)
        )
        both = BothServices(ours, theirs, seed)
        both.register_workers()
        for _ in range(CALLS):
            both.call_something()
