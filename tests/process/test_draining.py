"""Tests of draining: after SIGTERM a process answers for a while, so that clients lose nothing."""

import contextlib
import http.client
import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.builders import worker_body
from tests.builders.launched_process import LaunchedProcess, free_port, own_command, own_environment
from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.running import Running, request
from tests.process.access import OPEN, Open, Secured, access
from tests.process.tls_running import SecuredRunning

pytestmark = pytest.mark.process

PROMPT = {"model_name": "m", "token_ids": list(range(64))}
DRAIN_S = 1.5
CLIENTS = 16
MANY_CLIENTS = 64


def draining(drain_s: float = DRAIN_S, how: Open = OPEN) -> Running:
    flags = ("--threads", "1", "--drain-secs", str(drain_s))
    service = SecuredRunning(how, *flags) if isinstance(how, Secured) else Running(*flags)
    assert service.call("POST", "/workers", worker_body(1)).status == 201
    return service


def test_every_answer_of_a_process_that_drains_is_the_last_of_its_connection():
    with draining(drain_s=PATIENCE_S) as service, contextlib.ExitStack() as stack:
        idle, busy, late = (stack.enter_context(service.client()) for _ in range(3))
        for client in (idle, busy):
            client.send(request("POST", "/select", PROMPT))
            assert client.answer().status == 200
        reserved = service.call("POST", "/select_and_reserve", {**PROMPT, "reservation_id": "r"})
        assert reserved.status == 200
        whole = request("POST", "/select", PROMPT)
        late.send(whole[:-5])
        service.process.send_signal(signal.SIGTERM)
        eventually(lambda: service.call("GET", "/ready").status == 503)
        assert service.call("GET", "/ready").body["draining"] is True
        assert service.call("GET", "/health").status == 200
        late.send(whole[-5:])
        busy.send(request("POST", "/select", PROMPT))
        for client in (busy, late):
            answer = client.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert client.ended()
        with service.client() as fresh:
            fresh.send(request("DELETE", "/reservations/r"))
            answer = fresh.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert service.process.poll() is None
        assert service.stop(signal.SIGTERM) == 0  # the second signal does not wait
        assert idle.ended()


def test_it_drains_for_the_configured_time():
    with draining() as service:
        begin = time.monotonic()
        assert service.stop(signal.SIGTERM) == 0
        assert time.monotonic() - begin >= DRAIN_S
        assert service.lines("draining")


def test_an_interrupt_does_not_drain():
    with draining(drain_s=PATIENCE_S) as service:
        begin = time.monotonic()
        assert service.stop(signal.SIGINT) == 0
        assert time.monotonic() - begin < PATIENCE_S
        assert not service.lines("draining")


class Fleet:
    """Three selectors, and the ports of those that report ready."""

    def __init__(self, how: Open = OPEN) -> None:
        self._how = how
        self._services = [draining(how=how) for _ in range(3)]
        self._ready = [service.port for service in self._services]
        self._next = itertools.count()

    def pick_rank(self) -> int:
        return self._ready[next(self._next) % len(self._ready)]

    def restart_each(self) -> None:
        """Restart one after the other as a platform does: off the list after a 503 from /ready."""
        for number, service in enumerate(self._services):
            service.process.send_signal(signal.SIGTERM)
            eventually(lambda service=service: service.call("GET", "/ready").status == 503)
            self._ready = [port for port in self._ready if port != service.port]
            assert service.process.wait(PATIENCE_S) == 0
            self._services[number] = draining(how=self._how)
            self._ready = [*self._ready, self._services[number].port]

    def end(self) -> None:
        for service in self._services:
            service.stop(signal.SIGINT)


class Client(threading.Thread):
    """Client that keeps its connection as long as the service does, and never retries."""

    def __init__(self, pick: Callable[[], int], how: Open = OPEN) -> None:
        super().__init__()
        self._pick, self._how, self._ends = pick, how, threading.Event()
        self.answered, self.failures = 0, list[str]()
        self.statuses = set[int]()

    def run(self) -> None:
        body = json.dumps(PROMPT).encode()
        headers = {"content-type": "application/json"} | self._how.headers
        connection: http.client.HTTPConnection | None = None
        while not self._ends.is_set():
            if connection is None:
                connection = self._how.connection(self._pick(), PATIENCE_S)
            try:
                connection.request("POST", "/select", body, headers)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection = None
                continue
            self.answered += 1
            self.statuses.add(answer.status)
            if answer.will_close:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def end(self) -> None:
        self._ends.set()
        self.join()


@contextlib.contextmanager
def clients_of(
    pick: Callable[[], int], n_clients: int = CLIENTS, how: Open = OPEN
) -> Iterator[list[Client]]:
    """Yield running clients; assert at the end that no request failed."""
    clients = [Client(pick, how) for _ in range(n_clients)]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        for client in clients:
            client.end()
    assert [client.failures for client in clients] == [[]] * n_clients


def all_get_answers(clients: list[Client]) -> None:
    seen = [client.answered for client in clients]
    eventually(lambda: all(c.answered > n for c, n in zip(clients, seen, strict=True)))


many = pytest.mark.parametrize(
    "n_clients", [CLIENTS, pytest.param(MANY_CLIENTS, marks=pytest.mark.slow)]
)


@many
def test_no_request_fails_while_one_process_after_the_other_is_restarted(n_clients):
    assert_no_request_is_lost(Fleet(), n_clients)


@many
def test_none_fails_with_keys_and_tls_either(n_clients):
    with access(is_secured=True) as how:
        assert_no_request_is_lost(Fleet(how=how), n_clients, how)


def assert_no_request_is_lost(fleet: Fleet, n_clients: int, how: Open = OPEN) -> None:
    try:
        with clients_of(fleet.pick_rank, n_clients, how) as clients:
            fleet.restart_each()
            all_get_answers(clients)
        assert {client.statuses == {200} for client in clients} == {True}
        print(f"{sum(client.answered for client in clients)} requests, none failed")
    finally:
        fleet.end()


def sharing(port: int) -> LaunchedProcess:
    """Return a service on a shared address."""
    place = f"--host=127.0.0.1 --port={port} --reuse-port --threads=1 --drain-secs={DRAIN_S}"
    environment = own_environment(
        {"DYN_USE_KV_EVENTS": "false", "SELECT_SERVICE_NO_ASSUMED_INDEX": "true"}
    )
    return LaunchedProcess(own_command(*place.split()), environment, port)


@pytest.mark.skipif(sys.platform != "linux", reason="addresses are shared on Linux")
def test_no_connection_breaks_while_a_new_process_takes_the_port_over():
    port = free_port()
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(sharing(port))
        old.wait_until_healthy()
        with clients_of(lambda: port) as clients:
            for _ in range(2):
                new = stack.enter_context(sharing(port))
                eventually(lambda new=new: "listening" in new.read_log())
                assert old.stop_with_signal(signal.SIGTERM)[0] == 0
                all_get_answers(clients)
                old = new
        assert {client.statuses == {503} for client in clients} == {True}, "nobody has a worker"
