"""How fast a service recovers, and whether a dump holds up selections.

    python scripts/bench/recovery.py [--blocks 1000000] [--secured] [--reference-python PATH]

A publisher of KV events fills a service with chains of blocks; then a second one is started with
the first as its peer, and timed from process start until it says that it is ready and until it
answers with the full overlap of a chain.  With a reference interpreter the same blocks are put into
the reference, which recovers from its own JSON.  At the end `/select` is timed on an idle service,
and while dumps of either form stream without a pause.
"""

import argparse
import json
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.bench.contenders import Running, ours, reference
from tests.process.access import OPEN, Open, access, add_flag

CHAIN = 1000
BLOCK_SIZE = 16
WORKERS = 4
PATIENCE_S = 300.0
SELECTS = 3000


def call(
    how: Open, port: int, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, bytes]:
    connection = how.connection(port)
    data = None if body is None else json.dumps(body)
    fields = {"content-type": "application/json", **how.headers, **headers}
    connection.request(method, path, data, fields)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def until(predicate: Any, pause_s: float = 0.01) -> None:
    end = time.monotonic() + PATIENCE_S
    while not predicate():
        if time.monotonic() > end:
            raise SystemExit("it takes too long")
        time.sleep(pause_s)


def tokens(chain: int) -> list[int]:
    return [chain * CHAIN + i // BLOCK_SIZE for i in range(CHAIN * BLOCK_SIZE)]


class Engine:
    """Publishes the chains of one worker."""

    def __init__(self, context: "zmq.Context[Any]", worker_id: int) -> None:
        self.worker_id = worker_id
        self.socket = context.socket(zmq.PUB)
        self.socket.set_hwm(0)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self._seq = 0

    def publish(self, chain: int) -> None:
        first = chain * CHAIN + 1
        names = [((first + i) * 0x9E3779B97F4A7C15) % 2**63 for i in range(CHAIN)]
        event = ["BlockStored", names, None, tokens(chain), BLOCK_SIZE, None, "GPU"]
        payload = msgspec.msgpack.encode([0.0, [event], None])
        self.socket.send_multipart([b"", self._seq.to_bytes(8, "big"), payload])
        self._seq += 1


class Process:
    """A selection service: ours, or the reference's when `python` is given."""

    def __init__(
        self, engines: list[Engine], how: Open, *flags: str, python: str | None = None
    ) -> None:
        self._engines, self.how = engines, how
        contender = reference(python) if python else ours()
        self._running = Running(contender.with_flags(*how.flags, *flags), pinned=False)
        self.port = self._running.port
        self.began = self._running.started_at

    def wait(self, path: str = "/health") -> float:
        """Seconds from the start of the process until the path answers as it should."""
        until(lambda: self._answers(path))
        return time.perf_counter() - self.began

    def _answers(self, path: str) -> bool:
        try:
            status, body = self.call("GET", path)
        except OSError:
            return False
        recovery = json.loads(body).get("recovery", {}) if path == "/ready" else {}
        return recovery.get("state", "found") != "running" and (status == 200 or path == "/ready")

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        return call(self.how, self.port, method, path, body, **headers)

    @property
    def url(self) -> str:
        return self.how.url(self.port)

    def register(self) -> None:
        for engine in self._engines:
            body = {
                "worker_id": engine.worker_id,
                "model_name": "m",
                "tenant_id": "t",
                "routing_group": "t",
                "endpoint": "http://w",
                "block_size": BLOCK_SIZE,
                "kv_events_endpoint": f"tcp://127.0.0.1:{engine.port}",
                "max_num_batched_tokens": 8192,
            }
            assert self.call("POST", "/workers", body)[0] == 201

    def overlap(self, chain: int) -> int:
        body = {"model_name": "m", "tenant_id": "t", "routing_group": "t"}
        answer = self.call("POST", "/overlap_scores", body | {"token_ids": tokens(chain)})[1]
        rows = json.loads(answer).get("workers", [])
        return max((row["device_blocks"] for row in rows), default=0)

    def rss_mib(self) -> int:
        status = Path(f"/proc/{self._running.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) >> 10

    def stop(self) -> None:
        self._running.stop()


def filled(engines: list[Engine], chains: int, how: Open, python: str | None) -> Process:
    service = Process(engines, how, python=python)
    service.wait()
    service.register()
    time.sleep(1.0)  # subscriptions travel
    for chain in range(chains):
        engines[chain % WORKERS].publish(chain)
        if chain % 50 == 49:
            until(lambda chain=chain: service.overlap(chain) == CHAIN)
    until(lambda: all(service.overlap(chains - 1 - i) == CHAIN for i in range(WORKERS)), 0.1)
    return service


def recovered(
    name: str, engines: list[Engine], chains: int, how: Open, peer: str, python: str | None
) -> None:
    service = Process(engines, how, "--indexer-peers", peer, python=python)
    ready = service.wait("/health" if python else "/ready")
    service.register()
    until(lambda: all(service.overlap(chains - 1 - i) == CHAIN for i in range(WORKERS)))
    usable = time.perf_counter() - service.began
    print(f"{name:34} ready {ready:6.2f} s   overlap {usable:6.2f} s   {service.rss_mib()} MiB")
    service.stop()


class JsonOnly(threading.Thread):
    """Passes GET /dump on to a service without saying that the compact form is liked."""

    def __init__(self, source: Process) -> None:
        super().__init__(daemon=True)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._source = source

    def run(self) -> None:
        connection, _ = self._server.accept()
        connection.recv(65536)
        fields = {"host": "localhost", "connection": "close", **self._source.how.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        with self._source.how.socket(self._source.port) as source:
            source.sendall(f"GET /dump HTTP/1.1\r\n{head}\r\n".encode())
            while data := source.recv(1 << 18):
                connection.sendall(data)
        connection.close()


def select_times(service: Process, chain: int) -> list[float]:
    """Milliseconds of SELECTS selections on one connection."""
    connection = service.how.connection(service.port)
    headers = {"content-type": "application/json"} | service.how.headers
    body = {"model_name": "m", "tenant_id": "t", "token_ids": tokens(chain)[: 128 * BLOCK_SIZE]}
    data, times = json.dumps(body), []
    for _ in range(SELECTS):
        begin = time.perf_counter()
        connection.request("POST", "/select", data, headers)
        assert connection.getresponse().read()
        times.append(1e3 * (time.perf_counter() - begin))
        time.sleep(0.001)
    connection.close()
    return sorted(times)


def print_times(name: str, times: list[float]) -> None:
    p99 = times[int(0.99 * len(times))]
    print(f"/select {name:26} p50 {statistics.median(times):6.2f} p99 {p99:6.2f} "
          f"max {times[-1]:6.2f} ms")  # fmt: skip


def read_dumps(how: Open, port: int, accept: str) -> None:
    """Until this process is killed."""
    while True:
        connection = how.connection(port)
        connection.request("GET", "/dump", headers={"accept": accept, **how.headers})
        response = connection.getresponse()
        while response.read(1 << 20):
            pass
        connection.close()


def selections_during_dumps(service: Process) -> None:
    print_times("alone", select_times(service, 0))
    for accept in ("application/json", "application/msgpack"):
        arguments = service.how, service.port, accept
        reader = multiprocessing.get_context("fork").Process(target=read_dumps, args=arguments)
        reader.start()
        time.sleep(0.5)
        print_times(f"while {accept}", select_times(service, 0))
        reader.kill()
        reader.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a service recovers, and from whom.")
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--reference-python")
    add_flag(parser)
    arguments = parser.parse_args()
    with access(arguments.secured) as how:
        measure(arguments.blocks // CHAIN, how, arguments.reference_python)


def measure(chains: int, how: Open, python: str | None) -> None:
    context: zmq.Context[Any] = zmq.Context()
    engines = [Engine(context, worker_id) for worker_id in range(1, WORKERS + 1)]
    ours = filled(engines, chains, how, None)
    sizes = [len(ours.call("GET", "/dump", accept=kind)[1]) for kind in
             ("application/json", "application/msgpack")]  # fmt: skip
    print(f"JSON {sizes[0]} bytes, compact {sizes[1]} bytes, {sizes[0] / sizes[1]:.1f} times less")
    recovered("ours from ours, compact", engines, chains, how, ours.url, None)
    plain = JsonOnly(ours)
    plain.start()
    recovered("ours from ours, JSON", engines, chains, how, plain.url, None)
    selections_during_dumps(ours)
    if python:
        fresh = [Engine(context, engine.worker_id) for engine in engines]
        theirs = filled(fresh, chains, OPEN, python)
        recovered("reference from reference", fresh, chains, OPEN, theirs.url, python)
        recovered("ours from reference", fresh, chains, how, theirs.url, None)
        theirs.stop()
    ours.stop()
    context.destroy(linger=0)


if __name__ == "__main__":
    main()
