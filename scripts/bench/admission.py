"""What the admission stage costs, and how fast it says no and lets those go who wait.

    python scripts/bench/admission.py [--starts 5] [part ...]

Parts, all by default:

    core      CPU of select_and_reserve and free together, in the core, by what is switched on.  All
              contenders are processes of their own on one CPU that measure in turns, round by
              round; a cell is the median over several starts of the least round of each, because
              other work on the machine only ever adds.
    refuse    latency of refusals: CONNECTIONS clients without pause, two busy workers; `starved` is
              the part of the time in which the service could not run because others had its CPU
    wake      from the answer to prefill_complete to the answer of the request that waited for it,
              with and without many others in the queue, who wait for another worker
"""

import argparse
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.contenders import LOAD_CPU, ROOT, Running, ours, pin_load
from scripts.bench.http_load import hammer

SETUPS = ("off", "thresholds", "queue", "all")
WORKERS = (8, 256)
PAIRS = 500
ROUNDS = 30
CONNECTIONS = 64
REFUSE_S = 10
WAKES = 300
BEHIND = (0, 1000)
PROMPT = '"model_name":"m","token_ids":[' + ",".join(map(str, range(16))) + "]"
OTHER = ',"pinned_worker":{"worker_id":2,"dp_rank":0}'


class Core:
    """A process that times one setup when it is told to."""

    def __init__(self, setup: str, workers: int) -> None:
        program = ROOT / "scripts/bench/admission_core.py"
        self._process = subprocess.Popen(
            (sys.executable, program, setup, str(workers), str(PAIRS)),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def round_us(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def part_core(chosen: argparse.Namespace) -> None:
    print("| workers | " + " | ".join(SETUPS) + " |")
    print("|" + "---|" * (len(SETUPS) + 1))
    for workers in WORKERS:
        starts = [least_rounds(workers) for _ in range(chosen.starts)]
        medians = [statistics.median(row[setup] for row in starts) for setup in SETUPS]
        added = [statistics.median(row[setup] - row["off"] for row in starts) for setup in SETUPS]
        cells = [f"{us:.1f} ({more:+.1f})" for us, more in zip(medians, added, strict=True)]
        print(f"| {workers} | " + " | ".join(cells) + " |", flush=True)


def least_rounds(workers: int) -> dict[str, float]:
    """Microseconds by setup."""
    with ExitStack() as stack:
        cores = {}
        for setup in SETUPS:
            cores[setup] = Core(setup, workers)
            stack.callback(cores[setup].close)
        rounds = [{setup: core.round_us() for setup, core in cores.items()} for _ in range(ROUNDS)]
    return {setup: min(row[setup] for row in rounds) for setup in SETUPS}


@contextmanager
def service(*flags: str, workers: int = 1) -> Iterator[Running]:
    """A real process whose workers are full."""
    os.environ["DYN_USE_KV_EVENTS"] = "false"
    with Running(ours().with_flags(*flags)) as running:
        running.wait_until_healthy()
        for worker_id in range(1, workers + 1):
            given = {"worker_id": worker_id, "model_name": "m", "endpoint": "http://w"}
            sizes = {"block_size": 4, "max_num_batched_tokens": 16}
            running.call("POST", "/workers", given | sizes)
            book(running, worker_id)
        yield running


def book(running: Running, worker_id: int = 1) -> None:
    body: dict[str, Any] = {"model_name": "m", "token_ids": list(range(16))}
    body |= {"worker_id": worker_id, "reservation_id": f"full-{worker_id}"}
    running.call("POST", "/reservations", body)


def part_refuse(chosen: argparse.Namespace) -> None:
    print("| CPU of the service, us | starved, % | refusals/s | p50, ms | p99, ms | greatest, ms |")
    print("|" + "---|" * 6)
    body = ("{" + PROMPT + "}").encode()
    with service("--active-prefill-tokens-threshold", "10", workers=2) as running:
        for _ in range(chosen.starts):
            cpu, starved = running.cpu_s(), running.starved_s()
            found = hammer(running.port, [body], CONNECTIONS, REFUSE_S)
            cpu_us = 1e6 * (running.cpu_s() - cpu) / found.requests
            assert found.errors == found.requests, "some were not refused"
            starved = 100 * (running.starved_s() - starved) / REFUSE_S
            cells = (f"{us / 1e3:.1f}" for us in (found.p50_us, found.p99_us, found.greatest_us))
            rate = found.requests / REFUSE_S
            print(
                f"| {cpu_us:.0f} | {starved:.0f} | {rate:.0f} | " + " | ".join(cells) + " |",
                flush=True,
            )


def part_wake(chosen: argparse.Namespace) -> None:
    print("| others that wait | p50, ms | p99, ms | greatest, ms |\n|---|---|---|---|")
    for behind in BEHIND:
        with service("--queue-threshold", "0.5", workers=2) as running, ExitStack() as stack:
            for _ in range(behind):
                stack.enter_context(asked(running.port, post("/select", PROMPT + OTHER)))
            wait_for(partial(has_pending, running, behind))
            seconds = sorted(wake_s(running, behind) for _ in range(WAKES))
        cells = (seconds[WAKES // 2], seconds[WAKES * 99 // 100], seconds[-1])
        print(f"| {behind} | " + " | ".join(f"{1e3 * s:.2f}" for s in cells) + " |", flush=True)


def wake_s(running: Running, behind: int) -> float:
    """Seconds from the answer to what made room to the answer of who waited."""
    with asked(running.port, post("/select", PROMPT)) as waiting:
        wait_for(lambda: pending(running) == behind + 1)
        with asked(running.port, post("/reservations/full-1/prefill_complete")) as freeing:
            at: dict[socket.socket, float] = {}
            while len(at) < 2:
                left = [each for each in (waiting, freeing) if each not in at]
                for each in select.select(left, (), ())[0]:
                    at[each] = time.perf_counter()
                    assert each.recv(65536).startswith(b"HTTP/1.1 200"), "refused"
    running.call("DELETE", "/reservations/full-1")
    book(running)
    return at[waiting] - at[freeing]


def pending(running: Running) -> int:
    (partition,) = running.call("GET", "/loads")
    return int(partition["pending_count"])


def has_pending(running: Running, count: int) -> bool:
    return pending(running) == count


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60.0
    while not is_so():
        assert time.monotonic() < until


def asked(port: int, request: bytes) -> socket.socket:
    """A connection on which a request has been sent."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(request)
    return connection


def post(path: str, fields: str = "") -> bytes:
    body = ("{" + fields + "}").encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


PARTS = {"core": part_core, "refuse": part_refuse, "wake": part_wake}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=5, help="of every contender")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    chosen = parser.parse_args()
    pin_load()
    assert os.sched_getaffinity(0) == {LOAD_CPU}
    for name in chosen.parts or PARTS:
        PARTS[name](chosen)


if __name__ == "__main__":
    main()
