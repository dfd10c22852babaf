#!/usr/bin/env python3
"""What looking at a fleet costs: bytes, CPU and the longest step of each view of its ranks.

    scripts/bench/views.py [--workers 512] [--ranks 8] [--times 10]
    DYN_USE_KV_EVENTS=false scripts/bench/views.py

Starts the service of the working directory with workers whose engines are not there.  The longest
step is that of the event loop: the slowest of small requests that are sent meanwhile, which a busy
machine makes longer.  Settings of the service come from the environment: without KV events a rank
takes no descriptors.
"""

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.bench.registration import Service, body

VIEWS = (
    *("/workers", "/workers?view=compact", "/workers?limit=100", "/workers?view=compact&limit=100"),
    *("/loads", "/loads?view=compact", "/loads?limit=100", "/ready", "/ready?records=false"),
)


class Cost(NamedTuple):
    bytes: int
    cpu_ms: float
    seconds: float
    slowest_other_ms: float


def cost(service: Service, path: str, times: int) -> Cost:
    """Of one answer, the mean of several."""
    over, slowest = threading.Event(), [0.0]

    def meanwhile() -> None:
        while not over.is_set():
            begun = time.perf_counter()
            service.ask("GET", "/health")
            slowest.append(1000 * (time.perf_counter() - begun))
            time.sleep(0.005)

    size = len(service.ask("GET", path)[1])
    others = threading.Thread(target=meanwhile)
    idle_s = used(service, lambda: time.sleep(1.0))
    begun = time.perf_counter()
    cpu_s = used(service, lambda: [service.ask("GET", path) for _ in range(times)])
    seconds = time.perf_counter() - begun
    others.start()
    for _ in range(times):
        service.ask("GET", path)
    over.set()
    others.join()
    own_s = max(0.0, cpu_s - idle_s * seconds)
    return Cost(size, 1000 * own_s / times, seconds / times, max(slowest))


def used(service: Service, work: object) -> float:
    """CPU of the service during some work, in seconds."""
    assert callable(work)
    before = service.cpu_s()
    work()
    return service.cpu_s() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--views", nargs="*", default=VIEWS)
    given = parser.parse_args()
    service = Service()
    try:
        for worker_id in range(given.workers):
            answer = service.ask("POST", "/workers", body(worker_id, given.ranks))[1]
            assert b'"schedulable"' in answer, answer
        print(f"{given.workers} workers of {given.ranks} ranks", flush=True)
        for path in given.views:
            found = cost(service, path, given.times)
            print(
                f"{path:32} {found.bytes / 1000:9.0f} kB {found.cpu_ms:8.1f} ms of CPU "
                f"{1000 * found.seconds:8.1f} ms, another waits {found.slowest_other_ms:6.1f} ms",
                flush=True,
            )
    finally:
        service.close()


if __name__ == "__main__":
    main()
