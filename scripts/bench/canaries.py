"""What canaries cost the event loop: CPU per check, and how many a second it can carry.

    python scripts/bench/canaries.py [--checks 2000] [--ranks 10000] [--seconds 60]

`check` is all of one: its turn, request, connection, answer, judging and the state of the rank, of
an idle loop on uvloop.  `sustained` is a fleet of so many ranks in real time, each due every 30 s:
checks made and skipped a second, and the part of one CPU that they take.  Engines are other
processes that answer at once, in the form of vLLM 0.33.  CPU is that of this process.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import time

import uvloop

from indexer.sockets.names import Names
from select_service.bodies.workers import WorkerRegistration
from select_service.core.due_task import DueTask
from select_service.core.health.canary_prompts import default_prompts
from select_service.core.health.checked import CheckedWorker
from select_service.core.health.kinds import Kind
from select_service.core.health.monitor import HealthMonitor
from select_service.core.health.rules import HealthRules
from select_service.core.identity import PartitionKey
from select_service.core.touched import Touched
from select_service.edge.due import DueTasks
from select_service.edge.health.canaries import Canaries
from select_service.edge.health.lateness import STEP_S
from select_service.edge.health.targets import Target
from select_service.edge.supervised import Callbacks

ROUNDS = 5
RANKS_PER_WORKER = 8
ENGINES = 2
TIMEOUT_S = 5.0
PROMPTS = default_prompts()
RULES = HealthRules(spike_margin_ms=1e3 * TIMEOUT_S)
"""A busy machine makes nobody suspicious."""
BUSY_RANKS, BUSY_INTERVAL_S = 256, 0.05
KEY = PartitionKey("model", "default")


def answer_of(n_tokens=16):
    """What vLLM 0.33 writes, with five likely tokens besides the one that was sampled."""
    ids = [37 * i % 1000 for i in range(n_tokens)]
    likely = [{f"token_id:{x + j}": -0.3 - 1.1 * j for j in range(6)} for x in ids]
    logprobs = {
        "text_offset": [11 * i for i in range(n_tokens)],
        "token_logprobs": [-0.3] * n_tokens,
        "tokens": [f"token_id:{x}" for x in ids],
        "top_logprobs": likely,
    }
    choice = {"index": 0, "text": "word " * n_tokens, "logprobs": logprobs, "token_ids": ids}
    choice |= {"finish_reason": "length", "stop_reason": None, "prompt_token_ids": [1] * 200}
    head = {"id": "cmpl-0", "object": "text_completion", "created": 1, "model": "model"}
    return json.dumps(head | {"choices": [choice], "usage": {"total_tokens": 216}}).encode()


class Serving(asyncio.Protocol):
    """Answers as soon as a request has come."""

    def __init__(self, answer):
        self.answer, self.came = answer, b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.came += data
        head, _, body = self.came.partition(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or -1)
        if 0 <= length <= len(body):
            self.transport.write(self.answer)
            self.transport.close()


def serve(listener):
    body = answer_of()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    answer = head % len(body) + body

    async def run():
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: Serving(answer), sock=listener)
        await asyncio.Event().wait()

    uvloop.run(run())


class Places:
    """All ranks of a worker are behind one endpoint."""

    def __init__(self, monitor, ports, ranks, now):
        self.targets = {}
        for worker_id in range(1, 1 + -(-ranks // RANKS_PER_WORKER)):
            endpoint = f"http://127.0.0.1:{ports[worker_id % len(ports)]}"
            given = WorkerRegistration(worker_id=worker_id, endpoint=endpoint)
            self.targets[worker_id] = Target(given, endpoint, "model", "openai")
            size = min(RANKS_PER_WORKER, ranks - (worker_id - 1) * RANKS_PER_WORKER)
            monitor.joined(CheckedWorker(worker_id, KEY, range(size), endpoint), now)

    def of(self, rank):
        return self.targets[rank.worker_id]

    def prefill_tokens(self, rank):
        return 0


def nothing():
    """Nobody is to be woken."""


def sender_of(ports, ranks, rules):
    """Who decides about so many ranks, and who asks them."""
    monitor = HealthMonitor(rules, lambda key: PROMPTS, lambda rank: 0, Touched(nothing))
    places = Places(monitor, ports, ranks, time.monotonic())
    return monitor, Canaries(monitor, places, Names(), Callbacks(), timeout_s=TIMEOUT_S)


async def checks_us(ports, count):
    """CPU per check, one after the other: ranks are due faster than they can be asked."""
    monitor, sender = sender_of(ports, BUSY_RANKS, RULES._replace(interval_s=BUSY_INTERVAL_S))

    async def make(wanted):
        made = 0
        while made < wanted:
            now = time.monotonic()
            sender._lateness.look(now)
            order = monitor.due(now)
            if order is None:
                await asyncio.sleep(STEP_S)
            else:
                await asyncio.create_task(sender._check(order))
                made += 1

    await make(BUSY_RANKS * len(PROMPTS))
    begun = time.process_time()
    await make(count)
    spent_s = time.process_time() - begun
    assert set(monitor.counts.checks) == {Kind.PASS}, monitor.counts.checks
    return spent_s / count * 1e6


async def sustained(ports, ranks, seconds):
    """Checks per second, skipped turns per second, and the part of a CPU that it takes."""
    monitor, sender = sender_of(ports, ranks, RULES)
    due = DueTasks([DueTask("canaries", STEP_S, sender.step)], time.monotonic())
    running = asyncio.create_task(due.run())
    await asyncio.sleep(2.0)
    begun, cpu = time.monotonic(), time.process_time()
    before = sum(monitor.counts.checks.values())
    await asyncio.sleep(seconds)
    passed_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu
    made = sum(monitor.counts.checks.values()) - before
    running.cancel()
    await sender.stop()
    longest_ms = due.counts["canaries"].longest_s * 1e3
    return made / passed_s, cpu_s / passed_s, longest_ms, monitor.counts.checks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checks", type=int, default=2000, help="in all rounds")
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(ENGINES)]
    engines = [
        multiprocessing.Process(target=serve, args=(each,), daemon=True) for each in listeners
    ]
    for engine in engines:
        engine.start()
    ports = [each.getsockname()[1] for each in listeners]
    count = chosen.checks // ROUNDS
    check = min(uvloop.run(checks_us(ports, count)) for _ in range(ROUNDS))
    print(f"CPU per check: {check:.0f} us")
    if chosen.seconds:
        rate, cpu, longest_ms, kinds = uvloop.run(sustained(ports, chosen.ranks, chosen.seconds))
        print(
            f"{chosen.ranks} ranks, {chosen.seconds:g} s: {rate:.0f} checks/s, {cpu:.1%} of a CPU,"
            f" longest step {longest_ms:.1f} ms, results {dict(kinds)}"
        )
    for engine in engines:
        engine.kill()


if __name__ == "__main__":
    main()
