"""The demo from start to end: compile, start, register, drive, compare, report, stay up.

Owns the terminal and the lifetimes of the service and the fleet; all figures come from elsewhere.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from select_service.request_trace import TraceError
from select_service.simulator import summary
from select_service.simulator.baselines import least_loaded, round_robin, run_baseline
from select_service.simulator.client import CallFailed, SelectorClient
from select_service.simulator.drive import Driver
from select_service.simulator.engine import Engine
from select_service.simulator.examples import examples, telling_prompt
from select_service.simulator.figures import percentile
from select_service.simulator.fleet import Fleet, FleetShape, fresh_engines
from select_service.simulator.options import Options
from select_service.simulator.service_process import (
    ServiceFailed,
    ServiceProcess,
    checked_port,
    compile_kernels,
)
from select_service.simulator.stages import Stages
from select_service.simulator.trace import read_trace
from select_service.simulator.trickle import PER_S, PatientClient, keep_going
from select_service.simulator.workload import Shape, Workload, generate
from select_service.simulator.world import Step, World

MODEL_NAME = "demo"
WATCH_S = 0.5
RECENT_CALLS = 500
STATUS_OK, STATUS_FAILED, STATUS_INTERRUPTED = 0, 1, 130


class DemoFailed(Exception):
    """The demo cannot go on; the text says why."""


class Stage(NamedTuple):
    """Everything that is alive while the demo runs."""

    options: Options
    console: Console
    stages: Stages
    workload: Workload
    service: ServiceProcess
    client: SelectorClient
    fleet: Fleet


def run_demo(options: Options) -> int:
    """Run it on this terminal; returns the exit status."""
    console = Console(highlight=False)
    try:
        return asyncio.run(_until_signalled(options, console))
    except (DemoFailed, ServiceFailed, CallFailed, TraceError, OSError) as error:
        console.print(f"[bold red]failed[/]: {escape(str(error))}", soft_wrap=True)
        return STATUS_FAILED


async def _until_signalled(options: Options, console: Console) -> int:
    """Ctrl-C and SIGTERM cancel the demo, so that service and sockets are always closed."""
    demo = asyncio.create_task(_demo(options, console))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, demo.cancel)
    try:
        return await demo
    except asyncio.CancelledError:
        console.print("interrupted")
        return STATUS_INTERRUPTED


async def _demo(options: Options, console: Console) -> int:
    stages = Stages(console)
    with stages.stage("making the workload"):
        workload = _workload(options)
    with stages.stage("looking for the compiled kernels") as detail:
        await compile_kernels(lambda line: detail(f"{line} (not again next time)"))
    port = checked_port(options.port)
    fleet = Fleet(_shape(options), options.lose)
    service = ServiceProcess(port)
    client = SelectorClient(service.base_url, MODEL_NAME)
    try:
        return await _on_stage(Stage(options, console, stages, workload, service, client, fleet))
    finally:
        # The process first: a second Ctrl-C may cut the rest short, but it must not outlive us.
        service.stop()
        await client.close()
        await fleet.close()


def _workload(options: Options) -> Workload:
    if options.trace is not None:
        workload = read_trace(options.trace, options.block_size, options.requests, options.speedup)
    else:
        ranks = options.workers * options.ranks
        workload = generate(Shape(options.requests, options.block_size, ranks, options.seed))
    if workload.places_max > options.blocks:
        raise DemoFailed(
            f"the largest request needs {workload.places_max} blocks, more than the cache of one "
            f"rank: give --blocks {workload.places_max} or more"
        )
    return workload


def _shape(options: Options) -> FleetShape:
    return FleetShape(
        options.workers, options.ranks, options.blocks, options.block_size, options.seed
    )


async def _on_stage(stage: Stage) -> int:
    console, stages, shape = stage.console, stage.stages, stage.fleet.shape
    with stages.stage("starting the service"):
        await stage.service.wait_until_alive(stage.client)
    console.print(f"the fleet, live: {stage.service.base_url}/", soft_wrap=True)
    engines = fresh_engines(shape)
    await stage.fleet.serve(MODEL_NAME, engines)
    with stages.stage("registering the workers"):
        await stage.fleet.register(stage.client)
    console.print(
        f"service at {stage.service.base_url}, {shape.workers} simulated workers "
        f"x {shape.ranks_per_worker} rank(s), {shape.blocks_per_rank} blocks of "
        f"{shape.block_size} tokens each",
        soft_wrap=True,
    )
    world = World(stage.workload, engines, stage.fleet.emit)
    driver = Driver(world, stage.fleet, stage.client)
    with _progress(stage, world) as on_step:
        await driver.work_off(on_step)
    with stages.stage("checking the end state"):
        await driver.audit(stage.workload)
    with stages.stage("the same workload under the other policies"):
        policy = await stage.client.policy()
        worlds = {policy: world} | await asyncio.to_thread(_baselines, stage, policy)
    timings = summary.latencies(stage.client.latencies_s)
    summary.show_summary(console, worlds, driver.run, stage.fleet, timings)
    summary.show_decision(console, await stage.client.telling_decision())
    return await _conclude(stage, world, engines, driver.run.problems())


@contextmanager
def _progress(stage: Stage, world: World) -> Iterator[Callable[[Step], None]]:
    """What is to be called after every step; shows how many requests are done."""
    show = _bar if stage.console.is_terminal else _plain_progress
    with show(stage) as on_finished:

        def on_step(step: Step) -> None:
            if step is Step.FINISHED:
                selects = stage.client.latencies_s["select_and_reserve"][-RECENT_CALLS:]
                hit_rate = world.tally.hit_blocks / max(1, world.tally.prompt_blocks)
                on_finished(hit_rate, percentile(selects, 50) * 1000)

        yield on_step


@contextmanager
def _plain_progress(stage: Stage) -> Iterator[Callable[[float, float], None]]:
    requests, done = stage.workload.requests, count(1)
    with stage.stages.stage(f"driving {requests} requests") as detail:
        yield lambda hit_rate, p50_ms: detail(
            f"{next(done)} done, hit rate {hit_rate:.1%}, select p50 {p50_ms:.2f} ms"
        )


@contextmanager
def _bar(stage: Stage) -> Iterator[Callable[[float, float], None]]:
    columns = (
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("hit rate {task.fields[hit_rate]:.1%}  select p50 {task.fields[p50_ms]:.2f} ms"),
    )
    with Progress(*columns, console=stage.console) as progress:
        task = progress.add_task("", total=stage.workload.requests, hit_rate=0.0, p50_ms=0.0)
        yield lambda hit_rate, p50_ms: progress.update(
            task, advance=1, hit_rate=hit_rate, p50_ms=p50_ms
        )


def _baselines(stage: Stage, policy: str) -> dict[str, World]:
    """policy: that of the service"""
    from select_service.simulator.core_baseline import run_core  # half a second of kernels

    shape, other = stage.fleet.shape, "work" if policy == "reference" else "reference"
    of_core = run_core(stage.workload, fresh_engines(shape), other, stage.options.seed)
    policies = {"round robin": round_robin(), "least loaded": least_loaded(stage.options.seed)}
    blind = {
        name: run_baseline(stage.workload, fresh_engines(shape), choose)
        for name, choose in policies.items()
    }
    return {other: of_core} | blind


async def _conclude(stage: Stage, world: World, engines: list[Engine], problems: list[str]) -> int:
    console = stage.console
    for problem in problems:
        console.print(f"[bold red]problem[/]: {escape(problem)}", soft_wrap=True)
    if not problems:
        console.print("[green]every request went through, nothing stayed booked[/]")
    status = STATUS_FAILED if problems else STATUS_OK
    if stage.options.once:
        return status
    _show_examples(stage, world)
    traffic = asyncio.create_task(_traffic(stage, engines))
    try:
        while stage.service.is_running:
            await asyncio.sleep(WATCH_S)
    except asyncio.CancelledError:
        console.print("stopping")
        return status
    finally:
        traffic.cancel()
        await asyncio.gather(traffic, return_exceptions=True)
    raise ServiceFailed(f"the service ended:\n{stage.service.log_tail()}")


async def _traffic(stage: Stage, engines: list[Engine]) -> None:
    """Go on with some requests, so that the page has something to show."""
    client = PatientClient(stage.service.base_url, MODEL_NAME, stage.fleet.shape.workers)
    try:
        await keep_going(stage.fleet, client, engines)
    finally:
        await client.close()


def _show_examples(stage: Stage, world: World) -> None:
    base_url, console = stage.service.base_url, stage.console
    console.print("\nThe service and the fleet stay up until Ctrl-C.  Try:\n")
    known = telling_prompt(world, stage.workload)
    for example in examples(base_url, MODEL_NAME, known, stage.fleet.rank_names()):
        console.print(f"# {example.caption}", style="dim", soft_wrap=True)
        console.print(example.command, markup=False, soft_wrap=True)
    command = f"{sys.executable} -m select_service"
    console.print("\n# what is wrong, also with a prompt through each engine", style="dim")
    console.print(f"{command} doctor --probe --url {base_url}", soft_wrap=True)
    console.print(
        "# why the last requests went where they went; with an id, all of one", style="dim"
    )
    console.print(f"{command} explain --url {base_url}", soft_wrap=True)
    console.print("# what an engine says of itself", style="dim")
    console.print(f"{command} inspect {stage.fleet.url_of(1)}", soft_wrap=True)
    console.print(f"\nAbout {PER_S:g} requests a second go on meanwhile.")
    console.print(f"The fleet, live: {base_url}/\nThe API, readable: {base_url}/docs")
