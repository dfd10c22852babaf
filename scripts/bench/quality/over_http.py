"""Quality of whole services: processes with HTTP calls and ZMQ events.

    python -m scripts.bench.quality.over_http [--workloads tenants:bursts] [--seeds 1:2]

Engines and clients are those of the simulation. Their virtual time runs at most `--pace` times as
fast as the clock and stops during calls of the service: the duration of a call is added to the wait
of its request. KV events leave at the end of their step and arrive in real time, which is `--pace`
times as late in virtual time.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import NamedTuple

import numpy as np

from scripts.bench.quality import quality_runs
from scripts.bench.quality.quality_figures import Results, RunKey, compute_outcome
from scripts.bench.quality.quality_report import render_markdown
from scripts.bench.quality.quality_runs import CAPACITY, WorkloadCase
from scripts.bench.quality.service_router import EventStreams, PacedWorld, ServiceRouter
from select_service.core.placement.router_config import POLICY_NAMES
from select_service.sim.demo.service_client import ServiceClient
from select_service.sim.demo.service_process import ServiceProcess, choose_port
from select_service.sim.engine.gpu_hardware import Fleet

POLICIES = ("reference", "work")
PACE = 4.0


class HttpRunResult(NamedTuple):
    """Further results of a run.

    calls_s:   float64[n], duration of each choice
    late_s:    delay of virtual time behind the clock on a slow machine
    unread:    batches of KV events that the service had not read at the end
    held:      reservations that were left
    """

    calls_s: np.ndarray
    late_s: float
    unread: int
    held: int


@contextmanager
def running_service(policy: str) -> Iterator[int]:
    """Yield the port of a new service."""
    port = choose_port(0)
    process = ServiceProcess(port, "--policy", policy)
    try:
        asyncio.run(_is_alive(process))
        yield port
    finally:
        process.stop()


async def _is_alive(process: ServiceProcess) -> None:
    client = ServiceClient(process.base_url, "m")
    try:
        await process.wait_until_alive(client)
    finally:
        await client.close()


def run_over_http(key: RunKey, case: WorkloadCase, pace: float, results: Results) -> HttpRunResult:
    """Make a run against a new service."""
    workload = case.workload(key.seed)
    world = PacedWorld(workload, case.fleet, pace)
    with running_service(key.chooser) as port, streams_of(case.fleet) as streams:
        chooser = ServiceRouter(port, world, streams)
        chooser.register_workers(case.fleet)
        per_s = key.load * CAPACITY[key.workload] / workload.mean_session_length
        results[key] = compute_outcome(world.run_open(chooser, per_s), case.fleet)
        return HttpRunResult(
            np.array(chooser.calls_s),
            world.late_s,
            chooser.unread_batches(),
            chooser.count_reservations(),
        )


@contextmanager
def streams_of(fleet: Fleet) -> Iterator[EventStreams]:
    streams = EventStreams(len(fleet))
    try:
        yield streams
    finally:
        streams.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workloads", default="tenants:bursts", metavar="A:B")
    add("--policies", default=":".join(POLICIES), metavar="A:B", help=", ".join(POLICY_NAMES))
    add("--loads", default="0.85", metavar="X:Y", help="shares of capacity")
    add("--seeds", default="1", metavar="I:J")
    add("--requests", type=int, default=1000, metavar="N", help="of a run")
    add("--pace", type=float, default=PACE, help="seconds of the engines per second, at most")
    options = parser.parse_args()
    cases = quality_runs.make_cases(None, None, options.requests)
    policies = options.policies.split(":")
    results: Results = {}
    for seed, name, load, policy in product(
        map(int, options.seeds.split(":")),
        options.workloads.split(":"),
        map(float, options.loads.split(":")),
        policies,
    ):
        key = RunKey(name, load, seed, policy)
        done = run_over_http(key, cases[name], options.pace, results)
        p50, p99 = 1e3 * np.quantile(done.calls_s, (0.5, 0.99))
        print(
            f"{key}: {results[key].ttft_mean:.3f} s, p99 {results[key].ttft_p99:.2f} s; a choice "
            f"took {p50:.1f} ms, p99 {p99:.1f} ms; engines {done.late_s:.1f} s late; "
            f"{done.unread} batches unread, {done.held} reservations left",
            file=sys.stderr,
            flush=True,
        )
    print(render_markdown(results, policies[0]))


if __name__ == "__main__":
    main()
