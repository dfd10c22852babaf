"""Smoke test of an image: starts the service and the planner, and calls both.

    try_image.py COMMAND...    command line that runs its further arguments in the image

Prints the start time, and ends with status 1 after an unexpected answer. Standard library only.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

START_S_MAX = 60.0
END_S_MAX = 30.0
ANSWER_S_MAX = 10.0
WORKER = {
    "worker_id": 1,
    "model_name": "m",
    "endpoint": "http://127.0.0.1:9",
    "block_size": 16,
    "max_num_batched_tokens": 8192,
    "total_kv_blocks": 1000,
}
PROMPT = {"model_name": "m", "token_ids": list(range(64))}


class Wrong(Exception):
    """Unexpected answer of the image."""


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def request_answer(port: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Return status and body, decoded if JSON.  Raises OSError without a listener."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text.decode()
    finally:
        connection.close()


def expect(port: int, method: str, path: str, status: int, body: object = None) -> Any:
    """Return the body of the answer.  Raises Wrong for another status."""
    found, told = request_answer(port, method, path, body)
    if found != status:
        raise Wrong(f"{method} {path}: {found} instead of {status}: {told}")
    return told


@contextmanager
def running(command: Sequence[str], port: int, path: str) -> Iterator[float]:
    """Yield the seconds until `path` is answered with 200.  Raises Wrong."""
    began = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        while True:
            try:
                if request_answer(port, "GET", path)[0] == 200:
                    break
            except (OSError, http.client.HTTPException):
                pass
            if process.poll() is not None or time.monotonic() - began > START_S_MAX:
                raise Wrong(f"no answer of {path}: {ended(process)}")
            time.sleep(0.01)
        yield time.monotonic() - began
    finally:
        log = ended(process)
    if "compiling" in log:
        raise Wrong(f"the image lacks machine code: {log}")


def ended(process: subprocess.Popen[str]) -> str:
    """End all processes of a start and return its standard error."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            return process.communicate(timeout=END_S_MAX)[1] or ""
        except subprocess.TimeoutExpired:
            continue
    return ""


def tried(run: Sequence[str]) -> None:
    """Run all checks.  Raises Wrong."""
    began = time.monotonic()
    told = subprocess.run([*run, "id", "-u"], capture_output=True, text=True, check=False)
    around = time.monotonic() - began
    who = told.stdout.strip()
    if who != "10001":
        raise Wrong(f"the image runs as `{who}`: {told.stderr.strip()}")
    # Without KV events a worker may be chosen although no engine exists.
    service = [*run, "env", "DYN_USE_KV_EVENTS=false", "select-service", "--port"]
    port = free_port()
    with running([*service, str(port)], port, "/health") as first:
        expect(port, "POST", "/workers", 201, WORKER)
        chosen = expect(port, "POST", "/select", 200, PROMPT)
        if (chosen["worker_id"], chosen["dp_rank"]) != (1, 0):
            raise Wrong(f"POST /select: {chosen}")
        expect(port, "GET", "/ready", 200)
    port = free_port()
    with running([*service, str(port)], port, "/health") as second:
        version = expect(port, "GET", "/openapi.json", 200)["info"]["version"]
    times = f"{first:.2f} s, {second:.2f} s"
    print(f"select-service {version}: /select is answered; /health after {times} (two starts),")
    print(f"    of which {around:.2f} s are the container's: as long takes `id` in it")
    for module in ("kubernetes_asyncio", "dns.resolver", "opentelemetry.sdk.trace"):
        if subprocess.run([*run, "python", "-c", f"import {module}"], check=False).returncode:
            raise Wrong(f"the image cannot import {module}")
    done = subprocess.run([*run, "select-planner", "--help"], capture_output=True, check=False)
    if done.returncode:
        raise Wrong(f"select-planner --help: {done.stderr.decode()}")
    print("select-planner is there, and what discovery in Kubernetes and DNS, and traces need")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    try:
        tried(sys.argv[1:])
    except Wrong as wrong:
        print(f"try_image: {wrong}", file=sys.stderr)
        sys.exit(1)
