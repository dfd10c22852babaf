#!/usr/bin/env python3
"""What the page costs the service: CPU while it is watched, and bytes of a frame.

    scripts/bench/page.py [--workers 64] [--ranks 8] [--seconds 30] [--watchers 1,8]

Starts the service of the working directory with workers whose engines are not there; each watcher
reads GET /live as an open page does.  CPU is that of the process above what it takes unwatched, in
turn before and after.  DYN_USE_KV_EVENTS=false saves the descriptors of listeners.
"""

import argparse
import contextlib
import http.client
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.bench.registration import Service, body


class Seen(NamedTuple):
    frames: int
    bytes: int


def watch(port: int, over: threading.Event, seen: list[Seen]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    connection.request("GET", "/live")
    answer = connection.getresponse()
    frames = read = 0
    while not over.is_set():
        line = answer.readline()
        read += len(line)
        frames += line.startswith(b"data: ")
    connection.close()
    seen.append(Seen(frames, read))


def share_of_a_core(service: Service, seconds: float, n_watchers: int) -> tuple[float, list[Seen]]:
    over, seen = threading.Event(), list[Seen]()
    threads = [
        threading.Thread(target=watch, args=(service.port, over, seen)) for _ in range(n_watchers)
    ]
    for thread in threads:
        thread.start()
    time.sleep(2.0 if threads else 0.0)
    begun, before = time.monotonic(), service.cpu_s()
    time.sleep(seconds)
    share = (service.cpu_s() - before) / (time.monotonic() - begun)
    over.set()
    for thread in threads:
        thread.join()
    return share, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--watchers", default="1,8")
    given = parser.parse_args()
    service = Service()
    with contextlib.closing(service):
        for worker_id in range(given.workers):
            answer = service.ask("POST", "/workers", body(worker_id, given.ranks))[1]
            assert b'"schedulable"' in answer, answer
        print(f"{given.workers} workers of {given.ranks} ranks", flush=True)
        for n_watchers in map(int, given.watchers.split(",")):
            idle, _ = share_of_a_core(service, given.seconds, 0)
            watched, seen = share_of_a_core(service, given.seconds, n_watchers)
            again, _ = share_of_a_core(service, given.seconds, 0)
            one = seen[0]
            print(
                f"{n_watchers} watching: {100 * (watched - (idle + again) / 2):5.2f} % of a core "
                f"above {100 * idle:.2f} and {100 * again:.2f} %; "
                f"{one.bytes / max(1, one.frames) / 1000:.0f} kB a frame, {one.frames} frames",
                flush=True,
            )


if __name__ == "__main__":
    main()
