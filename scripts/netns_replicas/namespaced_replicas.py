"""Three selectors in network namespaces, and calls of these selectors.

One namespace per selector, and one with the switch. Selectors communicate over the switch; callers
use a bridge beside it, and so reach a selector that is cut off.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.netns_replicas.packet_switch import LinkFault, SwitchProcess

ROOT = Path(__file__).resolve().parents[2]
RUN = os.environ.setdefault("SELECTORS_RUN", str(os.getpid()))
"""Part of the names of this run, so that two runs do not meet; processes inside inherit it."""
NET = f"selectors-{RUN}-net"
NAMES = tuple(f"selector-{RUN}-{letter}" for letter in "abc")
NUMBERS = range(len(NAMES))
HTTP_PORT, SYNC_PORT = 8092, 9092
START_S_MAX = 240.0
CALL_S_MAX = 10.0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def data_address(number: int) -> str:
    return f"10.77.0.{number + 1}"


def caller_address(number: int) -> str:
    return f"10.78.0.{number + 1}"


def why_not_available() -> str | None:
    """Return why this machine cannot make network namespaces; None means that it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "`ip` is not installed (iproute2)"
    probe = f"{NET}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    ip("netns", "delete", probe)
    return None


def build_network() -> None:
    for name in (NET, *NAMES):
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("-n", NET, "link", "add", "calls", "type", "bridge")
    ip("-n", NET, "link", "set", "calls", "up")
    ip("-n", NET, "address", "add", "10.78.0.254/24", "dev", "calls")
    for number, name in enumerate(NAMES):
        for link, address in (
            ("data", data_address(number)),
            ("calls", caller_address(number)),
        ):
            port = f"{link}{number}"
            pair = ("link", "add", port, "netns", NET, "type", "veth")
            ip(*pair, "peer", "name", link, "netns", name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", link)
            ip("-n", NET, "link", "set", port, "up")
            ip("-n", name, "link", "set", link, "up")
        ip("-n", NET, "link", "set", f"calls{number}", "master", "calls")
        module = ("-m", "scripts.netns_replicas.packet_switch", "--software-checksums", "data")
        run_in(name, *module).wait()


def run_in(name: str, *words: str, **environment: str) -> "subprocess.Popen[bytes]":
    """Start Python in a namespace."""
    command = ["ip", "netns", "exec", name, sys.executable, *words]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment})


def remove_network() -> None:
    for name in (*NAMES, NET):
        subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def start_selector(number: int, *flags: str) -> "subprocess.Popen[bytes]":
    others = [f"tcp://{data_address(n)}:{SYNC_PORT}" for n in NUMBERS if n != number]
    words = ["-m", "select_service", "--host", "0.0.0.0", "--insecure", "--replica-sync-insecure"]
    words += ["--port", str(HTTP_PORT), "--replica-sync-port", str(SYNC_PORT)]
    words += ["--replica-sync-peers", ",".join(others), "--log-level", "warning"]
    return run_in(NAMES[number], *words, *flags, DYN_USE_KV_EVENTS="false")


def kill_selector(number: int) -> None:
    command = ["ip", "netns", "pids", NAMES[number]]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    for pid in found.stdout.split():
        # SIGKILL leaves no last words, as a crash of the node.
        os.kill(int(pid), signal.SIGKILL)


def open_switch() -> SwitchProcess:
    """Start the switch; for a process inside the namespace NET."""
    return SwitchProcess([f"data{number}" for number in NUMBERS])


def set_link(switch: SwitchProcess, number: int, **fault: float) -> None:
    """Set the fault of both directions between a selector and all others."""
    for other in NUMBERS:
        if other != number:
            switch.set_fault(LinkFault(number, other, **fault))
            switch.set_fault(LinkFault(other, number, **fault))


# Calls


def call(number: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(caller_address(number), HTTP_PORT, timeout=CALL_S_MAX)
    try:
        raw = None if body is None else json.dumps(body)
        connection.request(method, path, raw, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def wait_until(what: str, predicate: Callable[[], bool], seconds: float) -> float:
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
    except (OSError, http.client.HTTPException):
        return False


def register_workers(number: int) -> None:
    for worker_id in (1, 2, 3):
        body = {"worker_id": worker_id, "endpoint": f"http://w{worker_id}", "block_size": 16}
        assert call(number, "POST", "/workers", body)[0] == 201


def booking_of(name: str, position: int) -> dict[str, Any]:
    """Return the body of a booking for a prompt of eight blocks."""
    hashes = list(range(position, position + 8))
    body = {"reservation_id": name, "block_hashes": hashes, "sequence_hashes": hashes}
    return {**body, "isl_tokens": 128}
