"""How fast an admission is seen by another replica, and what publishing costs.

    python scripts/bench/replicas.py [--rate 2000] [--seconds 10] [--secured] [--reference PYTHON]

With --rate 0 only the costs are measured.

1. Cost: CPU time that publishing a reservation adds, by prompt length: for its admission alone and
   for its whole life (admission, prefill completed, freed), on the request's path (`offer`), on the
   event loop in all (with encoding and sending), and with the thread of libzmq that writes to the
   network.  A subscriber in another process reads.  The best of several rounds of
   ROUND_RESERVATIONS at once, since other processes disturb; shorter rounds would mostly measure
   caches that have gone cold between them.
2. Visibility: a selector process and one of its peers.  Reservations are made at the given rate
   over kept connections; a subscriber in this process stands for the second peer and notes when
   each admission arrives, from the moment its request was sent.  The peer's own count of applied
   events tells that none was dropped.  With --reference the same against the reference service.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zmq

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from indexer.sockets.curve import CurvePair, binding_options, new_pair  # noqa: E402
from select_service.core.identity import Rank  # noqa: E402
from select_service.core.replicas import events as replica_events  # noqa: E402
from select_service.edge.replicas.admitting import ZAP_DOMAIN, Admitting  # noqa: E402
from select_service.edge.replicas.publisher import ReplicaPublisher  # noqa: E402
from select_service.edge.supervised import Callbacks  # noqa: E402
from tests.process.access import OPEN, Open, access, add_flag  # noqa: E402
from tests.process.replica_processes import Replica, mesh  # noqa: E402

CONNECTIONS = 16
ROUNDS = 40
ROUND_RESERVATIONS = 256


SUBSCRIBER = """
import sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.SUBSCRIBE, b"")
if len(sys.argv) > 2:
    socket.curve_serverkey = sys.argv[2].encode()
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
socket.connect(sys.argv[1])
while True:
    socket.recv()
"""


class Cost(NamedTuple):
    """Microseconds of CPU per reservation."""

    offer: float
    loop: float
    process: float


def costs(blocks: int, pair: CurvePair | None) -> list[Cost]:
    """Of an admission, and of a whole life.  pair: of the publisher; None: plain"""
    hashes = np.random.default_rng(0).integers(2**40, 2**63, blocks, dtype=np.uint64)
    common: dict[str, Any] = {
        "model_name": "model",
        "tenant_id": "default",
        "block_size": 16,
        "reservation_id": "0dd5f843-e045-4f63-bf3c-594c0a406ec8",
        "rank": Rank(1, 0),
        "router_id": 2**63 + 5,
    }
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    publisher = ReplicaPublisher(Callbacks())
    loop = asyncio.new_event_loop()
    options: dict[int, Any] = {}
    command = [sys.executable, "-c", SUBSCRIBER]
    if pair is not None:
        admitting = Admitting(context, lambda key: True, Callbacks())
        admitting.start(loop)
        options = binding_options(pair, ZAP_DOMAIN.encode())
    port = _bound(publisher, context, options)
    command += [f"tcp://127.0.0.1:{port}"] + ([] if pair is None else [pair.public.decode()])
    subscriber = subprocess.Popen(command)
    publisher.start(loop)
    loop.run_until_complete(asyncio.sleep(1.0))
    assert publisher.subscribers() == 1
    assert not publisher.refused
    admission: list[Any] = [
        partial(replica_events.Admitted, **common, sequence_hashes=hashes, prefill_tokens_hint=100)
    ]
    ends = [replica_events.PrefillCompleted, replica_events.Freed]
    life = [*admission, *(partial(kind, **common) for kind in ends)]
    result = []
    for events in (admission, life):
        rounds = [_round(publisher, loop, events) for _ in range(ROUNDS)]
        result.append(Cost(*map(min, zip(*rounds, strict=True))))
    subscriber.kill()
    subscriber.wait()
    publisher.close()
    context.destroy(linger=0)
    loop.close()
    return result


def _round(
    publisher: ReplicaPublisher, loop: asyncio.AbstractEventLoop, events: list[Callable[[], Any]]
) -> Cost:
    """Of one round; `events` makes those of one reservation."""
    begin, process_begin = time.thread_time(), time.process_time()
    for _ in range(ROUND_RESERVATIONS):
        for event in events:
            publisher.offer(event())
    offered = time.thread_time()
    loop.run_until_complete(_until_sent(publisher))
    total = time.thread_time()
    time.sleep(0.02)
    process = time.process_time() - process_begin
    seconds = Cost(offered - begin, total - begin, process)
    return Cost(*(1e6 * s / ROUND_RESERVATIONS for s in seconds))


async def _until_sent(publisher: ReplicaPublisher) -> None:
    while publisher.queued:
        await asyncio.sleep(0)


def _bound(
    publisher: ReplicaPublisher,
    context: "zmq.Context[zmq.Socket[bytes]]",
    options: dict[int, Any],
) -> int:
    rng = Random()
    while True:
        port = rng.randrange(20_000, 60_000)
        try:
            publisher.bind(context, f"tcp://127.0.0.1:{port}", options)
        except zmq.ZMQError:
            continue
        return port


class Arrivals(threading.Thread):
    """Notes when admissions arrive, by reservation id."""

    def __init__(self, endpoint: str, how: Open) -> None:
        super().__init__(daemon=True)
        self.at: dict[str, float] = {}
        self._stopping = False
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 1_000_000)
        self._socket.setsockopt(zmq.SUBSCRIBE, replica_events.TOPIC)
        for option, value in how.listening_to(endpoint).items():
            self._socket.setsockopt(option, value)
        self._socket.connect(endpoint)

    def run(self) -> None:
        decoder = msgspec.msgpack.Decoder()
        while not self._stopping:
            if not self._socket.poll(50):
                continue
            _, payload = self._socket.recv_multipart()
            now = time.perf_counter()
            event = decoder.decode(payload)["event"]
            if isinstance(event["data"], dict):
                self.at[event["request_id"]] = now

    def stop(self) -> None:
        self._stopping = True
        self.join()


class Times(NamedTuple):
    """When each request was sent and answered, by reservation id."""

    sent: dict[str, float]
    answered: dict[str, float]


async def reserve_at(
    how: Open, port: int, rate: float, seconds: float, with_free: bool, times: Times
) -> float:
    """Reserve, and free, at a steady rate; notes the times of each request.  Seconds it took."""
    sent, answered = times
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    fields = {"host": "localhost", "content-type": "application/json", **how.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=how.trust)

        async def call(method: str, path: str, body: Any) -> None:
            raw = b"" if body is None else json.dumps(body).encode()
            head = f"{method} {path} HTTP/1.1\r\n{lines}"
            writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(raw) + raw)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.split(b" ", 2)[1] in (b"200", b"201"), answer
            length = next(
                line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            await reader.readexactly(int(length.split(b":")[1]))

        while (name := await queue.get()) is not None:
            start = int(name[1:]) * 7 % 1000
            body = {
                "reservation_id": name,
                "selection_id": name,
                "model_name": "m",
                "tenant_id": "t",
                "block_hashes": list(range(start, start + 32)),
                "sequence_hashes": list(range(start, start + 32)),
                "isl_tokens": 128,
            }
            sent[name] = time.perf_counter()
            await call("POST", "/select_and_reserve", body)
            answered[name] = time.perf_counter()
            if with_free:
                await call("DELETE", f"/reservations/{name}", None)
        writer.close()

    workers = [asyncio.create_task(connection()) for _ in range(CONNECTIONS)]
    begin = time.perf_counter()
    for number in range(int(rate * seconds)):
        delay = begin + number / rate - time.perf_counter()
        if delay > 0.0005:
            await asyncio.sleep(delay)
        queue.put_nowait(f"r{number}")
    for _ in workers:
        queue.put_nowait(None)
    await asyncio.gather(*workers)
    return time.perf_counter() - begin


def visibility(
    how: Open, rate: float, seconds: float, with_free: bool, python: str | None
) -> dict[str, float]:
    """Milliseconds from a request, and from its answer, to the arrival of its admission."""
    both = Replica(python=python, access=how), Replica(access=how)
    with both[0] as sender, both[1] as peer:
        mesh(sender, peer)
        arrivals = Arrivals(sender.endpoint, how)
        arrivals.start()
        time.sleep(1.5)
        times = Times({}, {})
        taken = asyncio.run(reserve_at(how, sender.port, rate, seconds, with_free, times))
        time.sleep(0.5)
        arrivals.stop()
        seen = peer.peer(sender)
        seen_at, n = arrivals.at, len(times.sent)
        asked = [1e3 * (at - times.sent[name]) for name, at in seen_at.items()]
        after = [1e3 * (at - times.answered[name]) for name, at in seen_at.items()]
        result = {"rate": n / taken}
        for label, delays in (("from request", asked), ("from answer", after)):
            for q in (50, 99, 99.9):
                result[f"{label} p{q} ms"] = float(np.percentile(delays, q))
        result["not arrived"] = n - len(seen_at)
        result["not applied by the peer"] = n * (1 + with_free) - seen["applied"]
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description="replica plane: visibility and cost")
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--reference", default=os.environ.get("SELECT_SERVICE_REFERENCE_PYTHON"))
    parser.add_argument("--free", action="store_true", help="free each reservation at once")
    add_flag(parser)
    options = parser.parse_args()
    pair = new_pair() if options.secured else None
    print("us CPU per reservation  offer  on the loop  with libzmq's thread")
    for blocks in (8, 128, 2048):
        for what, cost in zip(("admission", "whole life"), costs(blocks, pair), strict=True):
            print("{:5d} blocks, {:10} {:6.2f} {:12.2f} {:21.2f}".format(blocks, what, *cost))
    if not options.rate:
        return
    asked = options.rate, options.seconds, options.free
    with access(options.secured) as how:
        tell("ours", visibility(how, *asked, None))
    if options.reference:
        tell("reference", visibility(OPEN, *asked, options.reference))


def tell(name: str, result: dict[str, float]) -> None:
    print(name, ", ".join(f"{key} {value:.2f}" for key, value in result.items()))


if __name__ == "__main__":
    main()
