"""Scale engine processes of this machine by the decisions of a planner.

    python process_manager.py --planner http://localhost:8095 --selector http://localhost:8092 \\
        --model qwen --block-size 16 --replicas 2 \\
        -- vllm serve Qwen/Qwen3-8B --port {port} --block-size 16

`{port}` and `{worker_id}` in the command are replaced. The manager registers every engine as a
worker as soon as the engine listens. An engine that exits is started again with the same worker id
and port. Workers in a decision's `replace` list may hang: the manager kills and restarts these
engines.

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

STOP_S_MAX = 30.0
"""Seconds from SIGTERM to SIGKILL."""
POLL_INTERVAL_S = 1.0
RESTART_PAUSE_S = 5.0
"""Pause before the restart of an engine that exited, in seconds."""


class Engine:
    """Engine process; restarts do not change the worker id and port."""

    def __init__(self, options: argparse.Namespace, worker_id: int) -> None:
        self.worker_id = worker_id
        self._options = options
        self._port = options.first_port + worker_id
        self._process: asyncio.subprocess.Process | None = None
        self._registering: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_exited(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def start(self) -> None:
        """Start the process and register the worker again."""
        values = {"port": self._port, "worker_id": self.worker_id}
        command = [part.format(**values) for part in self._options.command]
        self._process = await asyncio.create_subprocess_exec(*command)
        self._registering.cancel()
        self._registering = asyncio.ensure_future(self._register_worker())

    async def _register_worker(self) -> None:
        """Register the worker as soon as the engine listens; earlier health checks would fail."""
        while not self.has_exited:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.close()
                await self._call_selector("POST", "/workers", self._build_registration())
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    def _build_registration(self) -> dict[str, object]:
        return {
            "worker_id": self.worker_id,
            "model_name": self._options.model,
            "endpoint": f"http://127.0.0.1:{self._port}",
            "block_size": self._options.block_size,
        }

    async def stop(self, stop_signal: signal.Signals = signal.SIGTERM) -> None:
        """Delete the worker and stop the process."""
        self._registering.cancel()
        await self._call_selector("DELETE", f"/workers/{self.worker_id}")
        await self.stop_process(stop_signal)

    async def stop_process(self, stop_signal: signal.Signals) -> None:
        """Stop the process by a signal; send SIGKILL after STOP_S_MAX."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(stop_signal)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
            return
        process.kill()
        await process.wait()

    async def _call_selector(self, method: str, path: str, body: object = None) -> None:
        """Call the selector; print an error, because the engine runs without a selector, too."""
        headers = {"content-type": "application/json"}
        if key := os.environ.get("SELECTOR_API_KEY"):
            headers["authorization"] = f"Bearer {key}"
        content = None if body is None else json.dumps(body).encode()
        url = self._options.selector + path
        request = urllib.request.Request(url, content, headers, method=method)
        try:
            await asyncio.to_thread(urllib.request.urlopen, request, timeout=10)
        except (urllib.error.URLError, OSError) as error:
            print(f"selector call failed: {method} {url}: {error}", flush=True)


class ProcessManager:
    """Manager of the engines of a role."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.engines: dict[int, Engine] = {}
        self._lock = asyncio.Lock()

    async def apply_decision(self, decision: ScalingDecision) -> int:
        """Replace and scale the engines; return the number of engines."""
        count = decision.num_decode
        async with self._lock:
            hung = [self.engines[w] for w in decision.replace if w in self.engines]
            await asyncio.gather(*(engine.stop_process(signal.SIGKILL) for engine in hung))
            await asyncio.gather(*(engine.start() for engine in hung))
            if count is not None:
                await self._scale_to(count, decision.victims)
            return len(self.engines)

    async def _scale_to(self, count: int, victims: tuple[int, ...]) -> None:
        # Drained engines first, then exited engines, then the newest engines.
        surplus = sorted(
            self.engines.values(),
            key=lambda e: (e.worker_id not in victims, not e.has_exited, -e.worker_id),
        )[: max(0, len(self.engines) - count)]
        for engine in surplus:
            del self.engines[engine.worker_id]
        await asyncio.gather(*(engine.stop() for engine in surplus))
        while len(self.engines) < count:
            worker_id = next(n for n in range(1, count + 1) if n not in self.engines)
            self.engines[worker_id] = Engine(self._options, worker_id)
            await self.engines[worker_id].start()

    async def restart_exited(self) -> None:
        """Restart engines that exited, until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            async with self._lock:
                exited = [engine for engine in self.engines.values() if engine.has_exited]
            if not exited:
                continue
            await asyncio.sleep(RESTART_PAUSE_S)
            async with self._lock:
                for engine in exited:
                    if self.engines.get(engine.worker_id) is engine and engine.has_exited:
                        await engine.start()

    async def run(self) -> None:
        """Follow the planner until cancelled, then stop all engines."""
        restarting = asyncio.create_task(self.restart_exited())
        try:
            await self._scale_to(self._options.replicas, ())
            async with VirtualConnectorClient(self._options.planner) as planner:
                while True:
                    decision = await planner.wait()
                    count = await self.apply_decision(decision)
                    await planner.complete(decision, num_decode=count)
                    print(f"decision {decision.decision_id}: {count} engines", flush=True)
        finally:
            restarting.cancel()
            await asyncio.gather(*(e.stop() for e in self.engines.values()), return_exceptions=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--planner", required=True, help="URL of select-planner")
    parser.add_argument("--selector", required=True, help="URL of a selector")
    parser.add_argument("--model", required=True)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=1, help="engines before the first decision")
    parser.add_argument(
        "--first-port",
        type=int,
        default=18000,
        help="port of an engine: this number plus the worker id",
    )
    parser.add_argument("command", nargs="+", help="command of an engine, after --")
    return parser.parse_args()


async def main() -> None:
    running = asyncio.ensure_future(ProcessManager(parse_options()).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(main())
