"""Fleets under the same traffic: one with this planner, others with the document's.

    python -m scripts.bench.planner --trace mooncake.jsonl.gz --out docs/measurements/planner

Real processes: each fleet has a selector (health on, for drains) and `select-planner` with the
virtual connector. Prints a table and writes the table with a picture.

The document's planner saves replicas at the cost of missed promises. `--tighter` adds fleets with
latency targets tightened by a factor; the figure is the kept share of the original promise.

`--speedup` shortens a run and makes the result worse: selectors count real seconds, so a minute in
ten seconds has only ten counts.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scripts.bench.line_plot import PlotAxis, PlotPanel, render_svg
from scripts.bench.planner.simulated_platform import MODEL, EngineFleetSpec, SimulatedPlatform
from select_service.planner.core.tick_input import EngineLimits, Role
from select_service.planner.replay.least_gpu_hours import (
    ServicePromise,
    find_least_replicas,
    least_gpu_hours,
)
from select_service.planner.replay.replay_traffic import trace_requests
from select_service.planner.replay.simulated_engine import EngineSpeed, SimulatedRequest
from select_service.planner.replay.simulated_fleet import FleetOptions
from select_service.sim.demo.service_process import choose_port

SPEED = EngineSpeed(base_s=0.008, per_prefill_token_s=5e-5, per_kv_token_s=3e-8, per_request_s=1e-4)
LIMITS = EngineLimits(max_num_batched_tokens=8192, max_num_seqs=256, max_kv_tokens=1_000_000)
GPUS_MAX = 12
INTERVAL_S, LEAST_S = 60.0, 300.0
START_S = 120.0


class PlannerVariant(NamedTuple):
    """A planner.  targets: its latency targets as a share of the promise"""

    profile: str
    targets: float = 1.0

    @property
    def name(self) -> str:
        return self.profile if self.targets == 1.0 else f"{self.profile}-{self.targets:g}"


def traffic(trace: Path, minutes: float, peak: float) -> list[SimulatedRequest]:
    """Return a morning: the trace with a growing share of requests and a burst of three minutes.

    peak: share of the trace's requests at the end, doubled in the burst by copies. Shared prefixes
    are left out, so that every token is computed.
    """
    end, result = minutes * 60.0, []
    burst = (0.75 * end, 0.75 * end + 180.0)
    for number, each in enumerate(trace_requests(trace)):
        if each.arrived_s >= end:
            break
        part = peak * min(1.0, 0.15 + 0.85 * each.arrived_s / (0.6 * end))
        if burst[0] <= each.arrived_s < burst[1]:
            part *= 1.6
        copies = int(part) + ((number * 0.6180339887) % 1.0 < part % 1.0)
        result += [
            SimulatedRequest(each.arrived_s + 0.31 * copy, each.isl, min(each.osl, 800), each.isl)
            for copy in range(copies)
        ]
    return sorted(result, key=lambda each: each.arrived_s)


def planner_yaml(
    selector: str, port: int, speedup: float, promise: ServicePromise, targets: float
) -> dict[str, Any]:
    """Return the planner's configuration, with all times in accelerated seconds."""
    own = {
        "name": "fleet",
        "model_name": MODEL,
        "mode": "agg",
        "connector": {"kind": "virtual", "drain_timeout_s": 300.0 / speedup},
        "ttft_ms": promise.ttft_s * targets * 1000.0 / speedup,
        "itl_ms": promise.itl_s * targets * 1000.0 / speedup,
        "attainment": promise.attainment,
        "enable_load_scaling": True,
        "throughput_adjustment_interval_seconds": INTERVAL_S / speedup,
        "load_adjustment_interval_seconds": INTERVAL_S / speedup / 4,
        "down_window_s": 300.0 / speedup,
        "down_cooldown_s": 60.0 / speedup,
        "startup_s": START_S / speedup,
        "pending_stuck_secs": 300.0 / speedup,
        "max_gpu_budget": GPUS_MAX,
        "decode_limits": {"max_num_seqs": LIMITS.max_num_seqs},
    }
    return {"selectors": [selector], "deployments": [own], "api": {"port": port}}


class Processes:
    """A selector and a planner."""

    def __init__(
        self, tried: PlannerVariant, speedup: float, promise: ServicePromise, folder: Path
    ) -> None:
        name = tried.name
        selector, planner = choose_port(0), choose_port(0)
        self.selector, self.planner = (f"http://127.0.0.1:{port}" for port in (selector, planner))
        self.log = folder / f"{name}.jsonl"
        canaries, config = folder / "canaries.yaml", folder / f"{name}.yaml"
        canaries.write_text(f"{MODEL}: []\n")
        document = planner_yaml(self.selector, planner, speedup, promise, tried.targets)
        if tried.profile == "document":
            document["deployments"][0]["load_predictor"] = "kalman"
        config.write_text(yaml.safe_dump(document))
        self._output = (folder / f"{name}.log").open("w")
        self._planning = (
            f"--config={config}",
            f"--profile={tried.profile}",
            f"--decision-log={self.log}",
        )
        flags = (
            f"--port={selector}",
            "--drain-secs=0",
            "--health-checks=on",
            f"--canary-config={canaries}",
        )
        self._running = [self._begun("select_service", *flags)]
        self._wait(f"{self.selector}/health")

    def plan(self) -> None:
        """Start the planner after the first engines."""
        self._running.append(self._begun("select_service.planner", *self._planning))
        self._wait(f"{self.planner}/healthz")

    def _begun(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "DYN_USE_KV_EVENTS": "false"},
        )

    def _wait(self, url: str) -> None:
        """Wait for an answer.  Raises RuntimeError if a process has ended."""
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
            if any(each.poll() is not None for each in self._running):
                raise RuntimeError(Path(self._output.name).read_text())

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.planner}/v1/status", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)["deployments"][0]
            return found

    def report(self) -> bytes:
        with urllib.request.urlopen(f"{self.planner}/report", timeout=60) as answer:
            page: bytes = answer.read()
            return page

    def end(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(20)
        self._output.close()


async def run_together(
    platforms: list[SimulatedPlatform], begun: list[Processes], requests: list[SimulatedRequest]
) -> list[dict[str, Any]]:
    """Return the status of each planner at the end of its last request."""
    for platform, processes in zip(platforms, begun, strict=True):
        await platform.create_first_engines()
        await asyncio.to_thread(processes.plan)
    copies = [
        [SimulatedRequest(each.arrived_s, each.isl, each.osl, each.uncached) for each in requests]
        for _ in platforms
    ]
    every = zip(platforms, begun, copies, strict=True)
    return await asyncio.gather(*(_run_fleet(*each) for each in every))


async def _run_fleet(
    platform: SimulatedPlatform, processes: Processes, requests: list[SimulatedRequest]
) -> dict[str, Any]:
    await platform.run_traffic(requests)
    return await asyncio.to_thread(processes.status)


def row(
    name: str, platform: SimulatedPlatform, status: dict[str, Any], least: float, hours: float
) -> dict[str, Any]:
    totals = platform.totals
    gpu_hours = totals.gpu_s / 3600.0
    return {
        "profile": name,
        "requests": totals.requests,
        "attainment": totals.kept / max(1, totals.requests),
        "ttft": totals.ttft_kept / max(1, totals.requests),
        "itl": totals.itl_kept / max(1, totals.requests),
        "failed": totals.failed,
        "gpu_hours": gpu_hours,
        "of_least": gpu_hours / least,
        "most_gpus": totals.gpus_most,
        "reversals_an_hour": sum(status["reversals"].values()) / hours,
        "stalled_s": totals.stalled_s,
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=False, help="Mooncake JSONL, plain or gzip")
    parser.add_argument("--minutes", type=float, default=58.0, help="of the trace")
    parser.add_argument("--peak", type=float, default=1.5, help="requests of the trace in the end")
    parser.add_argument("--speedup", type=float, default=1.0, help="1: an hour takes an hour")
    parser.add_argument("--ttft", type=float, default=3.0, help="seconds of the simulation")
    parser.add_argument("--itl", type=float, default=0.06)
    parser.add_argument("--tighter", type=float, nargs="*", default=[0.5, 0.4], help="see above")
    parser.add_argument("--out", type=Path, help="folder of table, report and picture")
    return parser.parse_args()


def main() -> None:
    given = parsed()
    if given.trace is None:
        raise SystemExit("--trace is needed: a request trace in the Mooncake format")
    promise = ServicePromise(ttft_s=given.ttft, itl_s=given.itl, attainment=0.95)
    requests = traffic(given.trace, given.minutes, given.peak)
    options = FleetOptions(
        roles=(Role.DECODE,), speed={Role.DECODE: SPEED}, limits={Role.DECODE: LIMITS}
    )
    needed = find_least_replicas(
        requests, options, promise, interval_s=LEAST_S, most={Role.DECODE: GPUS_MAX}
    )
    one = {Role.DECODE: 1}
    least = least_gpu_hours(needed, one, interval_s=LEAST_S, least=one)
    print(f"{len(requests)} requests, at least {least:.2f} GPU hours", flush=True)
    fleet = EngineFleetSpec(
        speed=SPEED, limits=LIMITS, startup_s=START_S, replicas=2, promise=promise
    )
    tried = [
        PlannerVariant("ours"),
        *(PlannerVariant("document", part) for part in (1.0, *given.tighter)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        begun = [Processes(each, given.speedup, promise, Path(folder)) for each in tried]
        try:
            platforms = [
                SimulatedPlatform(fleet, b.selector, b.planner, given.speedup) for b in begun
            ]
            statuses = asyncio.run(run_together(platforms, begun, requests))
            rows = [
                row(each.name, platform, status, least, given.minutes / 60.0)
                for each, platform, status in zip(tried, platforms, statuses, strict=True)
            ]
            latency_targets(given, rows, platforms, needed[Role.DECODE], begun)
        finally:
            for each in begun:
                each.end()


def latency_targets(
    given: argparse.Namespace,
    rows: list[dict[str, Any]],
    platforms: list[SimulatedPlatform],
    needed: list[int],
    begun: list[Processes],
) -> None:
    names = list(rows[0])
    table = [names, ["---"] * len(names)]
    table += [
        [f"{v:.3f}" if isinstance(v, float) else str(v) for v in each.values()] for each in rows
    ]
    text = "\n".join("| " + " | ".join(line) + " |" for line in table)
    print(text)
    if given.out is None:
        return
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "run.md").write_text(text + "\n")
    (given.out / "run.json").write_text(json.dumps(rows, indent=1) + "\n")
    (given.out / "run.svg").write_text(picture(rows, platforms, needed, given.minutes))
    for processes in begun:
        name = processes.log.stem
        (given.out / f"report-{name}.html").write_bytes(processes.report())
        (given.out / f"decisions-{name}.jsonl").write_bytes(processes.log.read_bytes())


def picture(
    rows: list[dict[str, Any]],
    platforms: list[SimulatedPlatform],
    needed: list[int],
    minutes: float,
) -> str:
    """Return GPUs over time, next to the least sufficient number."""
    least = [(at * LEAST_S / 60.0, float(n)) for at, n in enumerate(needed)]
    lines = {"least possible": stairs([*least, (minutes, least[-1][1])])}
    for each, platform in zip(rows, platforms, strict=True):
        points = [(at / 60.0, float(held)) for at, _, held in platform.samples]
        lines[each["profile"]] = stairs(points)
    axis = PlotAxis(0.0, minutes, [10.0 * at for at in range(int(minutes / 10) + 1)], " min")
    return render_svg([PlotPanel("GPUs that are held", lines, axis)])


def stairs(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    result: list[tuple[float, float]] = []
    for at, value in points:
        if result:
            result.append((at, result[-1][1]))
        result.append((at, float(value)))
    return result


if __name__ == "__main__":
    main()
