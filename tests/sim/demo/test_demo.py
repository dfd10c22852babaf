"""Tests of the demo as users run it: real service, real sockets, real terminal output."""

import asyncio
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from select_service.sim.demo.service_process import compile_kernels
from tests.builders.polling import PATIENCE_S

pytestmark = pytest.mark.process

COMMAND = [sys.executable, "-m", "select_service.sim.demo"]
RUN_S_MAX = 240
TRACE_ROWS = 40


def run_once(*arguments: str) -> str:
    """Return the standard output of a demo, which must end with status 0."""
    command = [*COMMAND, "--once", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@contextmanager
def a_demo_that_stays_up(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Yield a running demo and its output up to the last printed line."""
    demo = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    lines: list[str] = []
    try:
        for line in demo.stdout:
            lines.append(line.rstrip())
            if "/docs" in line:
                break
        yield demo, lines
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.wait(PATIENCE_S)


def send_like_curl(line: str) -> httpx.Response:
    """Send the request of a printed line: `curl -s [-X method] URL [-H header] [-d body]`."""
    words = iter(shlex.split(line)[1:])
    method, url, headers, body = "GET", "", {}, None
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            method, body = "POST", next(words)
        elif word != "-s":
            url = word
    return httpx.request(method, url, headers=headers, content=body, trust_env=False)


def test_a_short_run_succeeds_and_prints_its_measurements() -> None:
    shown = run_once("--requests", "60", "--workers", "3", "--ranks", "2", "--seed", "4")
    policies = ("work", "reference", "round robin", "least loaded")
    (heads,) = [line for line in shown.splitlines() if "round robin" in line]
    assert re.split(r"\s{2,}", heads.strip()) == list(policies)
    for expected in ("hit rate in blocks", "p99 ms", "One decision explained", "chosen: "):
        assert expected in shown
    assert re.search(r"overlap of every rank at the end\s+([\d,]+) of \1 exact", shown)
    assert re.search(r"load left after the last request\s+none", shown)
    stages = (
        "generating the workload",
        "compiling kernels, if needed",
        "starting",
        "driving 60 requests",
        "checking",
    )
    for stage in stages:
        assert re.search(rf"^ +[\d.]+ s  {stage}", shown, re.MULTILINE)


def test_compilation_is_reported_only_when_needed() -> None:
    asyncio.run(compile_kernels(lambda line: None))
    lines: list[str] = []
    asyncio.run(compile_kernels(lines.append))
    assert lines == []


def test_gaps_in_the_event_streams_are_repaired_by_replay() -> None:
    shown = run_once("--requests", "60", "--lose", "0.1")
    replayed = re.search(r"([\d,]+) batches replayed, 0 lost", shown)
    assert replayed is not None
    assert int(replayed[1].replace(",", "")) > 0


def test_a_trace_can_be_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": i * 100,
            "input_length": 1536,
            "output_length": 80,
            "hash_ids": [0, 1 + i % 5, 10 + i % 7],
        }
        for i in range(TRACE_ROWS)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = run_once("--trace", str(trace))
    assert re.search(rf"requests\s+{TRACE_ROWS}\s+{TRACE_ROWS}\s+{TRACE_ROWS}", shown)


def run_printed_command(lines: list[str], command: str) -> tuple[int, str]:
    """Run the printed line of a service command, and return its exit status and standard output."""
    (line,) = [each for each in lines if f"-m select_service {command} " in each]
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=RUN_S_MAX)
    return done.returncode, done.stdout


def test_the_page_is_named_as_soon_as_it_is_up_and_has_traffic_to_show() -> None:
    with a_demo_that_stays_up("--requests", "20") as (demo, lines):
        begin = next(
            n for n, line in enumerate(lines) if line.startswith("live view of the fleet: ")
        )
        assert begin < next(n for n, line in enumerate(lines) if "driving 20 requests" in line)
        url = lines[begin].removeprefix("live view of the fleet: ").rstrip("/")

        def newest() -> int:
            answer = httpx.get(f"{url}/decisions?limit=1", trust_env=False)
            return int(answer.json()["decisions"][0]["decision"])

        before, until = newest(), time.monotonic() + PATIENCE_S
        while newest() < before + 3:
            assert time.monotonic() < until
            time.sleep(0.2)
        assert demo.poll() is None


def test_every_printed_curl_line_works_and_ctrl_c_ends_it_all() -> None:
    with a_demo_that_stays_up("--requests", "40") as (demo, lines):
        commands = [line for line in lines if line.startswith("curl ")]
        assert len(commands) == 9
        answers = {command: send_like_curl(command) for command in commands}
        assert {answer.status_code for answer in answers.values()} == {200}, answers
        assert run_printed_command(lines, "doctor")[0] == 0
        status, record = run_printed_command(lines, "inspect")
        assert (status, json.loads(record)["block_size"]) == (0, 16)
        select = next(answer for command, answer in answers.items() if "/select " in command)
        assert select.json()["overlap"]["gpu"] > 0
        demo.send_signal(signal.SIGINT)
        assert demo.wait(PATIENCE_S) == 0
        base_url = select.url.copy_with(path="/health")
        with pytest.raises(httpx.ConnectError):
            httpx.get(base_url, trust_env=False)
