"""Parts of starts: cost of a start, memory of a service, and compilation of its kernels."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial

from scripts.bench import conversation_data
from scripts.bench.services_under_test import RunningService, ServiceUnderTest, using_both_cpus
from scripts.bench.suite.filled_services import (
    PartServices,
    burst_messages,
    fill_index,
    started_service,
)
from scripts.bench.suite.measurement_order import SuiteRun
from scripts.bench.suite.result_tables import ResultColumn, ResultRow

FIRST = {"token_ids": list(range(64))}
MEMORY_WORKERS = 8
COMPILE_S_MAX = 900
START_GOAL = 2.0
"""Ratio of CPU at 7be9d33, where numba loaded the kernels, to this version."""


def start(run: SuiteRun, _places: PartServices) -> None:
    """Measure starts with cached machine code and byte code, on two CPUs."""
    measures = (ResultColumn("CPU s"), ResultColumn("wall s"), ResultColumn("resident MB"))
    title = "From the start of the process to the first answered POST /select"
    table = run.table(title, "", measures)
    row = ResultRow("warm start", goal_before=START_GOAL)
    if not run.wants(table, row):
        return
    with using_both_cpus():
        for _ in range(run.extent.repeats):
            for contender in run.contenders:
                run.sample(table, row, contender.name, partial(_start, contender))


def _start(contender: ServiceUnderTest) -> tuple[tuple[float, ...], None]:
    with RunningService(contender, pinned=False) as running:
        running.wait_until_healthy()
        running.register_workers(["tcp://127.0.0.1:1"], conversation_data.BLOCK_SIZE)
        running.call_json("POST", "/select", FIRST)
        wall = time.perf_counter() - running.started_at
        return (running.cpu_s(), wall, running.resident_mb()), None


def memory(run: SuiteRun, _places: PartServices) -> None:
    """Measure memory once each, because it hardly varies."""
    messages = burst_messages(run.known, MEMORY_WORKERS)
    n_blocks = sum(
        holding.depth_blocks for holding in conversation_data.make_holdings(MEMORY_WORKERS)
    )
    title = "Resident memory"
    table = run.table(title, "", (ResultColumn("empty, MB"), ResultColumn("full, MB")))
    row = ResultRow(f"{n_blocks} held blocks, {MEMORY_WORKERS} workers")
    if not run.wants(table, row, repeats=1):
        return
    for contender in run.contenders:
        run.sample(table, row, contender.name, partial(_memory, contender, messages))


def _memory(
    contender: ServiceUnderTest, messages: Sequence[tuple[int, bytes]]
) -> tuple[tuple[float, ...], None]:
    with started_service(contender, MEMORY_WORKERS) as place:
        empty = place.running.resident_mb()
        fill_index(place, messages)
        return (empty, place.running.resident_mb()), None


def cold(run: SuiteRun, _places: PartServices) -> None:
    """Run `select-service compile` into an empty folder once, with one process per CPU."""
    table = run.table("Compiling all kernels", "", (ResultColumn("CPU s"), ResultColumn("wall s")))
    own, row = [each for each in run.contenders if each.is_ours], ResultRow("cold")
    if not run.wants(table, row, own, repeats=1):
        return
    with using_both_cpus():
        for contender in own:
            run.sample(table, row, contender.name, partial(_compile, contender))


def _compile(contender: ServiceUnderTest) -> tuple[tuple[float, ...], None]:
    with tempfile.TemporaryDirectory() as folder:
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            (sys.executable, "-m", "select_service", "compile"),
            env={**os.environ, "PYTHONPATH": str(contender.tree), "NUMBA_CACHE_DIR": folder},
            cwd=contender.tree,
            check=True,
            capture_output=True,
            timeout=COMPILE_S_MAX,
        )
        wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return (cpu, wall), None
