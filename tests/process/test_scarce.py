"""Tests of a process without name servers or file descriptors."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.builders import worker_body
from tests.builders.polling import eventually
from tests.builders.running import Running, request
from tests.process.with_few_files import FILES_MAX
from tests.process.without_names import LOOKED_UP

pytestmark = pytest.mark.process

METRICS_NAMES, EVENT_NAMES = 12, 3
CLIENTS = 12
WORKERS = 40


def looked_up(service: Running) -> set[str]:
    return {line["host"] for line in service.lines(LOOKED_UP)}


def test_unanswered_name_lookups_delay_neither_answers_nor_the_end():
    """Check lookups that never end: shutdown must not wait for them."""
    flags = ("--engine-metrics-interval-secs", "0.1")
    with Running(*flags, module="tests.process.without_names", DYN_USE_KV_EVENTS="true") as service:
        names = set()
        for number in range(METRICS_NAMES + EVENT_NAMES):
            name = f"engine-{number}.example"
            is_asked = number < METRICS_NAMES
            fields = {"kv_events_endpoint": f"tcp://{'127.0.0.1' if is_asked else name}:5557"}
            if is_asked:
                fields["metrics_endpoint"] = f"http://{name}:8000/metrics"
            body = worker_body(number + 1, **fields)
            assert service.call("POST", "/workers", body).status == 201
            names.add(name)
        eventually(lambda: looked_up(service) == names)
        assert service.call("GET", "/health").status == 200
        assert service.call("GET", "/workers").status == 200
        assert service.stop(signal.SIGTERM) == 0


@pytest.fixture
def short_of_files() -> Iterator[Running]:
    with Running(module="tests.process.with_few_files", DYN_USE_KV_EVENTS="true") as service:
        yield service


def test_with_few_files_workers_are_refused_their_sockets_and_clients_are_answered(short_of_files):
    for number in range(WORKERS):
        endpoint = f"tcp://127.0.0.1:{20_000 + number}"
        body = worker_body(number + 1, kv_events_endpoint=endpoint)
        short_of_files.call("POST", "/workers", body)
    with ExitStack() as stack:
        clients = [stack.enter_context(short_of_files.client()) for _ in range(CLIENTS)]
        for client in clients:
            client.send(request("GET", "/health"))
        assert [client.answer().status for client in clients] == [200] * CLIENTS
    said = str(short_of_files.call("GET", "/workers").body)
    assert "the limit of open files (ulimit -n)" in said
    assert FILES_MAX == 64
