"""Tests that repeated work leaves nothing that only the garbage collector could free.

Frozen objects are exempt from collections, so a cycle among them would stay for ever.
"""

import signal
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.builders import worker_body
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually
from tests.builders.running import Running, request
from tests.builders.waiting_clients import BATCH_TOKENS, QUEUE, pending
from tests.process.counting_garbage import FOUND

pytestmark = pytest.mark.process

TIMES = 20
PROMPT = {"model_name": "m", "token_ids": list(range(64))}
LONG_PROMPT = PROMPT | {"token_ids": list(range(100_000))}
LISTS = ("/workers", "/reservations", "/loads", "/metrics", "/config", "/nowhere")

numbers = count(100)


class GarbageReporting(Running):
    """Service with a counter of its garbage reports."""

    asked = 0

    def garbage(self) -> dict[str, int]:
        self.asked += 1
        self.process.send_signal(signal.SIGUSR1)
        found: dict[str, int] = self.line(FOUND, self.asked)["found"]
        return found


@pytest.fixture(scope="module")
def service() -> Iterator[GarbageReporting]:
    flags = ("--threads", "1", *QUEUE)
    module = "tests.process.counting_garbage"
    with GarbageReporting(*flags, module=module, DYN_USE_KV_EVENTS="true") as told:
        register(told, 1)
        register(told, 2, model_name="narrow", max_num_batched_tokens=BATCH_TOKENS)
        for scene in SCENES.values():
            scene(told)  # warm-up: objects created once and kept
        told.garbage()
        yield told


def register(service: Running, worker_id: int, **fields: object) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    given = {"max_num_batched_tokens": 1 << 20, "kv_events_endpoint": endpoint, **fields}
    assert service.call("POST", "/workers", worker_body(worker_id, **given)).status == 201


def reservations(service: Running) -> None:
    with service.client() as client:
        for path in ("/select", "/select_and_reserve"):
            client.send(request("POST", path, PROMPT | {"reservation_id": "r"}))
            assert client.answer().status == 200
        for verb in ("prefill_complete", "output_block", "renew"):
            client.send(request("POST", f"/reservations/r/{verb}", {}))
            client.answer()
        client.send(request("DELETE", "/reservations/r"))
        assert client.answer().status == 200


def refusals(service: Running) -> None:
    for body in (b"{bad", {"prompt": "hello"}, {"model_name": "nobody's"}, LONG_PROMPT):
        service.call("POST", "/select", body)


def lists(service: Running) -> None:
    for path in LISTS:
        service.call("GET", path)
    with service.client() as client:
        client.send(request("GET", "/dump", connection="close"))
        while client.socket.recv(1 << 16):
            pass


def clients_that_leave(service: Running) -> None:
    whole = request("POST", "/select", PROMPT)
    for sent in (b"", whole[:-10], whole, whole * 20, b"NONSENSE\r\n\r\n"):
        with service.client() as client:
            client.send(sent)


def workers(service: Running) -> None:
    number = next(numbers)
    register(service, number)
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    service.call("PATCH", f"/workers/{number}", {"kv_events_endpoint": endpoint})
    assert service.call("DELETE", f"/workers/{number}").status == 200


def requests_that_wait(service: Running) -> None:
    """Queue two requests for a worker with room for one; the first client leaves."""
    prompt = PROMPT | {"model_name": "narrow"}
    book = "/select_and_reserve"
    assert service.call("POST", book, prompt | {"reservation_id": "full"}).status == 200
    with service.client() as served:
        with service.client() as gone:
            for number, client in enumerate((gone, served)):
                client.send(request("POST", book, prompt | {"reservation_id": f"next-{number}"}))
                eventually(lambda number=number: pending(service) == number + 1)
        eventually(lambda: pending(service) == 1)
        assert service.call("DELETE", "/reservations/full").status == 200
        assert served.answer().status == 200
    assert service.call("DELETE", "/reservations/next-1").status == 200


SCENES: dict[str, Callable[[Running], None]] = {
    scene.__name__: scene
    for scene in (reservations, refusals, lists, clients_that_leave, requests_that_wait, workers)
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_nothing_is_left_to_the_garbage_collector(service, scene):
    for _ in range(TIMES):
        scene(service)
    eventually(lambda: service.call("GET", "/health").status == 200)
    assert sum(service.garbage().values()) < TIMES
