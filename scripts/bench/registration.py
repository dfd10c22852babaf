#!/usr/bin/env python3
"""How long a fleet takes to register: N workers of M ranks with KV events, over HTTP.

    scripts/bench/registration.py [--workers 512] [--ranks 8] [--clients 1,16]

Starts the service of the working directory in a process of its own.  No engine is there, so what
is measured are the catalog, the listeners and their sockets.  A rank takes four descriptors.
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import NamedTuple

START_S_MAX = 300.0
REQUEST_S_MAX = 120.0
BLOCK_SIZE = 16
TOLD = slice(-2000, None)


class Took(NamedTuple):
    seconds: float
    slowest_ms: float
    cpu_s: float


def body(worker_id: int, ranks: int) -> bytes:
    port = 20_000 + worker_id % 1000
    endpoints = {str(rank): f"tcp://127.0.0.1:{port + rank}" for rank in range(ranks)}
    return json.dumps(
        {
            "worker_id": worker_id,
            "model_name": "m",
            "endpoint": f"http://worker-{worker_id}:8000",
            "block_size": BLOCK_SIZE,
            "data_parallel_size": ranks,
            "kv_events_endpoints": endpoints,
        }
    ).encode()


class Service:
    """A process of the service on a free port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "select_service",
            "--port",
            str(self.port),
            "--drain-secs=0",
        ]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._own = local()
        until = time.monotonic() + START_S_MAX
        while not self._answers():
            assert time.monotonic() < until, "the service does not start"
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            self._own.connection = None
            return False

    def ask(self, method: str, path: str, content: bytes | None = None) -> tuple[int, bytes]:
        """Every thread has its connection."""
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S_MAX)
            self._own.connection = connection
        headers = {} if content is None else {"content-type": "application/json"}
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def cpu_s(self) -> float:
        """CPU of the service since its start, of all its threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        user, system = fields[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(REQUEST_S_MAX)


def measure(workers: int, ranks: int, clients: int) -> tuple[Took, Took]:
    """All workers are registered, then all are deleted."""
    service = Service()
    bodies = [body(worker_id, ranks) for worker_id in range(workers)]

    def register(worker_id: int) -> float:
        begun = time.perf_counter()
        status, answer = service.ask("POST", "/workers", bodies[worker_id])
        assert status == 201, answer[TOLD]
        assert b'"schedulable"' in answer, answer[TOLD]
        return time.perf_counter() - begun

    def delete(worker_id: int) -> float:
        begun = time.perf_counter()
        assert service.ask("DELETE", f"/workers/{worker_id}")[0] == 200
        return time.perf_counter() - begun

    try:
        results = []
        with ThreadPoolExecutor(clients) as pool:
            for verb in (register, delete):
                begun, cpu_s = time.perf_counter(), service.cpu_s()
                slowest = max(pool.map(verb, range(workers)))
                seconds = time.perf_counter() - begun
                results.append(Took(seconds, 1000 * slowest, service.cpu_s() - cpu_s))
        return results[0], results[1]
    finally:
        service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--clients", default="1,16")
    given = parser.parse_args()
    for clients in map(int, given.clients.split(",")):
        for verb, took in zip(
            ("register", "delete"), measure(given.workers, given.ranks, clients), strict=True
        ):
            print(
                f"{verb:8} {given.workers} x {given.ranks}, {clients:2} clients: "
                f"{took.seconds:6.2f} s, slowest {took.slowest_ms:6.0f} ms, "
                f"{took.cpu_s:6.2f} s of CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
