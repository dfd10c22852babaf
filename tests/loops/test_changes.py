"""Workers, texts and load change while loops answer."""

import threading
from collections import Counter
from random import Random
from typing import Any

import pytest

from select_service.core.decide.router_config import POLICY_NAMES
from tests.builders import worker_body
from tests.loops.running import OnLoops
from tests.process.running import Client, request

pytestmark = pytest.mark.process

MODELS = ("a", "b", "c")
ROUNDS = 60
CLIENTS = 3
PER_CONNECTION = 40
WORKERS = 12


class Asking:
    """Clients that select until they are stopped.  `statuses`: what they were answered."""

    def __init__(self, service: OnLoops) -> None:
        self._service = service
        self._stops = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, seed: int) -> None:
        random = Random(seed)
        try:
            while not self._stops.is_set():
                with self._service.client() as client:
                    self._converse(client, random)
        except Exception as error:
            self.errors.append(error)

    def _converse(self, client: Client, random: Random) -> None:
        """On a new connection, which begins on a loop."""
        for _ in range(PER_CONNECTION):
            model, n = random.choice(MODELS), random.choice((1, 9, 100))
            body = {"model_name": model, "token_ids": list(range(n))}
            client.send(request("POST", "/select", body) * 2)
            for _ in range(2):
                answer = client.answer()
                self.statuses[answer.status] += 1
                assert answer.status == 503 or answer.body["model_name"] == model

    def stop(self) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()
        assert self.errors == []


def change(service: OnLoops, random: Random, number: int) -> None:
    """One of many things that somebody does to the service."""
    worker = random.randrange(1, WORKERS + 1)
    body: dict[str, Any] = worker_body(
        worker,
        model_name=random.choice(MODELS),
        data_parallel_size=random.choice((1, 2, 40)),
        endpoint=f"http://{'w' * random.randrange(1, 600)}",
    )
    kind = random.randrange(7)
    if kind < 2:
        service.call("POST", "/workers", body)
    elif kind == 2:
        service.call("PATCH", f"/workers/{worker}", {"endpoint": body["endpoint"]})
    elif kind == 3:
        service.call("DELETE", f"/workers/{worker}")
    elif kind == 6:
        chosen = {"policy": random.choice(POLICY_NAMES)}
        assert service.call("PUT", "/policy", chosen).status == 200
    else:
        model = random.choice(MODELS)
        tokens = [n * number for n in range(random.choice((4, 400)))]
        asked = {"model_name": model, "token_ids": tokens, "reservation_id": f"r{number}"}
        service.call("POST", "/select_and_reserve", asked)
        if kind == 5:
            service.call("DELETE", f"/reservations/r{number}")


def test_what_changes_meanwhile_upsets_nobody() -> None:
    with OnLoops(loops=2) as service:
        asking = Asking(service)
        random = Random(1)
        for number in range(ROUNDS):
            change(service, random, number)
        asking.stop()
        assert asking.statuses[200] > 0
        assert asking.statuses.keys() <= {200, 503}
        assert service.call("GET", "/metrics").status == 200
    service.selector.check_invariants()
