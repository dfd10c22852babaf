#!/usr/bin/env python3
"""Measures a start, in turns with an older commit, and prints a Markdown table.

    python scripts/bench/start.py [--before COMMIT] [--repeats 11] [--cold]

Warm: from starting the process to the first answered POST /select, with one worker, machine code
and byte code being there: wall time, CPU time of the process until then, its resident memory.
With --cold instead: CPU and wall time of `select-service compile` into an empty directory, with as
many processes as there are CPUs.

Medians.  CPU time is what to compare on a machine with neighbours, and even that grows beside them.
"""

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from contenders import ROOT, Contender, Running, ours, unpacked

FIRST = {"token_ids": list(range(64))}
COLD_S_MAX = 900
COLD_REPEATS = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", metavar="COMMIT")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--cold", action="store_true")
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as it is installed: with byte code
    repeats = given.repeats or (COLD_REPEATS if given.cold else 11)
    with contextlib.ExitStack() as stack:
        contenders = [ours("after", ROOT)]
        if given.before:
            contenders.insert(0, ours("before", stack.enter_context(unpacked(given.before))))
        if given.cold:
            table("cold compile", ("CPU, s", "wall, s"), contenders, cold, repeats)
        else:
            for contender in contenders:
                compiled(contender, os.environ.get("NUMBA_CACHE_DIR"))
                warm(contender)
            heads = ("wall, s", "CPU, s", "resident, MB")
            table("warm start to the first /select", heads, contenders, warm, repeats)


def table(
    title: str,
    heads: Sequence[str],
    contenders: Sequence[Contender],
    measure: Callable[[Contender], Sequence[float]],
    repeats: int,
) -> None:
    found: dict[str, list[Sequence[float]]] = {each.name: [] for each in contenders}
    for _ in range(repeats):
        for contender in contenders:
            found[contender.name].append(measure(contender))
    print(f"| {title} | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for name, rows in found.items():
        cells = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


def warm(contender: Contender) -> tuple[float, float, float]:
    """(seconds to the first answer, seconds of CPU until then, resident MB)"""
    with Running(contender, pinned=False) as running:
        running.wait_until_healthy()
        running.register(["tcp://127.0.0.1:1"], 64)
        running.call("POST", "/select", {"model_name": "default", **FIRST})
        wall = time.perf_counter() - running.started_at
        return wall, running.cpu_s(), running.resident_mb()


def cold(contender: Contender) -> tuple[float, float]:
    """(seconds of CPU of all processes, seconds)"""
    with tempfile.TemporaryDirectory() as folder:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        compiled(contender, folder)
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def compiled(contender: Contender, folder: str | None) -> None:
    where = {} if folder is None else {"NUMBA_CACHE_DIR": folder}
    subprocess.run(
        (sys.executable, "-m", "select_service", "compile"),
        env={**os.environ, "PYTHONPATH": str(contender.tree), **where},
        cwd=contender.tree,
        check=True,
        capture_output=True,
        timeout=COLD_S_MAX,
    )


if __name__ == "__main__":
    main()
