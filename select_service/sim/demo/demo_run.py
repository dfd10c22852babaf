"""Sequence of the demo: compile, start, register, drive, compare, report, stay up.

Owns the terminal and the lifetimes of the service and the fleet; other modules compute all figures.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from select_service.files.request_trace import TraceError
from select_service.sim.demo import report_tables
from select_service.sim.demo.conversations import (
    ConversationWorkload,
    WorkloadShape,
    generate_workload,
)
from select_service.sim.demo.curl_examples import curl_examples, distinguishing_prompt
from select_service.sim.demo.demo_fleet import DemoEngines, DemoFleet, FleetShape, fresh_engines
from select_service.sim.demo.demo_options import DemoOptions
from select_service.sim.demo.idle_traffic import REQUESTS_PER_S, PatientClient, send_until_cancelled
from select_service.sim.demo.progress_display import ProgressDisplay
from select_service.sim.demo.service_client import CallFailed, ServiceClient
from select_service.sim.demo.service_process import (
    ServiceProcess,
    ServiceProcessFailed,
    choose_port,
    compile_kernels,
)
from select_service.sim.demo.trace_workload import read_trace
from select_service.sim.demo.workload_driver import WorkloadDriver
from select_service.sim.engine.replay_world import RunRecord, StepKind, WorldStep

MODEL_NAME = "demo"
WATCH_S = 0.5
RECENT_CALLS = 500
STATUS_OK, STATUS_FAILED, STATUS_INTERRUPTED = 0, 1, 130


class DemoFailed(Exception):
    """The demo cannot continue; the text has the reason."""


class DemoScene(NamedTuple):
    """Live objects of a demo run."""

    options: DemoOptions
    console: Console
    stages: ProgressDisplay
    workload: ConversationWorkload
    service: ServiceProcess
    client: ServiceClient
    fleet: DemoFleet


def run_demo(options: DemoOptions) -> int:
    """Run the demo on this terminal and return the exit status."""
    console = Console(highlight=False)
    try:
        return asyncio.run(_until_signalled(options, console))
    except (DemoFailed, ServiceProcessFailed, CallFailed, TraceError, OSError) as error:
        console.print(f"[bold red]failed[/]: {escape(str(error))}", soft_wrap=True)
        return STATUS_FAILED


async def _until_signalled(options: DemoOptions, console: Console) -> int:
    """Run the demo; Ctrl-C and SIGTERM cancel the run, so service and sockets are always closed."""
    # A task, so that a signal can cancel the demo and its cleanup still runs.
    demo = asyncio.create_task(_run_steps(options, console))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, demo.cancel)
    try:
        return await demo
    except asyncio.CancelledError:
        console.print("interrupted")
        return STATUS_INTERRUPTED


async def _run_steps(options: DemoOptions, console: Console) -> int:
    stages = ProgressDisplay(console)
    with stages.show_stage("generating the workload"):
        workload = _make_workload(options)
    with stages.show_stage("compiling kernels, if needed") as detail:
        await compile_kernels(lambda line: detail(f"{line} (not again next time)"))
    port = choose_port(options.port)
    shape = FleetShape(
        options.workers, options.ranks, options.blocks, options.block_size, options.seed
    )
    fleet = DemoFleet(shape, options.lose)
    service = ServiceProcess(port)
    client = ServiceClient(service.base_url, MODEL_NAME)
    try:
        return await _run_scene(
            DemoScene(options, console, stages, workload, service, client, fleet)
        )
    finally:
        # The process first: a second Ctrl-C may interrupt the rest, but no service may outlive the
        # demo.
        service.stop()
        await client.close()
        await fleet.close()


def _make_workload(options: DemoOptions) -> ConversationWorkload:
    if options.trace is not None:
        workload = read_trace(options.trace, options.block_size, options.requests, options.speedup)
    else:
        ranks = options.workers * options.ranks
        workload = generate_workload(
            WorkloadShape(options.requests, options.block_size, ranks, options.seed)
        )
    # Such a request would wait forever at the head of its line.
    if workload.places_max > options.blocks:
        raise DemoFailed(
            f"the largest request needs {workload.places_max} blocks, more than the cache of one "
            f"rank: give --blocks {workload.places_max} or more"
        )
    return workload


async def _run_scene(stage: DemoScene) -> int:
    console, stages, shape = stage.console, stage.stages, stage.fleet.shape
    with stages.show_stage("starting the service"):
        await stage.service.wait_until_alive(stage.client)
    console.print(f"live view of the fleet: {stage.service.base_url}/", soft_wrap=True)
    engines = fresh_engines(shape, stage.workload.catalog)
    await stage.fleet.start_apis(MODEL_NAME, engines.caches)
    with stages.show_stage("registering the workers"):
        await stage.fleet.register_workers(stage.client)
    console.print(
        f"service at {stage.service.base_url}, {shape.workers} simulated workers "
        f"x {shape.ranks_per_worker} rank(s), {shape.blocks_per_rank} blocks of "
        f"{shape.block_size} tokens each",
        soft_wrap=True,
    )
    driver = WorkloadDriver(stage.workload, engines, stage.fleet, stage.client)
    with _show_progress(stage, driver.record) as on_step:
        await driver.drive_world(on_step)
    with stages.show_stage("checking the final state"):
        await driver.check_end_state()
    with stages.show_stage("running the same workload under other policies"):
        policy = await stage.client.fetch_policy()
        # Imported now: a first start compiles the kernels of the core faster, in its own processes.
        from select_service.sim.demo.baselines import run_baselines

        # On a thread: the fleet must go on answering replays and HTTP meanwhile.
        others = await asyncio.to_thread(run_baselines, stage.workload, shape, policy)
    report_tables.show_summary(
        console,
        report_tables.comparison_table(stage.workload, {policy: driver.record} | others),
        driver.run,
        stage.fleet,
        report_tables.latency_table(stage.client.latencies_s),
    )
    report_tables.show_decision(console, await stage.client.fetch_instructive_decision())
    return await _report_and_stay_up(stage, engines, driver.run.find_problems())


@contextmanager
def _show_progress(stage: DemoScene, record: RunRecord) -> Iterator[Callable[[WorldStep], None]]:
    """Show the finished requests; yields the callback for every step."""
    requests = stage.workload.requests
    done = cached = prompts = 0
    with stage.stages.show_stage(f"driving {requests} requests") as detail:

        def on_step(step: WorldStep) -> None:
            nonlocal done, cached, prompts
            if step.kind is StepKind.FINISHED:
                history = record.histories[step.number]
                done += 1
                cached += history.cached
                prompts += history.turn.prompt_tokens
                selects = stage.client.latencies_s["select_and_reserve"][-RECENT_CALLS:]
                p50_ms = report_tables.percentile(selects, 50) * 1000
                rate = f"hit rate {cached / prompts:.1%}"
                detail(f"{done} done, {rate}, select p50 {p50_ms:.2f} ms")

        yield on_step


async def _report_and_stay_up(stage: DemoScene, engines: DemoEngines, problems: list[str]) -> int:
    console = stage.console
    for problem in problems:
        console.print(f"[bold red]problem[/]: {escape(problem)}", soft_wrap=True)
    if not problems:
        console.print("[green]every request succeeded, no reservation is left[/]")
    status = STATUS_FAILED if problems else STATUS_OK
    if stage.options.once:
        return status
    _show_examples(stage, engines)
    traffic = asyncio.create_task(_send_idle_traffic(stage, engines))
    try:
        while stage.service.is_running:
            await asyncio.sleep(WATCH_S)
    except asyncio.CancelledError:
        console.print("stopping")
        return status
    finally:
        traffic.cancel()
        # Failures of the traffic do not matter any more.
        await asyncio.gather(traffic, return_exceptions=True)
    raise ServiceProcessFailed(f"the service ended unexpectedly:\n{stage.service.log_tail()}")


async def _send_idle_traffic(stage: DemoScene, engines: DemoEngines) -> None:
    """Send further requests, so that the page shows traffic."""
    client = PatientClient(stage.service.base_url, MODEL_NAME, stage.fleet.shape.workers)
    try:
        await send_until_cancelled(stage.fleet, client, engines)
    finally:
        await client.close()


def _show_examples(stage: DemoScene, engines: DemoEngines) -> None:
    base_url, console = stage.service.base_url, stage.console
    console.print("\nThe service and the fleet stay up until Ctrl-C. Examples:\n")
    pools = [cache.pool for cache in engines.caches]
    known = distinguishing_prompt(pools, stage.workload)
    for example in curl_examples(base_url, MODEL_NAME, known, stage.fleet.rank_names()):
        console.print(f"# {example.caption}", style="dim", soft_wrap=True)
        console.print(example.command, markup=False, soft_wrap=True)
    command = f"{sys.executable} -m select_service"
    console.print(
        "\n# faults of the fleet, including a test prompt through each engine", style="dim"
    )
    console.print(f"{command} doctor --probe --url {base_url}", soft_wrap=True)
    console.print("# reasons of the latest decisions; with an id, all details of one", style="dim")
    console.print(f"{command} explain --url {base_url}", soft_wrap=True)
    console.print("# facts that an engine reports", style="dim")
    console.print(f"{command} inspect {stage.fleet.url_of(1)}", soft_wrap=True)
    console.print(f"\nAbout {REQUESTS_PER_S:g} requests a second continue meanwhile.")
    console.print(f"Live view of the fleet: {base_url}/\nDocumentation of the API: {base_url}/docs")
