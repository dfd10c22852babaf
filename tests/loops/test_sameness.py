"""The same requests, usual and nearly so, to a service with a loop and to one in Python alone."""

from random import Random
from typing import Any

import pytest

from tests.builders import worker_body
from tests.fast.mutations import mutated
from tests.fast.requests import AIOHTTP, BARE, HTTPX, HYPER, request
from tests.loops.running import OnLoops
from tests.process.in_thread import InThread
from tests.process.running import Answer, Client, Reached

pytestmark = pytest.mark.process

HEADERS = (HTTPX, AIOHTTP, HYPER, BARE)
PER_CONNECTION = 12
"""Requests; a connection of a loop is handed over with the first that is not usual."""
CONNECTIONS = 20
SCOPES: tuple[dict[str, str], ...] = (
    {"model_name": "m"},
    {"model_name": "m", "tenant_id": "b"},
    {"model_name": "other", "routing_group": "b"},
)


def a_prompt(random: Random) -> dict[str, Any]:
    n = random.choice((1, 3, 4, 9, 33, 200))
    if random.random() < 0.5:
        return {"token_ids": [random.randrange(128_000) for _ in range(n)]}
    hashes = [random.randrange(-(2**63), 2**64) for _ in range(n)]
    return {"block_hashes": hashes, "sequence_hashes": hashes, "isl_tokens": 4 * n}


def a_request(random: Random) -> bytes:
    body = {**random.choice(SCOPES), **a_prompt(random)}
    if random.random() < 0.5:
        body["selection_id"] = f"turn-{random.randrange(1000)}"
    whole = request("POST /select", random.choice(HEADERS), body, random.random() < 0.5)
    if random.random() < 0.2:
        head, blank, content = whole.partition(b"\r\n\r\n")
        spoilt = mutated(content, random)
        length = b"Content-Length: %d\r\n"
        whole = head.replace(length % len(content), length % len(spoilt)) + blank + spoilt
    return whole


def in_parts(random: Random, data: bytes) -> list[bytes]:
    cuts = sorted(random.randrange(len(data)) for _ in range(random.choice((0, 0, 1, 5))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def said(clients: list[Client], parts: list[bytes], n: int) -> list[list[Answer]]:
    for client in clients:
        for part in parts:
            client.send(part)
    return [[_undated(client.answer()) for _ in range(n)] for client in clients]


def _undated(answer: Answer) -> Answer:
    answer.headers.pop("date")
    return answer


def converse(random: Random, services: tuple[Reached, ...]) -> None:
    clients = [service.client() for service in services]
    left = PER_CONNECTION
    while left > 0:
        n = min(left, random.choice((1, 1, 3)))
        left -= n
        data = b"".join(a_request(random) for _ in range(n))
        ours, theirs = said(clients, in_parts(random, data), n)
        assert ours == theirs, data
    for client in clients:
        client.socket.close()


@pytest.mark.parametrize("seed", range(2))
def test_both_answer_the_same(seed: int) -> None:
    random = Random(seed)
    with OnLoops() as loops, InThread("--no-fast-path") as ordinary:
        for number, scope in enumerate(SCOPES, 1):
            body = worker_body(number, **scope, data_parallel_size=2)
            for service in (loops, ordinary):
                assert service.call("POST", "/workers", body).status == 201
        for service in (loops, ordinary):  # so that there is no tie to draw for
            for number, scope in enumerate(SCOPES, 1):
                names = {"worker_id": number, "dp_rank": 1, "reservation_id": f"r{number}"}
                body = {**scope, **names, "token_ids": list(range(40))}
                assert service.call("POST", "/reservations", body).status == 201
        for _ in range(CONNECTIONS):
            converse(random, (loops, ordinary))
