"""Parts: what a start takes, what memory a service takes, and how long its kernels are compiled."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial

from scripts.bench import fleet
from scripts.bench.contenders import Contender, Running, both_cpus
from scripts.bench.suite.samples import Measure, Row
from scripts.bench.suite.stages import Places, burst_messages, fill, site
from scripts.bench.suite.work import Run

FIRST = {"token_ids": list(range(64))}
MEMORY_WORKERS = 8
COMPILE_S_MAX = 900
START_GOAL = 2.0
"""CPU at 7be9d33, whose kernels numba loaded, by ours."""


def start(run: Run, _places: Places) -> None:
    """Machine code and byte code are there; two CPUs."""
    measures = (Measure("CPU s"), Measure("wall s"), Measure("resident MB"))
    title = "From the start of the process to the first answered POST /select"
    table = run.table(title, "", measures)
    row = Row("warm start", goal_before=START_GOAL)
    if not run.wants(table, row):
        return
    with both_cpus():
        for _ in range(run.extent.repeats):
            for contender in run.contenders:
                run.sample(table, row, contender.name, partial(_start, contender))


def _start(contender: Contender) -> tuple[tuple[float, ...], None]:
    with Running(contender, pinned=False) as running:
        running.wait_until_healthy()
        running.register(["tcp://127.0.0.1:1"], fleet.BLOCK_SIZE)
        running.call("POST", "/select", FIRST)
        wall = time.perf_counter() - running.started_at
        return (running.cpu_s(), wall, running.resident_mb()), None


def memory(run: Run, _places: Places) -> None:
    """Once each: it hardly moves."""
    messages = burst_messages(run.known, MEMORY_WORKERS)
    n_blocks = sum(holding.depth_blocks for holding in fleet.holdings(MEMORY_WORKERS))
    title = "Resident memory"
    table = run.table(title, "", (Measure("empty, MB"), Measure("full, MB")))
    row = Row(f"{n_blocks} held blocks, {MEMORY_WORKERS} workers")
    if not run.wants(table, row, repeats=1):
        return
    for contender in run.contenders:
        run.sample(table, row, contender.name, partial(_memory, contender, messages))


def _memory(
    contender: Contender, messages: Sequence[tuple[int, bytes]]
) -> tuple[tuple[float, ...], None]:
    with site(contender, MEMORY_WORKERS) as place:
        empty = place.running.resident_mb()
        fill(place, messages)
        return (empty, place.running.resident_mb()), None


def cold(run: Run, _places: Places) -> None:
    """`select-service compile` into an empty folder, once, with as many processes as CPUs."""
    table = run.table("Compiling all kernels", "", (Measure("CPU s"), Measure("wall s")))
    own, row = [each for each in run.contenders if each.is_ours], Row("cold")
    if not run.wants(table, row, own, repeats=1):
        return
    with both_cpus():
        for contender in own:
            run.sample(table, row, contender.name, partial(_compile, contender))


def _compile(contender: Contender) -> tuple[tuple[float, ...], None]:
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
