"""Three selectors on a real network that is cut and joined again.

    sudo .venv/bin/python scripts/netns_replicas.py [--cut-seconds 25] [--kill]

Creates four network namespaces: one per selector and one with two bridges. Selectors communicate
over the first bridge; this script calls over the second, and so reaches a selector that is cut off.
The cut takes the third selector off the first bridge: packets vanish without an error. Meanwhile
requests are admitted and freed on both sides; with --kill the other two are killed (SIGKILL) and
restarted. Prints the time until the replicas agree after the join. Fails if the time exceeds
AGREE_S_MAX, or if load remains. Needs root and `ip`; removes everything that was created.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NET = "selectors-net"
NAMES = ("selector-a", "selector-b", "selector-c")
HTTP_PORT, SYNC_PORT = 8092, 9092
START_S_MAX = 240.0
AGREE_S_MAX = 45.0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def data_address(number: int) -> str:
    return f"10.77.0.{number + 1}"


def asking_address(number: int) -> str:
    return f"10.78.0.{number + 1}"


# Network


def build_network() -> None:
    for name in (NET, *NAMES):
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    for bridge in ("data", "asking"):
        ip("-n", NET, "link", "add", bridge, "type", "bridge")
        ip("-n", NET, "link", "set", bridge, "up")
    ip("-n", NET, "address", "add", "10.78.0.254/24", "dev", "asking")
    for number, name in enumerate(NAMES):
        for bridge, address in (
            ("data", data_address(number)),
            ("asking", asking_address(number)),
        ):
            port = f"{bridge}{number}"
            pair = ("link", "add", port, "netns", NET, "type", "veth")
            ip(*pair, "peer", "name", bridge, "netns", name)
            ip("-n", NET, "link", "set", port, "master", bridge, "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", bridge)
            ip("-n", name, "link", "set", bridge, "up")


def remove_network() -> None:
    for name in (*NAMES, NET):
        subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def cut(number: int) -> None:
    # Taken off the bridge, not down: connections see no error, only silence.
    ip("-n", NET, "link", "set", f"data{number}", "nomaster")


def join(number: int) -> None:
    ip("-n", NET, "link", "set", f"data{number}", "master", "data")


def start(number: int) -> "subprocess.Popen[bytes]":
    others = [f"tcp://{data_address(n)}:{SYNC_PORT}" for n in range(len(NAMES)) if n != number]
    command = ["ip", "netns", "exec", NAMES[number], sys.executable, "-m", "select_service"]
    command += ["--host", "0.0.0.0", "--insecure", "--replica-sync-insecure"]
    command += ["--port", str(HTTP_PORT), "--replica-sync-port", str(SYNC_PORT)]
    command += ["--replica-sync-peers", ",".join(others), "--log-level", "warning"]
    environment = {**os.environ, "DYN_USE_KV_EVENTS": "false"}
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def kill(number: int) -> None:
    command = ["ip", "netns", "pids", NAMES[number]]
    for pid in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split():
        # SIGKILL leaves no last words, as a crash of the node.
        os.kill(int(pid), signal.SIGKILL)


# Selectors


def call(number: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(asking_address(number), HTTP_PORT, timeout=10)
    try:
        raw = None if body is None else json.dumps(body)
        connection.request(method, path, raw, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def until(what: str, predicate: Any, seconds: float) -> float:
    """Wait for a condition and return the seconds."""
    begin = time.monotonic()
    while not predicate():
        if time.monotonic() - begin > seconds:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - begin


def is_up(number: int) -> bool:
    try:
        return call(number, "GET", "/health")[0] == 200
    except OSError:
        return False


def register_workers(number: int) -> None:
    for worker_id in (1, 2, 3):
        body = {"worker_id": worker_id, "endpoint": f"http://w{worker_id}", "block_size": 16}
        assert call(number, "POST", "/workers", body)[0] == 201


def reserve(number: int, names: list[str]) -> None:
    for position, name in enumerate(names):
        hashes = list(range(position, position + 8))
        body = {"reservation_id": name, "block_hashes": hashes, "sequence_hashes": hashes}
        status, _ = call(number, "POST", "/select_and_reserve", {**body, "isl_tokens": 128})
        assert status == 200, (number, name, status)


def free(number: int, names: list[str]) -> None:
    for name in names:
        status, _ = call(number, "DELETE", f"/reservations/{name}")
        assert status == 200, (number, name, status)


def requests(number: int) -> int:
    partitions = call(number, "GET", "/loads")[1]
    return sum(row["active_requests"] for part in partitions for row in part["loads"])


def have_equal_loads(n_requests: int) -> bool:
    loads = [call(number, "GET", "/loads")[1] for number in range(len(NAMES))]
    return loads[0] == loads[1] == loads[2] and requests(0) == n_requests


def show(title: str) -> None:
    print(title)
    for number, name in enumerate(NAMES):
        peers = call(number, "GET", "/replica_sync/status")[1]["peers"]
        seen = ", ".join(
            f"{peer['endpoint']} connected={peer['connected']} lost={peer['lost']} "
            f"differs={peer['divergence_reservations']} repairs={peer['repairs']['runs']}"
            for peer in peers
        )
        print(f"  {name}: {requests(number)} requests; {seen}")


def names_of(prefix: str, n: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(n)]


def begin_anew() -> None:
    """Kill the two selectors that are not cut off, restart both and give both load."""
    for number in (0, 1):
        kill(number)
        start(number)
    for number in (0, 1):
        until("start", lambda n=number: is_up(n), START_S_MAX)
        register_workers(number)
        reserve(number, names_of(f"anew-{number}-", 50))
        free(2, names_of(f"before-{number}-", 100)[60:])


def experiment_with_kills(cut_s: float) -> None:
    begin = prepare()
    begin_anew()
    time.sleep(max(0.0, cut_s - (time.monotonic() - begin)))
    show(f"selector-c was cut off for {cut_s:g} s, the others were killed meanwhile")
    join(2)
    took = until("agreement", lambda: have_equal_loads(320), AGREE_S_MAX)
    show(f"joined: equal loads after {took:.2f} s")


def prepare() -> float:
    """Start three selectors with 300 requests, cut the third off; returns the time of the cut."""
    for number in range(len(NAMES)):
        until("start", lambda n=number: is_up(n), START_S_MAX)
        register_workers(number)
    time.sleep(2.0)
    for number in range(len(NAMES)):
        reserve(number, names_of(f"before-{number}-", 100))
    took = until("equal loads", lambda: have_equal_loads(300), AGREE_S_MAX)
    show(f"300 requests, equal loads after {took:.2f} s")
    cut(2)
    return time.monotonic()


def experiment(cut_s: float) -> None:
    begin = prepare()
    reserve(0, names_of("cut-0-", 50))
    reserve(2, names_of("cut-2-", 50))
    free(1, names_of("before-0-", 40))
    free(1, names_of("before-2-", 40))
    free(2, names_of("before-1-", 40))
    time.sleep(max(0.0, cut_s - (time.monotonic() - begin)))
    show(f"selector-c was cut off for {cut_s:g} s")
    join(2)
    took = until("agreement", lambda: have_equal_loads(280), AGREE_S_MAX)
    show(f"joined: equal loads after {took:.2f} s")
    for number in range(len(NAMES)):
        rest = names_of(f"before-{number}-", 100)[40:]
        free((number + 1) % len(NAMES), rest)
    free(1, names_of("cut-0-", 50) + names_of("cut-2-", 50))
    took = until("no load", lambda: have_equal_loads(0), AGREE_S_MAX)
    show(f"all freed: no load after {took:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="three selectors, a partition and a heal")
    parser.add_argument("--cut-seconds", type=float, default=25.0)
    parser.add_argument("--kill", action="store_true", help="the two others die meanwhile")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        (experiment_with_kills if options.kill else experiment)(options.cut_seconds)
        return
    if os.geteuid() != 0:
        raise SystemExit("needs root, to make network namespaces")
    remove_network()
    processes = []
    try:
        build_network()
        processes = [start(number) for number in range(len(NAMES))]
        again = [sys.executable, __file__, "--inside", "--cut-seconds", str(options.cut_seconds)]
        again += ["--kill"] if options.kill else []
        status = subprocess.run(["ip", "netns", "exec", NET, *again], check=False).returncode
    finally:
        for number in range(len(NAMES)):
            kill(number)
        for process in processes:
            process.wait()
        remove_network()
    raise SystemExit(status)


if __name__ == "__main__":
    main()
