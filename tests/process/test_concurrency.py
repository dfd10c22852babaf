"""Tests of many clients during catalog changes and event streams: nothing is lost or doubled."""

import asyncio
import contextlib
import json
import random
import re
import socket
from typing import NamedTuple

import aiohttp
import numpy as np
import pytest
import zmq.asyncio

from select_service.sim.demo.kv_publisher import KvPublisherSockets
from select_service.sim.engine.block_catalog import BlockCatalog
from select_service.sim.engine.kv_block_pool import KvBlockPool
from select_service.sim.engine.prefix_cache import PrefixCache
from tests.builders.service_process import ServiceProcess

pytestmark = pytest.mark.process

CLIENTS = 64
LIVES_PER_CLIENT = 12
BLOCK_SIZE = 16
STABLE = (1, 2)
"""Permanent workers; 3 and 4 come and go."""
PASSING = (3, 4)


def worker_body(worker_id, publisher=None):
    endpoint = publisher.endpoint if publisher else f"tcp://127.0.0.1:{worker_id}"
    return {
        "worker_id": worker_id,
        "endpoint": f"http://w{worker_id}",
        "block_size": BLOCK_SIZE,
        "kv_events_endpoint": endpoint,
        "replay_endpoint": publisher.replay_endpoint if publisher else None,
    }


def prompt(rng):
    head = rng.randrange(4)
    return [head * 1000 + i for i in range(16 * rng.randrange(1, 8))] + [
        rng.randrange(100_000) for _ in range(rng.randrange(40))
    ]


class Answer(NamedTuple):
    status: int
    text: str


class Lives:
    """Clients that run reservations from booking to end and check every answer."""

    def __init__(self, http, seed):
        self.http, self.rng = http, random.Random(seed)
        self.unexpected = []
        self.booked = set()
        self.record_freed = 0

    async def call(self, method, path, expected, **arguments):
        async with self.http.request(method, path, **arguments) as answer:
            text = await answer.text()
        if answer.status not in expected:
            self.unexpected.append((method, path, answer.status, text[:200]))
        return Answer(answer.status, text)

    async def one_client(self, number):
        for life in range(LIVES_PER_CLIENT):
            await self.one_life(f"c{number}-{life}")

    async def one_life(self, name):
        tokens = prompt(self.rng)
        if self.rng.random() < 0.5:
            body = {"reservation_id": name, "token_ids": tokens}
            answer = await self.call("POST", "/select_and_reserve", (200,), json=body)
        else:
            worker_id = self.rng.choice(STABLE)
            body = {"reservation_id": name, "token_ids": tokens, "worker_id": worker_id}
            answer = await self.call("POST", "/reservations", (201,), json=body)
        if answer.status not in (200, 201):
            return
        self.booked.add(name)
        again = {"reservation_id": name, "token_ids": tokens}
        # On a passing worker the reservation may end with its rank at any moment.
        passing = json.loads(answer.text)["worker_id"] in PASSING
        gone = (404,) if passing else ()
        if self.rng.random() < 0.2 and not passing:
            await self.call("POST", "/select_and_reserve", (409,), json=again)
        await self.call("POST", f"/reservations/{name}/prefill_complete", (200, *gone))
        for _ in range(self.rng.randrange(4)):
            decay = {"decay_fraction": self.rng.random()} if self.rng.random() < 0.5 else {}
            path = f"/reservations/{name}/output_block"
            await self.call("POST", path, (200, *gone), json=decay)
        if self.rng.random() < 0.3:
            both = await asyncio.gather(
                *(self.call("DELETE", f"/reservations/{name}", (200, 404)) for _ in range(2))
            )
            if not passing:
                assert sorted(each.status for each in both) == [200, 404]
        else:
            await self.call("DELETE", f"/reservations/{name}", (200, *gone))
        self.record_freed += 1

    async def change_the_catalog(self, done):
        while not done.is_set():
            worker_id = self.rng.choice(PASSING)
            await self.call("POST", "/workers", (201,), json=worker_body(worker_id))
            steady = self.rng.choice(STABLE)
            change = {"taints": [f"t{self.rng.randrange(3)}"], "endpoint": f"http://w{steady}"}
            await self.call("PATCH", f"/workers/{steady}", (200,), json=change)
            await self.call("DELETE", f"/workers/{worker_id}", (200,))
            await self.call("GET", "/loads", (200,))
            await self.call("GET", "/dump", (200,))

    async def stream_events(self, engines, publishers, done):
        while not done.is_set():
            for engine, publisher in zip(engines, publishers, strict=True):
                assert engine.cache_tokens(np.array(prompt(self.rng), np.uint32))
                publisher.publish_batch(engine.take_events())
            await asyncio.sleep(0.002)


def test_sixty_four_clients_lose_and_double_nothing():
    asyncio.run(_hammer())


async def _hammer():
    context = zmq.asyncio.Context()
    publishers = [KvPublisherSockets(context, 0) for _ in STABLE]
    catalog = BlockCatalog(BLOCK_SIZE)
    engines = [PrefixCache(KvBlockPool(0, 64), catalog, worker_id) for worker_id in STABLE]
    with ServiceProcess({}) as service:
        for worker_id, publisher in zip(STABLE, publishers, strict=True):
            assert service.post("/workers", worker_body(worker_id, publisher)).status == 201
        base = f"http://127.0.0.1:{service.port}"
        limits = aiohttp.TCPConnector(limit=CLIENTS + 8)
        async with aiohttp.ClientSession(base, connector=limits) as http:
            lives, done = Lives(http, seed=5), asyncio.Event()
            beside = [
                asyncio.create_task(lives.change_the_catalog(done)),
                asyncio.create_task(lives.stream_events(engines, publishers, done)),
            ]
            await asyncio.gather(*(lives.one_client(n) for n in range(CLIENTS)))
            done.set()
            await asyncio.gather(*beside)
        assert lives.unexpected == []
        assert lives.record_freed == len(lives.booked) == CLIENTS * LIVES_PER_CLIENT
        assert service.get("/reservations").body["total"] == 0
        for partition in service.get("/loads").body:
            for row in partition["loads"]:
                assert row["potential_prefill_tokens"] == 0
                assert row["potential_decode_blocks"] == 0
                assert row["active_requests"] == 0
    for publisher in publishers:
        publisher.close()
    context.term()


@pytest.mark.parametrize("no_fast_path", ["false", "true"])
def test_hostile_bytes_leave_the_service_answering(no_fast_path):
    """Check that each attack keeps its connection while the next good request is answered."""
    with ServiceProcess({"SELECT_SERVICE_NO_FAST_PATH": no_fast_path}) as service:
        service.post("/workers", worker_body(1))
        open_sockets = []
        for attack in attacks():
            hostile = socket.create_connection(("127.0.0.1", service.port), timeout=60)
            open_sockets.append(hostile)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                hostile.sendall(attack)
                if len(open_sockets) % 2:
                    hostile.shutdown(socket.SHUT_WR)
            assert service.post("/select", {"token_ids": [1, 2, 3]}).status == 200
        for hostile in open_sockets:
            hostile.close()
        statuses = re.findall(r'status="5(?!03)', service.get("/metrics").body)
        assert statuses == []


def attacks():
    def post(path, body, length=None, kind="application/json"):
        size = len(body) if length is None else length
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\n"
        return f"{head}content-length: {size}\r\n\r\n".encode() + body

    yield b"\x00" * 100
    yield b"GET / HTTP/9.9\r\n\r\n"
    yield b"POST /select HTTP/1.1\r\nhost: x\r\n"
    yield b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"
    yield b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000
    yield post("/select", b"[" * 100_000)
    yield post("/select", b'{"x":' * 100_000)
    yield post("/select", b'{"token_ids":[' + b"9" * 1_000_000 + b"]}")
    yield post("/select", b'{"token_ids":[1e999999]}')
    yield post("/select", b'{"isl_tokens":' + b"1" * 5000 + b"}")
    yield post("/select", b'{"a":"' + b"x" * (8 * 2**20) + b'"}')
    yield post("/select", b'{"token_ids":[1', length=10_000_000)
    yield post("/select", b"\xff\xfe\xfd")
    yield post("/select", b'{"token_ids":[1]}', length=3)
    yield post("/select", b'{"a":[' + b'"",' * 1_000_000 + b'""]}')
    yield post("/workers", b'{"worker_id":7,"data_parallel_size":4294967295}')
    yield post("/workers", b'{"worker_id":9,"model_name":"' + b"m" * 1_000_000 + b'"}')
    yield post("/reservations/" + "%ff" * 1000 + "/renew", b"")
    yield post("/select", b"{}", kind="text/plain")
    yield b"POST /select HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nfffffffff\r\n"
    chunked = b"POST /select HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    yield chunked + b"transfer-encoding: chunked\r\n\r\n" + b"100000\r\n" + b" " * 0x100000
    yield b"".join(post("/select", b'{"token_ids":[1]}') for _ in range(500))


def test_client_that_left_before_booking_books_nothing():
    with ServiceProcess({}) as service:
        service.post("/workers", worker_body(1))
        body = b'{"token_ids":[1,2,3,4]}'
        head = b"POST /select_and_reserve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        for _ in range(50):
            client = socket.create_connection(("127.0.0.1", service.port))
            client.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body[:-1])
            client.close()
        assert service.get("/health").status == 200
        assert service.get("/reservations").body["total"] == 0
