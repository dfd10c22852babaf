"""Quality as users meet it: services as processes, asked over HTTP and told over ZMQ.

    python -m scripts.bench.quality.over_http [--workloads tenants:bursts] [--seeds 1:2]

The engines and clients are those of the simulation, and so is their time, which here goes at most
`--pace` times as fast as the clock, and stands still while the service is asked: what a call takes
is added to the wait of its request as it is.  KV events go out at the end of the step that made
them, and arrive when they do, which is `--pace` times as late in the time of the engines.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import NamedTuple

import numpy as np

from scripts.bench.quality import cells
from scripts.bench.quality.cells import CAPACITY, Case
from scripts.bench.quality.figures import Key, Results, outcome_of
from scripts.bench.quality.report import markdown
from scripts.bench.quality.service_chooser import EventStreams, PacedWorld, ServiceChooser
from select_service.core.decide.router_config import POLICY_NAMES
from select_service.replaying.hardware import Fleet
from select_service.simulator.client import SelectorClient
from select_service.simulator.service_process import ServiceProcess, checked_port

POLICIES = ("reference", "work")
PACE = 4.0


class Run(NamedTuple):
    """What a run brought besides the outcome.

    calls_s:   float64[n], how long each choice took
    late_s:    of the engines' time, behind the clock when the machine was too slow
    unread:    batches of KV events that the service had not read at the end
    held:      reservations that were left
    """

    calls_s: np.ndarray
    late_s: float
    unread: int
    held: int


@contextmanager
def a_service(policy: str) -> Iterator[int]:
    """The port of a service of its own."""
    port = checked_port(0)
    process = ServiceProcess(port, "--policy", policy)
    try:
        asyncio.run(_alive(process))
        yield port
    finally:
        process.stop()


async def _alive(process: ServiceProcess) -> None:
    client = SelectorClient(process.base_url, "m")
    try:
        await process.wait_until_alive(client)
    finally:
        await client.close()


def run(key: Key, case: Case, pace: float, results: Results) -> Run:
    """One run against a service that begins with it."""
    workload = case.workload(key.seed)
    world = PacedWorld(workload, case.fleet, pace)
    with a_service(key.chooser) as port, streams_of(case.fleet) as streams:
        chooser = ServiceChooser(port, world, streams)
        chooser.register(case.fleet)
        per_s = key.load * CAPACITY[key.workload] / workload.turns
        results[key] = outcome_of(world.run_open(chooser, per_s))
        return Run(
            np.array(chooser.calls_s), world.late_s, chooser.unread_batches(), chooser.held()
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
    cases = cells.cases(None, None, options.requests)
    policies = options.policies.split(":")
    results: Results = {}
    for seed, name, load, policy in product(
        map(int, options.seeds.split(":")),
        options.workloads.split(":"),
        map(float, options.loads.split(":")),
        policies,
    ):
        key = Key(name, load, seed, policy)
        done = run(key, cases[name], options.pace, results)
        p50, p99 = 1e3 * np.quantile(done.calls_s, (0.5, 0.99))
        print(
            f"{key}: {results[key].ttft_mean:.3f} s, p99 {results[key].ttft_p99:.2f} s; a choice "
            f"took {p50:.1f} ms, p99 {p99:.1f} ms; engines {done.late_s:.1f} s late; "
            f"{done.unread} batches unread, {done.held} reservations left",
            file=sys.stderr,
            flush=True,
        )
    print(markdown(results, policies[0]))


if __name__ == "__main__":
    main()
