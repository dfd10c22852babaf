"""What servers that do harm cost those who ask the service: latency of another tenant's `/select`.

    python scripts/bench/hostile_servers.py [--engines 6] [--seconds 5] [--rounds 3]
        [--attack NAME] [--engines-only]

A service with its default settings, a worker of a tenant, and engines of another tenant whose
`metrics_endpoint` answers as `tests/hostile_http.py` says; then the same with one such server as
`--indexer-peers`.  Every two milliseconds `/select` is asked for over a kept connection.  In turns
with it the same is measured beside engines that answer well, in the same process: the quotients say
what the harm is, however busy the machine is.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.builders import worker_body  # noqa: E402
from tests.hostile_http import ATTACKS, HostileServer  # noqa: E402
from tests.process.running import Running, request  # noqa: E402

PAUSE_S = 0.002
SELECT = request(
    "POST", "/select", {"model_name": "m", "tenant_id": "victim", "token_ids": list(range(64))}
)
PEER = "a peer: "
RANKS = 64
"""Of each engine: so all lines of `HALF_MB` may be."""


class Latency(NamedTuple):
    """In milliseconds; cpu: of the service, as a part of one CPU."""

    n_requests: int
    p50: float
    p99: float
    greatest: float
    cpu: float


def serve(attack: str, ports: "multiprocessing.Queue[int]") -> None:
    server = HostileServer(attack)
    ports.put(server.port)
    server.run()


class Attacker:
    """A hostile server in a process of its own."""

    def __init__(self, attack: str) -> None:
        ports: multiprocessing.Queue[int] = multiprocessing.Queue()
        self._process = multiprocessing.Process(target=serve, args=(attack, ports), daemon=True)
        self._process.start()
        self.url = f"http://127.0.0.1:{ports.get()}"

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def cpu_s(service: Running) -> float:
    fields = Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0


def measured(service: Running, seconds: float) -> Latency:
    times: list[float] = []
    with service.client() as client:
        begun, used = time.perf_counter(), cpu_s(service)
        while (now := time.perf_counter()) < begun + seconds:
            client.send(SELECT)
            assert client.answer().status == 200
            times.append((time.perf_counter() - now) * 1e3)
            time.sleep(PAUSE_S)
        used = (cpu_s(service) - used) / (time.perf_counter() - begun)
    times.sort()
    p99 = times[len(times) * 99 // 100]
    return Latency(len(times), statistics.median(times), p99, times[-1], used)


def with_victim(service: Running) -> None:
    body = worker_body(1, tenant_id="victim")
    assert service.call("POST", "/workers", body).status == 201


def beside_engines(service: Running, url: str, engines: int, seconds: float) -> Latency:
    for worker_id in range(100, 100 + engines):
        fields = {"metrics_endpoint": f"{url}/metrics", "data_parallel_size": RANKS}
        body = worker_body(worker_id, tenant_id="other", **fields)
        assert service.call("POST", "/workers", body).status == 201
    time.sleep(1.5)  # every engine is asked once a second
    found = measured(service, seconds)
    for worker_id in range(100, 100 + engines):
        service.call("DELETE", f"/workers/{worker_id}")
    time.sleep(0.5)
    return found


def beside_peer(url: str, seconds: float) -> Latency:
    with Running("--indexer-peers", url) as service:
        with_victim(service)
        return measured(service, seconds)


def of_engines(
    attacks: Sequence[str], engines: int, seconds: float, rounds: int
) -> dict[str, list[Latency]]:
    found: dict[str, list[Latency]] = {}
    with Running() as service:
        with_victim(service)
        for _ in range(rounds):
            for attack in attacks:
                found.setdefault("nobody", []).append(measured(service, seconds))
                attacker = Attacker(attack)
                latency = beside_engines(service, attacker.url, engines, seconds)
                found.setdefault(attack, []).append(latency)
                attacker.stop()
    return found


def of_peers(attacks: Sequence[str], seconds: float, rounds: int) -> dict[str, list[Latency]]:
    found: dict[str, list[Latency]] = {}
    for _ in range(rounds):
        for attack in attacks:
            attacker = Attacker(attack)
            found.setdefault(PEER + attack, []).append(beside_peer(attacker.url, seconds))
            attacker.stop()
    return found


def show(found: dict[str, list[Latency]]) -> None:
    """The middle of all rounds, and the worst of them."""
    print(f"{'beside':34} {'p50 ms':>7} {'p99 ms':>7} {'worst p99':>9} {'greatest':>8} {'cpu':>5}")
    for name, all_rounds in found.items():
        middle = Latency(*(statistics.median(each) for each in zip(*all_rounds, strict=True)))
        worst = max(each.p99 for each in all_rounds)
        print(
            f"{name:34} {middle.p50:7.2f} {middle.p99:7.2f} {worst:9.2f} "
            f"{max(each.greatest for each in all_rounds):8.1f} {middle.cpu:5.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, default=6, help="hostile ones (default: 6)")
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement (default: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="of everything (default: 3)")
    parser.add_argument("--attack", action="append", choices=ATTACKS, help="(default: all)")
    parser.add_argument("--engines-only", action="store_true", help="leave out what a peer does")
    given = parser.parse_args()
    attacks = given.attack or list(ATTACKS)
    show(of_engines(attacks, given.engines, given.seconds, given.rounds))
    if not given.engines_only:
        show(of_peers(attacks, given.seconds, given.rounds))


if __name__ == "__main__":
    main()
