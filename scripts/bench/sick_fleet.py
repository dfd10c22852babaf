"""Six engines with faults under 32 streaming clients, and the effects on the clients.

    python -m scripts.bench.sick_fleet --engine path/to/engine.py [--tree CHECKOUT] [--out FILE]

After a minute an engine hangs, another answers with a wrong token, a third becomes four times as
slow, and a fourth is killed and started again 40 s later. All clients stream through the surviving
gateway with default settings; the service checks every 10 s. The engine is a script that takes
`--port 0` and `--decode-ms`, prints a line of JSON with `port`, answers /v1/completions
deterministically, and switches faults on by `POST /admin/fault {"kind": ...}` (`hang`,
`wrong_token`, `slow` with `factor`). Needs aiohttp.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
MODEL, BLOCK_SIZE, DECODE_MS = "tiny", 16, 60.0
ENGINES, CLIENTS, PROMPTS, ANSWER = 6, 32, 8, 50
WARM_S, KILLED_S, LAST_S = 60.0, 40.0, 110.0
"""Seconds before the faults, from the kill to the return, and from the faults to the end."""
HANG, WRONG, SLOW, KILL = 1, 2, 3, 4
"""Worker ids with faults."""
START_S = 60.0
LIMITS = {
    "longest silence, s": 15.0,
    "hang out after, s": 30.0,
    "killed one back after, s": 15.0,
    "refused": 0.0,
}
"""Promised limits, above which the run fails."""


class StreamedAnswer(NamedTuple):
    """Answer as seen by the client. silence_s: longest time without a chunk"""

    silence_s: float
    is_right: bool
    is_refused: bool


@dataclass
class SceneResult:
    """Answers after the faults, and when ranks left and returned."""

    answers: list[StreamedAnswer] = field(default_factory=list)
    out_s: dict[int, float] = field(default_factory=dict)
    back_s: float | None = None

    def rows(self) -> dict[str, float]:
        nothing = float("inf")
        return {
            "answers": float(len(self.answers)),
            "longest silence, s": max((a.silence_s for a in self.answers), default=0.0),
            "silences over 15 s": float(sum(a.silence_s > 15.0 for a in self.answers)),
            "hang out after, s": self.out_s.get(HANG, nothing),
            "wrong tokens out after, s": self.out_s.get(WRONG, nothing),
            "slow out after, s": self.out_s.get(SLOW, nothing),
            "killed one out after, s": self.out_s.get(KILL, nothing),
            "killed one back after, s": nothing if self.back_s is None else self.back_s,
            "wrong answers": float(sum(not a.is_right for a in self.answers if not a.is_refused)),
            "refused": float(sum(a.is_refused for a in self.answers)),
        }


def started(command: list[str], tree: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a process; return the process and the first printed line."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


class SickFleet:
    """Engines, service and gateway as processes."""

    def __init__(self, engine: Path, tree: Path, interval_s: float) -> None:
        self._engine, self._tree, self._interval_s = engine, tree, interval_s
        self._engines: dict[int, subprocess.Popen[str]] = {}
        self._others: list[subprocess.Popen[str]] = []
        self.ports: dict[int, int] = {}
        self.url = self.gateway = ""

    def start_engine(self, worker_id: int) -> None:
        """Start an engine, on the former port after a kill."""
        port = str(self.ports.get(worker_id, 0))
        command = [sys.executable, str(self._engine), "--port", port, "--decode-ms", str(DECODE_MS)]
        self._engines[worker_id], line = started([*command, "--model", MODEL], self._tree)
        self.ports[worker_id] = json.loads(line)["port"]

    def kill_engine(self, worker_id: int) -> None:
        """Kill an engine as the kernel does without memory."""
        self._engines[worker_id].send_signal(signal.SIGKILL)
        self._engines[worker_id].wait()

    def start_service(self, port: int) -> None:
        """Start the service and the gateway in front of the service."""
        flags = ["--health-checks=on", f"--health-interval-secs={self._interval_s:g}"]
        command = [sys.executable, "-m", "select_service", "--port", str(port), *flags]
        environment = os.environ | {"PYTHONPATH": str(self._tree), "DYN_USE_KV_EVENTS": "false"}
        quiet = subprocess.DEVNULL
        service = subprocess.Popen(
            command, cwd=self._tree, env=environment, stdout=quiet, stderr=quiet, text=True
        )
        self._others.append(service)
        self.url = f"http://127.0.0.1:{port}"

    def start_gateway(self) -> None:
        """Start the gateway with default settings."""
        folder = self._tree / "docs/examples/surviving_gateway"
        command = [sys.executable, str(folder / "gateway.py"), "--selector", self.url]
        process, line = started([*command, "--port", "0", "--model", MODEL], self._tree)
        self._others.append(process)
        self.gateway = f"http://127.0.0.1:{int(line)}"

    def stop(self) -> None:
        """Stop everything."""
        for process in [*self._others[::-1], *self._engines.values()]:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def sick_fleet(engine: Path, tree: Path, interval_s: float) -> Iterator[SickFleet]:
    """Start six engines; stop everything at the end."""
    fleet = SickFleet(engine, tree, interval_s)
    try:
        for worker_id in range(1, ENGINES + 1):
            fleet.start_engine(worker_id)
        yield fleet
    finally:
        fleet.stop()


async def chunks_of(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream until the end."""
    async for line in response.content:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)


class Scene:
    """Scene of a run."""

    def __init__(self, fleet: SickFleet, http: aiohttp.ClientSession) -> None:
        self._fleet, self._http = fleet, http
        self._rng = random.Random(0)
        self._prompts = [
            [self._rng.randrange(10, 500) for _ in range(24 + 8 * n)] for n in range(PROMPTS)
        ]
        self._right: list[str] = []
        self._faults_at: float | None = None
        self._returned_at: float | None = None
        self.result = SceneResult()

    async def run(self) -> None:
        """Play the scene."""
        await self._register()
        self._right = [await self._whole_answer(prompt) for prompt in self._prompts]
        self._fleet.start_gateway()
        tasks = [asyncio.create_task(self._stream_forever(n)) for n in range(CLIENTS)]
        tasks.append(asyncio.create_task(self._watch_ranks()))
        await asyncio.sleep(WARM_S)
        self._faults_at = time.monotonic()
        for worker_id, fault in (
            (HANG, {"kind": "hang"}),
            (WRONG, {"kind": "wrong_token", "position": 3}),
            (SLOW, {"kind": "slow", "factor": 4.0}),
        ):
            url = f"http://127.0.0.1:{self._fleet.ports[worker_id]}/admin/fault"
            async with self._http.post(url, json=fault) as answer:
                answer.raise_for_status()
        self._fleet.kill_engine(KILL)
        await asyncio.sleep(KILLED_S)
        await asyncio.to_thread(self._fleet.start_engine, KILL)
        self._returned_at = time.monotonic()
        await asyncio.sleep(LAST_S - KILLED_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _register(self) -> None:
        """Register the engines as soon as the service answers."""
        until = time.monotonic() + START_S
        for worker_id, port in self._fleet.ports.items():
            body = {
                "worker_id": worker_id,
                "model_name": MODEL,
                "endpoint": f"http://127.0.0.1:{port}",
                "block_size": BLOCK_SIZE,
            }
            while True:
                try:
                    async with self._http.post(f"{self._fleet.url}/workers", json=body) as answer:
                        answer.raise_for_status()
                        break
                except aiohttp.ClientConnectionError:
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(0.2)

    async def _whole_answer(self, prompt: list[int]) -> str:
        """Return the right answer, from an engine before the fault."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": ANSWER, "temperature": 0}
        url = f"http://127.0.0.1:{self._fleet.ports[ENGINES]}/v1/completions"
        async with self._http.post(url, json=body) as answer:
            text: str = (await answer.json())["choices"][0]["text"]
        return text

    async def _stream_forever(self, number: int) -> None:
        """Send a client's requests one after the other."""
        await asyncio.sleep(number * 0.1)
        while True:
            begun, chosen = time.monotonic(), self._rng.randrange(PROMPTS)
            answer = await self._stream(chosen)
            # An answer that began before the faults may end after the last.
            if self._faults_at is not None and time.monotonic() > self._faults_at:
                self.result.answers.append(answer)
            if answer.is_refused:
                await asyncio.sleep(max(0.0, 0.5 - (time.monotonic() - begun)))

    async def _stream(self, chosen: int) -> StreamedAnswer:
        """Stream an answer through the gateway."""
        body = {
            "model": MODEL,
            "prompt": self._prompts[chosen],
            "max_tokens": ANSWER,
            "temperature": 0,
            "stream": True,
        }
        last, silence_s, text = time.monotonic(), 0.0, ""
        try:
            url = f"{self._fleet.gateway}/v1/completions"
            async with self._http.post(url, json=body) as response:
                if response.status != 200:
                    return StreamedAnswer(time.monotonic() - last, False, True)
                async for chunk in chunks_of(response):
                    now = time.monotonic()
                    last, silence_s = now, max(silence_s, now - last)
                    if "error" in chunk:
                        return StreamedAnswer(silence_s, False, True)
                    text += "".join(choice["text"] for choice in chunk["choices"])
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return StreamedAnswer(max(silence_s, time.monotonic() - last), False, True)
        return StreamedAnswer(silence_s, text == self._right[chosen], False)

    async def _watch_ranks(self) -> None:
        """Note when ranks leave and return, every 0.2 s."""
        while True:
            await asyncio.sleep(0.2)
            if self._faults_at is None:
                continue
            async with self._http.get(f"{self._fleet.url}/health/fleet") as answer:
                (partition,) = (await answer.json())["partitions"]
            now = time.monotonic()
            for rank in partition["ranks"]:
                worker_id, serves = rank["worker_id"], rank["state"] in ("healthy", "suspicious")
                if not serves:
                    self.result.out_s.setdefault(worker_id, now - self._faults_at)
                elif worker_id == KILL and self._returned_at and self.result.back_s is None:
                    self.result.back_s = now - self._returned_at


async def play(engine: Path, tree: Path, interval_s: float, port: int) -> SceneResult:
    """Return the result of a run."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=180)
    connector = aiohttp.TCPConnector(limit=0)
    with sick_fleet(engine, tree, interval_s) as fleet:
        fleet.start_service(port)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            scene = Scene(fleet, http)
            await scene.run()
    return scene.result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", type=Path, required=True, help="script of an engine")
    parser.add_argument("--tree", type=Path, default=ROOT, help="sources of service and gateway")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between checks")
    parser.add_argument("--port", type=int, default=18092, help="of the service")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    given = parser.parse_args()
    # Ended by `finally`, as otherwise the engines would outlive the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    result = asyncio.run(
        play(given.engine.resolve(), given.tree.resolve(), given.interval, given.port)
    )
    rows = result.rows()
    for name, value in rows.items():
        limit = LIMITS.get(name)
        print(f"{name:28}{value:10.1f}" + ("" if limit is None else f"   at most {limit:g}"))
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(rows[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
