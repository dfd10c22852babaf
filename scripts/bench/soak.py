#!/usr/bin/env python3
"""Does anything hold up the event loop or the index?  The longest steps of both, phase by phase.

    python scripts/bench/soak.py [--before COMMIT] [--blocks 3000000] [--secured] ...

One service in a process of its own (soak_service.py times it) and, next to each other:

    first     the first answers
    fill      two ranks announce all blocks, two thirds and one third of them
    book      leases of 32 blocks are made
    expire    all of them end at once: the process is stopped until the last is over
    wide      workers of 1,024 ranks come, change and go, one after the other
    long      prompts of 8,192 blocks are booked until their tables have grown several times
    register  512 workers of 8 ranks each come, all with one quiet events endpoint
    patch     the rank with one third of the blocks moves to another events endpoint
    clear     the other one clears its cache

while one client asks POST /select with a prompt of 512 blocks without pause.  CPU is that of the
thread that does the step or holds the lock, garbage collections included; wall time holds what
others took as well.  With --before the same is measured first on the sources of another commit.
"""

import argparse
import contextlib
import json
import os
import resource
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from scripts.bench import fleet
from scripts.bench.contenders import Contender, unpacked
from tests.process.access import Open, access, add_flag
from tests.process.launched import ROOT, Launched, free_port
from tests.process.running import request

PROMPT_BLOCKS = 512
LEASE_BLOCKS = 32
LEASE_S = 60.0
PIPELINED = 50
"""Leases that are asked for at once."""
LONG_PROMPTS, LONG_BLOCKS = 100, 8192
WIDE_WORKERS, WIDE_RANKS = 8, 1024
RANKS_PER_WORKER = 8
REGISTRATIONS = 512
PHASE_S_MAX = 300.0
QUIET_S = 2.0
"""After a phase, for what it left for later turns."""
POLL_S = 0.05
FIRST_SEED = 20_000
MODEL = {"model_name": "m"}
HEADS = (
    *("phase", "step CPU ms", "wall", "which", "hold CPU ms", "wall", "which"),
    *("collection CPU ms", "wall", "which"),
    *("select p50 ms", "p99", "max"),
)


class Client:
    """One kept connection."""

    def __init__(self, how: Open, port: int) -> None:
        self._connection = how.connection(port)
        self._headers = {"content-type": "application/json"} | how.headers

    def call(self, method: str, path: str, body: bytes | dict[str, Any] | None = None) -> Any:
        raw = json.dumps(body).encode() if isinstance(body, dict) else body
        self._connection.request(method, path, raw, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status // 100 == 2, f"{method} {path}: {answer.status} {content!r}"
        return msgspec.json.decode(content)

    def overlap(self, known: fleet.Conversation) -> int:
        """Blocks of the conversation that the best rank holds."""
        hashes = fleet.signed(known.blocks)
        body = {"block_hashes": hashes, "sequence_hashes": hashes, "isl_tokens": len(hashes)}
        rows = self.call("POST", "/overlap_scores", MODEL | body)["workers"]
        return max((int(row["device_blocks"]) for row in rows), default=0)


class Selecting(threading.Thread):
    """Asks without pause; `take` gives the seconds that answers took since the last time."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        known = fleet.conversation(FIRST_SEED, fleet.DEPTH_BLOCKS)
        prompt = json.loads(fleet.select_bodies([known], PROMPT_BLOCKS)[0])
        self._client, self._body = client, json.dumps(MODEL | prompt).encode()
        self._ends = threading.Event()
        self._seconds: list[float] = []

    def run(self) -> None:
        while not self._ends.is_set():
            begin = time.perf_counter()
            self._client.call("POST", "/select", self._body)
            self._seconds.append(time.perf_counter() - begin)

    @property
    def count(self) -> int:
        return len(self._seconds)

    def take(self) -> list[float]:
        taken, self._seconds = self._seconds, []
        return sorted(taken)

    def stop(self) -> None:
        self._ends.set()
        self.join()


class Soak:
    """The service of one commit, its two engines and what they hold."""

    def __init__(self, contender: Contender, chosen: argparse.Namespace, how: Open) -> None:
        self.chosen, self.how = chosen, how
        self.port = free_port()
        place = ("--host", "127.0.0.1", "--port", str(self.port), "--log-format", "json")
        flags = ("--threads", "1", "--reservation-ttl-secs", str(LEASE_S))
        environment = {**os.environ, "PYTHONPATH": str(contender.tree)}
        command = (*contender.command, *place, *flags, *how.flags)
        self.launched = Launched(
            command, environment, self.port, folder=contender.tree, trust=how.trust
        )
        self.launched.wait_until_healthy()
        self.client = self.new_client()
        self.engines, self.crowd = fleet.Engines(2), fleet.Engines(1)
        self.selecting = Selecting(self.new_client())
        self.told = 0

    def new_client(self) -> Client:
        return Client(self.how, self.port)

    def close(self) -> None:
        self.launched.end()
        self.engines.close()
        self.crowd.close()

    def register(self, worker_id: int, **fields: Any) -> None:
        body = {"worker_id": worker_id, "endpoint": "http://w", "block_size": fleet.BLOCK_SIZE}
        self.client.call("POST", "/workers", MODEL | body | fields)

    def longest(self) -> dict[str, Any]:
        """What the stopwatch says since the last time."""
        self.told += 1
        os.kill(self.launched.process.pid, signal.SIGUSR1)
        rows: list[dict[str, Any]] = []

        def is_told() -> bool:
            rows[:] = [r for r in self.launched.log_lines() if r["message"] == "longest"]
            return len(rows) >= self.told

        until(is_told)
        return rows[self.told - 1]

    # --- phases

    def first_answers(self) -> None:
        until(lambda: self.selecting.count > 0)

    def fill(self) -> None:
        depth = fleet.DEPTH_BLOCKS
        numbers = max(3, self.chosen.blocks // depth)
        self.first = fleet.conversation(FIRST_SEED, depth)
        for number in range(numbers):
            known = fleet.conversation(FIRST_SEED + number, depth)
            worker = int(number % 3 == 2)
            for begin in range(0, depth, fleet.EVENT_BLOCKS):
                payload = fleet.stored(known, begin, begin + fleet.EVENT_BLOCKS)
                self.engines.publish(worker, payload)
        lasts = [fleet.conversation(FIRST_SEED + numbers - 1 - n, depth) for n in range(3)]
        until(lambda: all(self.client.overlap(each) == depth for each in lasts))

    def book(self) -> None:
        with self.how.socket(self.port) as connection:
            for first in range(0, self.chosen.leases, PIPELINED):
                numbers = range(first, first + PIPELINED)
                connection.sendall(b"".join(lease(number, self.how) for number in numbers))
                answers = b""
                while answers.count(b"HTTP/1.1 201 ") < PIPELINED:
                    answers += (received := connection.recv(1 << 16))
                    assert received, answers[-1000:]
        self.booked_at = time.monotonic()

    def expire(self) -> None:
        held = self.client.call("GET", "/reservations")["total"]
        assert held == self.chosen.leases, f"{held} leases are left: this machine is too slow"
        self.selecting.stop()  # what is asked while the process stands still is too late after
        os.kill(self.launched.process.pid, signal.SIGSTOP)
        try:
            time.sleep(max(0.0, self.booked_at + LEASE_S + 1.0 - time.monotonic()))
        finally:
            os.kill(self.launched.process.pid, signal.SIGCONT)
        self.client, self.selecting = self.new_client(), Selecting(self.new_client())
        self.selecting.start()
        until(lambda: self.client.call("GET", "/reservations")["total"] == 0)

    def wide(self) -> None:
        (endpoint,) = self.crowd.endpoints
        ranks = {str(rank): endpoint for rank in range(WIDE_RANKS)}
        for number in range(WIDE_WORKERS):
            path = f"/workers/{1000 + number}"
            self.register(1000 + number, data_parallel_size=WIDE_RANKS, kv_events_endpoints=ranks)
            self.client.call("PATCH", path, {"taints": ["slow"]})
            self.client.call("DELETE", path)

    def long_prompts(self) -> None:
        for number in range(LONG_PROMPTS):
            self.client.call("POST", "/reservations", reservation(number, LONG_BLOCKS))

    def register_many(self) -> None:
        (endpoint,) = self.crowd.endpoints
        ranks = {str(rank): endpoint for rank in range(RANKS_PER_WORKER)}
        for number in range(REGISTRATIONS):
            self.register(
                100 + number, data_parallel_size=RANKS_PER_WORKER, kv_events_endpoints=ranks
            )

    def patch(self) -> None:
        moved = fleet.conversation(FIRST_SEED + 2, fleet.DEPTH_BLOCKS)
        other = fleet.Engines(1)
        self.client.call("PATCH", "/workers/2", {"kv_events_endpoint": other.endpoints[0]})
        until(lambda: self.client.overlap(moved) == 0)
        other.close()

    def clear(self) -> None:
        self.engines.publish(0, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]], 0]))
        until(lambda: self.client.overlap(self.first) == 0)


def reservation(number: int, blocks: int) -> dict[str, Any]:
    first = number * blocks
    return MODEL | {
        "reservation_id": f"r{number}",
        "worker_id": 1 + number % 2,
        "dp_rank": 0,
        "sequence_hashes": list(range(first, first + blocks)),
        "isl_tokens": blocks * fleet.BLOCK_SIZE,
    }


def lease(number: int, how: Open) -> bytes:
    return request("POST", "/reservations", reservation(number, LEASE_BLOCKS), **how.headers)


PHASES: dict[str, Callable[[Soak], None]] = {
    "first": Soak.first_answers,
    "fill": Soak.fill,
    "book": Soak.book,
    "expire": Soak.expire,
    "wide": Soak.wide,
    "long": Soak.long_prompts,
    "register": Soak.register_many,
    "patch": Soak.patch,
    "clear": Soak.clear,
}


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PHASE_S_MAX
    while not is_so():
        assert time.monotonic() < end, "a phase takes too long"
        time.sleep(POLL_S)


def soaked(contender: Contender, chosen: argparse.Namespace, how: Open) -> None:
    soak = Soak(contender, chosen, how)
    with contextlib.closing(soak):
        for worker, endpoint in enumerate(soak.engines.endpoints, start=1):
            soak.register(worker, kv_events_endpoint=endpoint)
        soak.engines.wait_for_subscribers()
        print(f"\n### {contender.name}\n\n| " + " | ".join(HEADS) + " |")
        print("|---" * len(HEADS) + "|")
        soak.longest()
        soak.selecting.start()
        for name, phase in PHASES.items():
            phase(soak)
            time.sleep(QUIET_S)
            print_row(name, soak.longest(), soak.selecting.take())
        soak.selecting.stop()


def print_row(name: str, longest: dict[str, Any], seconds: list[float]) -> None:
    cells = [name]
    for kind in ("step", "hold", "collection"):
        row = longest[kind]
        cells += [f"{row['cpu_ms']:.1f}", f"{row['wall_ms']:.1f}", f"`{row['what']}`"]
    p99 = seconds[len(seconds) * 99 // 100]
    cells += [f"{1e3 * s:.1f}" for s in (statistics.median(seconds), p99, seconds[-1])]
    print("| " + " | ".join(cells) + " |", flush=True)


@contextlib.contextmanager
def contenders(before: str | None) -> Iterator[list[Contender]]:
    program = (sys.executable, str(ROOT / "scripts/bench/soak_service.py"))
    with contextlib.ExitStack() as stack:
        trees = {} if before is None else {before: stack.enter_context(unpacked(before))}
        yield [Contender(name, program, tree) for name, tree in {**trees, "now": ROOT}.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description="The longest steps of the service, by phase.")
    parser.add_argument("--before", metavar="COMMIT", help="measure these sources first")
    parser.add_argument("--blocks", type=int, default=3_000_000, help="in the index")
    parser.add_argument("--leases", type=int, default=20_000, help=f"a multiple of {PIPELINED}")
    parser.add_argument("--only-before", action="store_true", help="not the sources of now")
    add_flag(parser)
    chosen = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contenders(chosen.before) as found, access(chosen.secured) as how:
        for contender in found[: 1 if chosen.only_before else None]:
            soaked(contender, chosen, how)


if __name__ == "__main__":
    main()
