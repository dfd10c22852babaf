"""Carries out a planner's decisions with processes of this machine, one engine in each.

    python process_manager.py --planner http://localhost:8095 --selector http://localhost:8092 \\
        --model qwen --block-size 16 --replicas 2 \\
        -- vllm serve Qwen/Qwen3-8B --port {port} --block-size 16

`{port}` and `{worker_id}` in the command are replaced. Every engine is registered as a worker as
soon as it listens. An engine that ends by itself is started again in its place. Workers that the
planner wants to be replaced are killed, as they may hang, and started anew.

Environment: SELECTOR_API_KEY is a key of the role operator. Needs the extra `client`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import urllib.error
import urllib.request

from select_service.client import ScalingDecision, VirtualConnectorClient

END_S = 30.0
"""Seconds from SIGTERM to SIGKILL."""
LOOK_S = 1.0
RETRY_S = 5.0
"""Pause before an engine that ended by itself is started again, in seconds."""


class Engine:
    """One engine process, which keeps its worker id and port over restarts."""

    def __init__(self, options: argparse.Namespace, worker_id: int) -> None:
        self.worker_id = worker_id
        self._options = options
        self._port = options.first_port + worker_id
        self._process: asyncio.subprocess.Process | None = None
        self._registering: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def start(self) -> None:
        """Start the process and register its worker, which begins a new life there."""
        values = {"port": self._port, "worker_id": self.worker_id}
        command = [part.format(**values) for part in self._options.command]
        self._process = await asyncio.create_subprocess_exec(*command)
        self._registering.cancel()
        self._registering = asyncio.ensure_future(self._register())

    async def _register(self) -> None:
        """Register as soon as the engine listens: until then it would count as failed."""
        while not self.has_ended:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.close()
                await self._call("POST", "/workers", self._registration())
                return
            await asyncio.sleep(LOOK_S)

    def _registration(self) -> dict[str, object]:
        return {
            "worker_id": self.worker_id,
            "model_name": self._options.model,
            "endpoint": f"http://127.0.0.1:{self._port}",
            "block_size": self._options.block_size,
        }

    async def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End the process and its worker."""
        self._registering.cancel()
        await self._call("DELETE", f"/workers/{self.worker_id}")
        await self.kill(by)

    async def kill(self, by: signal.Signals) -> None:
        """End the process; after END_S without mercy."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(by)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_S)
            return
        process.kill()
        await process.wait()

    async def _call(self, method: str, path: str, body: object = None) -> None:
        """Call the selector; the failure of a call is printed, as the process is what counts."""
        headers = {"content-type": "application/json"}
        if key := os.environ.get("SELECTOR_API_KEY"):
            headers["authorization"] = f"Bearer {key}"
        content = None if body is None else json.dumps(body).encode()
        url = self._options.selector + path
        request = urllib.request.Request(url, content, headers, method=method)
        try:
            await asyncio.to_thread(urllib.request.urlopen, request, timeout=10)
        except (urllib.error.URLError, OSError) as error:
            print(f"{method} {url}: {error}", flush=True)


class ProcessManager:
    """Engines of one role."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.engines: dict[int, Engine] = {}
        self._changing = asyncio.Lock()

    async def carry_out(self, decision: ScalingDecision) -> int:
        """Bring the engines to the decision; return how many there are."""
        count = decision.num_decode
        async with self._changing:
            lost = [self.engines[w] for w in decision.replace if w in self.engines]
            await asyncio.gather(*(engine.kill(signal.SIGKILL) for engine in lost))
            await asyncio.gather(*(engine.start() for engine in lost))
            if count is not None:
                await self._bring_to(count, decision.victims)
            return len(self.engines)

    async def _bring_to(self, count: int, victims: tuple[int, ...]) -> None:
        # Drained engines go first, then those that have ended, then the newest.
        going = sorted(
            self.engines.values(),
            key=lambda e: (e.worker_id not in victims, not e.has_ended, -e.worker_id),
        )[: max(0, len(self.engines) - count)]
        for engine in going:
            del self.engines[engine.worker_id]
        await asyncio.gather(*(engine.end() for engine in going))
        while len(self.engines) < count:
            number = next(n for n in range(1, count + 1) if n not in self.engines)
            self.engines[number] = Engine(self._options, number)
            await self.engines[number].start()

    async def restart_ended(self) -> None:
        """Start engines that ended by themselves, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            async with self._changing:
                ended = [engine for engine in self.engines.values() if engine.has_ended]
            if not ended:
                continue
            await asyncio.sleep(RETRY_S)
            async with self._changing:
                for engine in ended:
                    if self.engines.get(engine.worker_id) is engine and engine.has_ended:
                        await engine.start()

    async def run(self) -> None:
        """Follow the planner until cancelled, then end all engines."""
        restarting = asyncio.create_task(self.restart_ended())
        try:
            await self._bring_to(self._options.replicas, ())
            async with VirtualConnectorClient(self._options.planner) as planner:
                while True:
                    decision = await planner.wait()
                    count = await self.carry_out(decision)
                    await planner.complete(decision, num_decode=count)
                    print(f"decision {decision.decision_id}: {count} engines", flush=True)
        finally:
            restarting.cancel()
            await asyncio.gather(*(e.end() for e in self.engines.values()), return_exceptions=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--planner", required=True, help="URL of select-planner")
    parser.add_argument("--selector", required=True, help="URL of a selector")
    parser.add_argument("--model", required=True)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=1, help="engines before any decision")
    parser.add_argument("--first-port", type=int, default=18000, help="plus the worker id")
    parser.add_argument("command", nargs="+", help="of an engine, after --")
    return parser.parse_args()


async def main() -> None:
    running = asyncio.ensure_future(ProcessManager(options()).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(main())
