"""Are overlaps right after engines were killed, whatever their numbers, and whoever was away?

    python scripts/bench/engine_restarts.py --engine-python PATH [--engine vllm|sglang]
                                            [--rounds 20] [--only TEXT]

PATH is the Python of an environment with vLLM (0.26 or later) or SGLang (0.5.23); no GPU and no
model is needed.  Each round is one rank of a real block pool or radix cache with the engine's own
publisher, killed with SIGKILL and started again on the same ports.  `--rounds` ranks go through a
scene at the same time, each with its own requests.  A scene is one of every combination of

    below, above      the new life has published fewer or more batches when it is reached again
    idle, streaming   it is silent from then on, or publishes all the time
    direct, cut       the connection ends at once, or the network swallows everything for a while
    stays, snapshot, peer    the service runs on, or restarts meanwhile from its file or from a peer
    alive, dead       the replay endpoint

At the end the engines are silent, and every prompt is asked for: a value is wrong when it differs
from what the rank's cache holds.  Wrong values of ranks that are shown as `connected` are what
counts.
"""

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.bench.contenders import Running, ours
from scripts.bench.recovery import call, until
from tests.process.access import OPEN
from tests.process.launched import free_port

ENGINES = Path(__file__).parents[1] / "recording" / "living_engines.py"
BLOCK_SIZE = 16
FIRST_REQUESTS = 60
BELOW, ABOVE = 15, 150
CUT_S = 3.0
SETTLE_S_MAX = 60.0
QUIET_S = 3.0


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def ask_service(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """Return status and body of an answer of a service without keys."""
    return call(OPEN, port, method, path, body)


def is_up(port: int) -> bool:
    try:
        return ask_service(port, "GET", "/health")[0] == 200
    except OSError:
        return False


class Network:
    """Forwards TCP ports to others, until it is told to swallow everything."""

    def __init__(self, routes: dict[int, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        for port, target in routes.items():
            self._do(self._listen(port, target))

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def heal(self) -> None:
        """Connections from before the cut are gone, as both sides gave them up."""
        self._do(self._heal())

    def _do(self, what: Any) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _heal(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._open.set()

    async def _listen(self, port: int, target: int) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            try:
                await self._open.wait()
                there, back = await asyncio.open_connection("127.0.0.1", target)
                self._writers.add(back)
                await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
                self._writers.discard(back)
            except OSError:
                pass
            finally:
                self._writers.discard(writer)
                writer.transport.abort()

        await asyncio.start_server(accept, "127.0.0.1", port)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        # While the network is cut the end of a connection does not arrive either.
        await self._open.wait()
        writer.transport.abort()


class Engines:
    """The lives of all ranks."""

    def __init__(self, python: str, engine: str) -> None:
        environment = {**os.environ, "PYTHONPATH": ""}
        self._process = subprocess.Popen(
            [python, str(ENGINES), engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._context: zmq.Context[Any] = zmq.Context()
        self._life: int | None = None
        self.prompts: list[list[int]] = json.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the engines have ended")
        return line

    def start(self, seed: int, requests: int, ports: list[list[int]]) -> None:
        [control] = free_ports(1)
        self._address = f"tcp://127.0.0.1:{control}"
        order = {"life": seed, "control": self._address, "requests": requests, "ports": ports}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._life = int(self._line())

    def ask(self, **order: Any) -> Any:
        with self._context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.connect(self._address)
            socket.send_string(json.dumps(order))
            return json.loads(socket.recv())

    def kill(self) -> None:
        if self._life is not None:
            os.kill(self._life, signal.SIGKILL)
            self._life = None

    def close(self) -> None:
        self.kill()
        self._process.kill()


class Scene:
    """One combination, with a service, perhaps its peer, and `rounds` engines."""

    def __init__(self, engines: Engines, rounds: int, words: tuple[str, ...], seed: int) -> None:
        self.numbers, self.activity, self.network, self.service, self.replay = words
        self._engines, self._rounds, self._seed = engines, rounds, seed
        ports = free_ports(4 * rounds + 1)
        self._dead = ports.pop()
        self._engine_ports = [ports[4 * i : 4 * i + 2] for i in range(rounds)]
        self._seen_ports = [ports[4 * i + 2 : 4 * i + 4] for i in range(rounds)]
        chain = itertools.chain.from_iterable
        routes = zip(chain(self._seen_ports), chain(self._engine_ports), strict=True)
        self._wire = Network(dict(routes))
        self._folder = tempfile.mkdtemp()

    def run(self) -> Counter[str]:
        """How many values were compared, wrong, and wrong in ranks that were shown as right."""
        engines = self._engines
        engines.start(2 * self._seed, 0, self._engine_ports)
        flags = ("--snapshot-path", f"{self._folder}/index") if self.service == "snapshot" else ()
        peer = self._started() if self.service == "peer" else None
        service = self._started(*flags)
        try:
            engines.ask(requests=FIRST_REQUESTS, stream=self.activity == "streaming")
            time.sleep(1.0)
            if self.service != "stays":
                service.stop()
            self._kill_and_restart()
            if peer is not None:
                flags = ("--indexer-peers", f"http://127.0.0.1:{peer.port}")
            if self.service != "stays":
                service = self._started(*flags)
            time.sleep(1.0)
            engines.ask(stream=False)
            return self._judged(service)
        finally:
            service.stop()
            if peer is not None:
                peer.stop()
            engines.kill()
            shutil.rmtree(self._folder)

    def _kill_and_restart(self) -> None:
        if self.network == "cut":
            self._wire.cut()
        self._engines.kill()
        requests = BELOW if self.numbers == "below" else ABOVE
        self._engines.start(2 * self._seed + 1, requests, self._engine_ports)
        self._engines.ask(stream=self.activity == "streaming")
        if self.network == "cut":
            time.sleep(CUT_S)
            self._wire.heal()

    def _started(self, *flags: str) -> Running:
        service = Running(ours().with_flags("--log-level", "error", *flags), pinned=False)
        until(lambda: is_up(service.port))
        for i, (events, replay) in enumerate(self._seen_ports):
            body = {
                "worker_id": i + 1,
                "model_name": "m",
                "endpoint": "http://127.0.0.1:1",
                "block_size": BLOCK_SIZE,
                "kv_events_endpoint": f"tcp://127.0.0.1:{events}",
                "replay_endpoint": "tcp://127.0.0.1:"
                + str(replay if self.replay == "alive" else self._dead),
            }
            assert ask_service(service.port, "POST", "/workers", body)[0] == 201
        return service

    def _states(self, port: int) -> list[dict[str, Any]]:
        records = json.loads(ask_service(port, "GET", "/workers")[1])
        return [record["kv_events"]["0"] for record in records]

    def _judged(self, service: Running) -> Counter[str]:
        """Once nothing changes any more."""
        end, before, since = time.monotonic() + SETTLE_S_MAX, None, time.monotonic()
        while time.monotonic() < min(end, since + QUIET_S):
            states = self._states(service.port)
            settled = [(s["state"], s["last_sequence"], s["connected"]) for s in states]
            busy = any(s["state"] == "catching_up" or not s["connected"] for s in states)
            asked = self.replay == "alive" and any(s["state"] == "unverified" for s in states)
            if settled != before or busy or asked:
                before, since = settled, time.monotonic()
            time.sleep(0.2)
        shown = [state["state"] for state in self._states(service.port)]
        found = Counter({f"ranks {state}": n for state, n in Counter(shown).items()})
        for prompt, tokens in enumerate(self._engines.prompts):
            body = {"model_name": "m", "token_ids": tokens}
            rows = json.loads(ask_service(service.port, "POST", "/overlap_scores", body)[1])[
                "workers"
            ]
            seen = {row["worker_id"]: row["device_blocks"] for row in rows}
            for i, held in enumerate(self._engines.ask(held=True)):
                is_wrong = seen.get(i + 1, 0) != held[prompt]
                found["values"] += 1
                found["wrong"] += is_wrong
                found["wrong and not said"] += is_wrong and shown[i] == "connected"
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="scenes whose name has this text")
    given = parser.parse_args()
    words = (
        ("below", "above"),
        ("idle", "streaming"),
        ("direct", "cut"),
        ("stays", "snapshot", "peer"),
        ("alive", "dead"),
    )
    engines = Engines(given.engine_python, given.engine)
    total: dict[str, Counter[str]] = {}
    try:
        for seed, scene in enumerate(itertools.product(*words)):
            if given.only not in " ".join(scene):
                continue
            found = Scene(engines, given.rounds, scene, seed).run()
            total.setdefault(scene[-1], Counter()).update(found)
            print(" ".join(scene), dict(found), flush=True)
    finally:
        engines.close()
    for replay, found in total.items():
        print(f"replay endpoint {replay}: {dict(found)}")


if __name__ == "__main__":
    main()
