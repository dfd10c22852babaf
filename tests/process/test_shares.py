"""Tests of one key that exhausts its share of common resources while another key works on.

Over real sockets, on both paths; `greedy` and `other` are bound to a tenant each.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from select_service.api.endpoints.migrations import HEARTBEAT_S
from tests.builders import worker_body
from tests.builders.keys import bearer, entry, keys_file
from tests.builders.polling import eventually
from tests.builders.running import Answer, Client, Running, request

pytestmark = pytest.mark.process

FLAGS = (
    "--health-checks",
    "on",
    "--health-interval-secs",
    "600",
    "--queue-threshold",
    "0.5",
    "--queue-max-requests",
    "40",
)
PATHS = {"fast": (), "ordinary": ("--no-fast-path",)}
TENANTS = {"greedy": "red", "other": "blue"}
BATCH_TOKENS = 16
MIB = 1 << 20


def prompt(name: str, n_tokens: int = 16, **fields: Any) -> dict[str, Any]:
    body = {"model_name": "m", "tenant_id": TENANTS[name], "token_ids": [1] * n_tokens}
    return body | fields


def keyed_request(name: str, method: str, path: str, body: Any = None) -> bytes:
    return request(method, path, body, authorization=bearer(name))


def call(service: Running, name: str, method: str, path: str, body: Any = None) -> Answer:
    return service.call(method, path, body, authorization=bearer(name))


@pytest.fixture(scope="module", params=PATHS.values(), ids=PATHS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    with service_with_keys(tmp_path_factory.mktemp("keys"), *FLAGS, *request.param) as service:
        yield service


@contextlib.contextmanager
def service_with_keys(folder: Path, *flags: str) -> Iterator[Running]:
    bound = [entry(name, "caller", "operator", tenants=[of]) for name, of in TENANTS.items()]
    path = keys_file(
        folder, *bound, entry("ops", "operator"), entry("more", "caller", tenants=["red"])
    )
    with Running("--api-keys-file", str(path), *flags) as service:
        yield service


@pytest.fixture
def service(running: Running) -> Iterator[Running]:
    """Yield a service with one worker for each key."""
    for number, name in enumerate(TENANTS, 1):
        body = worker_body(number, max_num_batched_tokens=BATCH_TOKENS, tenant_id=TENANTS[name])
        assert call(running, name, "POST", "/workers", body).status == 201
    yield running
    for worker in call(running, "ops", "GET", "/workers").body:
        call(running, "ops", "DELETE", f"/workers/{worker['worker_id']}")
    for limit in ("connections", "body_bytes", "migration_waiters", "live_streams"):
        eventually(lambda limit=limit: limits(running)[limit]["keys"].get("greedy", 0) == 0)
    eventually(lambda: limits(running)["reservations"]["used"] == 0)


def limits(service: Running) -> dict[str, Any]:
    found: dict[str, Any] = call(service, "ops", "GET", "/config").body["limits"]
    return found


def used_share(service: Running, limit: str, name: str = "greedy") -> int:
    found: int = limits(service)[limit]["keys"].get(name, 0)
    return found


def is_share_refusal(answer: Answer, limit: str, share: int, of: str = "key") -> bool:
    """Check that the answer is a complete rejection by a share; return True."""
    assert answer.status == 429, answer
    assert answer.body["code"] == "quota_exceeded"
    assert answer.body["error"].startswith(f"{limit}: ")
    assert answer.headers["retry-after"] == "1"
    details = answer.body["details"]
    assert (details["limit"], details["share"], details["of"]) == (limit, share, of)
    return True


@contextlib.contextmanager
def flood(
    service: Running, name: str, n: int, data: Callable[[int], bytes]
) -> Iterator[list[Client]]:
    """Yield this many connections with one request each."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(service.client()) for _ in range(n)]
        for number, client in enumerate(clients):
            client.send(data(number))
        yield clients


def answered_clients(clients: list[Client], seconds: float = 0.5) -> list[Client]:
    """Return the clients that have received data, once nothing more arrives."""
    found = []
    for client in clients:
        client.socket.settimeout(seconds if not found else 0.05)
        with contextlib.suppress(TimeoutError):
            if client.socket.recv(1, socket.MSG_PEEK):
                found.append(client)
        client.socket.settimeout(60.0)
    return found


def test_callers_that_wait_for_migrations(service: Running) -> None:
    waits = keyed_request("greedy", "GET", "/migrations?timeout_ms=60000")
    with flood(service, "greedy", 300, lambda _: waits) as clients:
        eventually(lambda: used_share(service, "migration_waiters") == 64)
        turned_away = answered_clients(clients)
        assert len(turned_away) == 300 - 64
        for client in turned_away:
            assert is_share_refusal(client.answer(), "migration_waiters", 64)
        answer = call(service, "other", "GET", "/migrations?timeout_ms=50")
        assert answer.status == 200
        view = limits(service)["migration_waiters"]
        assert view["refused"]["greedy"] >= 300 - 64
        assert view["share"] == {"bound_key": 64, "tenant": 128, "unbound_key": 224}


def test_pages_that_are_open(service: Running) -> None:
    opens = keyed_request("greedy", "GET", "/live")
    with flood(service, "greedy", 40, lambda _: opens) as clients:
        eventually(lambda: used_share(service, "live_streams") == 8)
        answers = [client.answer() for client in clients]
        assert sum(each.status == 200 for each in answers) == 8
        for each in answers:
            assert each.status == 200 or is_share_refusal(each, "live_streams", 8)
        with service.client() as other:
            other.send(keyed_request("other", "GET", "/live"))
            assert other.answer().status == 200


@pytest.mark.parametrize("path", ["/live", "/migrations/stream", "/migrations?timeout_ms=60000"])
def test_a_client_that_leaves_frees_its_share_at_once(service: Running, path: str) -> None:
    limit = "live_streams" if path == "/live" else "migration_waiters"
    for _ in range(3):
        with flood(service, "greedy", 8, lambda _: keyed_request("greedy", "GET", path)):
            eventually(lambda: used_share(service, limit) == 8)
        begun = time.monotonic()
        eventually(lambda: used_share(service, limit) == 0)
        assert time.monotonic() - begun < HEARTBEAT_S


@pytest.mark.parametrize("size", [8 * MIB - 1024, 2 * MIB - 1024])
def test_unfinished_bodies(service: Running, size: int) -> None:
    """Check both sizes; the shorter bodies are collected before compiled code."""
    small = json.dumps(prompt("greedy", 3)).encode()
    known = keyed_request("greedy", "POST", "/select", small)
    head = keyed_request("greedy", "POST", "/select", b"")
    head = head.replace(b"content-length: 0", b"content-length: %d" % size)
    n = 300 * MIB // size
    share = 64 * MIB
    with flood(service, "greedy", n, lambda _: known) as clients:
        for client in clients:
            assert client.answer().status == 200
        body = small + b" " * (size - len(small) - 1)
        for client in clients:
            with contextlib.suppress(OSError):
                client.send(head + body)
        eventually(lambda: used_share(service, "body_bytes") > share - size)
        assert used_share(service, "body_bytes") <= share
        for client in answered_clients(clients):
            assert is_share_refusal(client.answer(), "body_bytes", share)
        long = json.dumps(prompt("other", 3)).encode() + b" " * MIB
        with service.client() as other:
            data = keyed_request("other", "POST", "/select", long)
            for begin in range(0, len(data), 100_000):
                other.send(data[begin : begin + 100_000])
            assert other.answer().status == 200


def test_workers_models_and_ranks(service: Running) -> None:
    with service.client() as client:

        def register(number: int, **fields: Any) -> Answer:
            body = worker_body(number, tenant_id="red", max_num_batched_tokens=BATCH_TOKENS)
            client.send(keyed_request("greedy", "POST", "/workers", body | fields))
            return client.answer()

        for number in range(100, 355):
            assert register(number, model_name=f"model-{number}").status == 201
        assert is_share_refusal(register(355, model_name="one more"), "partitions", 256)
        for number in range(355, 1123):
            assert register(number).status == 201
        assert is_share_refusal(register(1123), "workers", 1024)
        assert register(100, model_name="model-100").status == 201  # this model exists already
    body = worker_body(5000, tenant_id="blue", max_num_batched_tokens=BATCH_TOKENS)
    body |= {"model_name": "own"}
    assert call(service, "other", "POST", "/workers", body).status == 201
    assert used_share(service, "workers") == 1024
    assert used_share(service, "partitions") == 256


def test_places_in_the_queue(service: Running) -> None:
    booked = {"worker_id": 1, "reservation_id": "full"}
    assert (
        call(service, "greedy", "POST", "/reservations", prompt("greedy", **booked)).status == 201
    )
    waits = keyed_request("greedy", "POST", "/select", prompt("greedy"))
    with flood(service, "greedy", 60, lambda _: waits) as clients:
        eventually(lambda: used_share(service, "queued_requests") == 10)
        turned_away = answered_clients(clients)
        assert len(turned_away) == 50
        for client in turned_away:
            assert is_share_refusal(client.answer(), "queued_requests", 10)
        with flood(
            service,
            "more",
            30,
            lambda _: keyed_request("more", "POST", "/select", prompt("greedy")),
        ) as more:
            eventually(lambda: used_share(service, "queued_requests", "more") == 10)
            for client in answered_clients(more):
                assert is_share_refusal(client.answer(), "queued_requests", 10)
            booked = {"worker_id": 2, "reservation_id": "full too"}
            call(service, "other", "POST", "/reservations", prompt("other", **booked))
            with service.client() as other:
                other.send(keyed_request("other", "POST", "/select", prompt("other")))
                eventually(lambda: used_share(service, "queued_requests", "other") == 1)
                call(service, "other", "DELETE", "/reservations/full too".replace(" ", "%20"))
                assert other.answer().status == 200
        call(service, "greedy", "DELETE", "/reservations/full")
        for client in clients:
            if client not in turned_away:
                assert client.answer().status == 200
    eventually(lambda: used_share(service, "queued_requests") == 0)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_connections_and_reservations(tmp_path: Path, path: tuple[str, ...]) -> None:
    """Check a small share: 8 connections, 200 reservations; two keys of a tenant have 300."""
    small = ("--key-share", "0.001", "--tenant-share", "0.0015")
    with service_with_keys(tmp_path, *small, *path) as service:
        for number, name in enumerate(TENANTS, 1):
            body = worker_body(number, tenant_id=TENANTS[name])
            assert call(service, name, "POST", "/workers", body).status == 201
        books = keyed_request("greedy", "POST", "/select_and_reserve", prompt("greedy"))
        with flood(
            service, "greedy", 20, lambda _: keyed_request("greedy", "GET", "/loads")
        ) as clients:
            answers = [client.answer() for client in clients]
            assert [each.status for each in answers].count(200) == 8
            for client, answer in zip(clients, answers, strict=True):
                if answer.status != 200:
                    assert is_share_refusal(answer, "connections", 8)
                    assert answer.headers["connection"] == "close"
                    assert client.ended()
            alive = [c for c, each in zip(clients, answers, strict=True) if each.status == 200]
            for _ in range(25):
                for client in alive:
                    client.send(books)
                    assert client.answer().status == 200
            alive[0].send(books)
            assert is_share_refusal(alive[0].answer(), "reservations", 200)
            assert (
                call(service, "other", "POST", "/select_and_reserve", prompt("other")).status == 200
            )
        eventually(lambda: used_share(service, "connections") == 0)
        with service.client() as more:
            for _ in range(100):
                more.send(keyed_request("more", "POST", "/select_and_reserve", prompt("greedy")))
                assert more.answer().status == 200
            more.send(keyed_request("more", "POST", "/select_and_reserve", prompt("greedy")))
            assert is_share_refusal(more.answer(), "reservations", 300, "tenant")
        view = limits(service)["reservations"]
        assert view["keys"] == {"greedy": 200, "more": 100, "other": 1}
        assert view["used"] == 301
        assert view["refused"] == {"greedy": 1, "more": 1}
