"""Tests of the example of a refused client: against scripted answers, and against the service."""

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.builders.running import Running
from tests.builders.waiting_clients import PROMPT, QUEUE, a_full_worker, count_reservations

PATH = Path(__file__).parents[2] / "docs" / "examples" / "retry.py"
BUSY = {"message": "All workers are busy", "type": "service_unavailable", "code": 503}
DONE = {"worker_id": 1}


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("retry_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


retry = loaded()


class FakeServer:
    """Server with the given responses in turn, the last for ever; time passes by sleeping."""

    def __init__(self, *answers: httpx.Response) -> None:
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))
        self.sent: list[bytes] = []
        self.slept: list[float] = []
        self.budget = retry.RetryBudget()

    def ask(self, deadline_s: float, jitter: float = 0.5) -> dict[str, Any]:
        policy = retry.RetryPolicy(
            deadline_s, self.budget, lambda: sum(self.slept), self.slept.append, lambda: jitter
        )
        with httpx.Client(transport=httpx.MockTransport(self._answer), base_url="http://x") as http:
            answer: dict[str, Any] = retry.reserve_worker(http, "/select", PROMPT, policy)
        return answer

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request.content)
        return next(self._answers)


def refused(after: int | str = 1, **fields: Any) -> httpx.Response:
    return httpx.Response(503, json=fields or BUSY, headers={"retry-after": str(after)})


def done() -> httpx.Response:
    return httpx.Response(200, json=DONE)


@pytest.mark.parametrize(
    "refusal",
    [
        refused(),
        refused(error="capacity_shed: tier=standard", code="capacity_shed"),
        refused(error="queue_timeout", code="queue_timeout"),
        refused(error="the queue is full", code="queue_full"),
    ],
)
def test_transient_refusals_are_retried(refusal):
    server = FakeServer(refusal, refusal, done())
    assert server.ask(60.0) == DONE
    assert len(server.sent) == 3


@pytest.mark.parametrize(
    "refusal",
    [
        httpx.Response(400, json={"error": "?", "code": "bad_request"}),
        httpx.Response(409, json={"error": "?", "code": "conflict"}),
        httpx.Response(422, json={"error": "?", "code": "invalid_body"}),
        httpx.Response(503, json={"error": "?", "code": "no_schedulable_workers"}),
        refused("soon"),
    ],
)
def test_permanent_refusals_are_not_retried(refusal):
    server = FakeServer(refusal)
    with pytest.raises(retry.RefusedError) as refusals:
        server.ask(60.0)
    assert refusals.value.response is refusal
    assert (len(server.sent), server.slept) == (1, [])


def test_no_retry_comes_before_retry_after_and_the_spread_grows():
    for jitter in (0.0, 0.25, 0.999):
        server = FakeServer(*[refused(3)] * 10, done())
        server.ask(1000.0, jitter)
        spread = [wait - 3 for wait in server.slept]
        windows = [0.2 * 2**n for n in range(9)] + [60.0]
        assert spread == pytest.approx([jitter * window for window in windows])


def test_a_wait_beyond_the_deadline_is_not_begun():
    server = FakeServer(refused(30))
    with pytest.raises(retry.RefusedError):
        server.ask(20.0)
    assert (len(server.sent), server.slept) == (1, [])


def test_requests_carry_the_time_that_is_left():
    server = FakeServer(refused(4), done())
    server.ask(10.0, jitter=0.0)
    assert b'"timeout_ms":10000' in server.sent[0]
    assert b'"timeout_ms":6000' in server.sent[1]


def test_in_a_long_overload_retries_are_a_small_part_of_requests():
    server = FakeServer(refused(1))
    requests = 1000
    for _ in range(requests):
        with pytest.raises(retry.RefusedError):
            server.ask(1e6)
    retries = len(server.sent) - requests
    assert retries <= retry.RETRIES_SAVED_MAX + requests * retry.RETRIES_PER_REQUEST


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with Running("--threads", "1", *QUEUE) as service:
        yield service


@pytest.fixture
def service(running: Running) -> Iterator[Running]:
    """Return a service with a full worker, the only worker."""
    a_full_worker(running)
    yield running
    running.call("DELETE", "/workers/1")


class Waits:
    """Substitute of sleeping: meanwhile a call changes the service."""

    def __init__(self, service: Running, path: str, body: Any = None) -> None:
        self._call = ("POST", path, body)
        self._service = service
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        assert self._service.call(*self._call).status == 200


def ask(service: Running, sleep: Waits, deadline_s: float = 60.0, **fields: Any) -> dict[str, Any]:
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}") as http:
        policy = retry.RetryPolicy(deadline_s, retry.RetryBudget(), sleep=sleep)
        answer: dict[str, Any] = retry.reserve_worker(
            http, "/select_and_reserve", PROMPT | fields, policy
        )
    return answer


@pytest.mark.process
def test_a_client_of_a_busy_service_is_served_when_it_comes_again(service):
    change = {"model": "m", "active_prefill_tokens_threshold": 8}
    assert service.call("POST", "/busy_threshold", change).status == 200
    sleep = Waits(service, "/reservations/full-1/prefill_complete")
    assert ask(service, sleep)["worker_id"] == 1
    assert len(sleep.seconds) == 1
    assert sleep.seconds[0] >= 1.0
    assert count_reservations(service) == 2
    change = {"model": "m", "active_prefill_tokens_threshold": None}
    assert service.call("POST", "/busy_threshold", change).status == 200


@pytest.mark.process
def test_a_client_of_a_shed_tier_waits_half_a_minute_or_gives_up(service):
    service.call("POST", "/reservations/full-1/prefill_complete")
    service.call("POST", "/admission/shed", {"tier": "standard"})
    sleep = Waits(service, "/admission/shed", {"tier": None})
    with pytest.raises(retry.RefusedError):
        ask(service, sleep, deadline_s=20.0)
    assert sleep.seconds == []
    assert ask(service, sleep)["worker_id"] == 1
    assert sleep.seconds[0] >= 30.0


@pytest.mark.process
def test_a_queued_client_gives_up_at_its_deadline(service):
    sleep = Waits(service, "/never")
    with pytest.raises(retry.RefusedError) as refusals:
        ask(service, sleep, deadline_s=0.2)
    assert refusals.value.response.json()["code"] == "queue_timeout"
    assert count_reservations(service) == 1


@pytest.mark.process
def test_an_invalid_request_is_not_retried(service):
    sleep = Waits(service, "/never")
    with pytest.raises(retry.RefusedError) as refusals:
        ask(service, sleep, priority_tier="gold")
    assert (refusals.value.response.status_code, refusals.value.attempts) == (400, 1)
