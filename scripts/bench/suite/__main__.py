"""Measures this service and others in turns; prints and writes medians and ratios.

The others are the reference, in an environment from PyPI that is made at first use, and any commit
or flags of this service. Servers run on CPU 0; all clients and publishers run on CPU 1. Every cell
is measured --repeats times, the services in turn. CPU is that of the server's process with all
threads, by the scheduler's clock. On a shared machine wall times vary by a factor of two, CPU times
by some ten percent: compare only within a table. Files are written after each part; --resume
continues a run after an interruption, or part by part.
"""

import argparse
import contextlib
import datetime
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.line_plot import render_svg
from scripts.bench.services_under_test import (
    ROOT,
    RunningService,
    ServiceUnderTest,
    own_service,
    pin_load,
    unpack_commit,
)
from scripts.bench.suite import (
    benchmark_report,
    curve_panels,
    event_parts,
    floor_parts,
    reference_environment,
    request_parts,
    scale_parts,
    start_parts,
)
from scripts.bench.suite.earlier_run import Earlier, OtherRunError, earlier_in
from scripts.bench.suite.machine_facts import MachineFacts, commit, this_machine
from scripts.bench.suite.measurement_order import (
    MeasurementExtent,
    RowDepth,
    SuitePart,
    SuiteRun,
    execute_parts,
)

PARTS = (
    SuitePart(
        "select", "CPU and latency of POST /select, by hashes", (8, 256), request_parts.select
    ),
    SuitePart("floor", "the same beside a C server that only answers", (8,), floor_parts.floor),
    SuitePart("tokens", "the same by token_ids", (8,), request_parts.tokens),
    SuitePart("connections", "the same by connections", (8,), request_parts.connections),
    SuitePart("events", "CPU per event message at a fixed rate", (8,), event_parts.events),
    SuitePart("mixed", "latency of POST /select under events", (8,), event_parts.mixed),
    SuitePart(
        "visible",
        "from an event to the answer that shows it",
        (8,),
        event_parts.visible,
        RowDepth.FULL,
    ),
    SuitePart("life", "CPU of reserving, completing and freeing", (8, 256), request_parts.life),
    SuitePart("burst", "64-block events into an empty index", (), event_parts.burst),
    SuitePart("cores", "POST /select, server and load on two CPUs", (), request_parts.cores),
    SuitePart("ranks", "POST /select by the ranks of a fleet", (), scale_parts.ranks),
    SuitePart("blocks", "POST /select by the blocks of the index", (), scale_parts.blocks),
    SuitePart("start", "CPU and wall time of a start", (), start_parts.start),
    SuitePart("memory", "resident memory", (), start_parts.memory),
    SuitePart("compile", "compiling all kernels of ours", (), start_parts.cold, RowDepth.SLOW),
)
OUT = ROOT / "build" / "benchmark"
QUICK_REPEATS, REPEATS = 3, 5
QUICK_CELL_S, CELL_S = 1, 3
REFERENCES = ("1.3.1", "1.6.1")
"""Versions of the reference; a quick run uses the first."""


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # services end, results are kept
    depth = RowDepth.QUICK if given.quick else RowDepth.SLOW if given.slow else RowDepth.FULL
    repeats = given.repeats or (QUICK_REPEATS if given.quick else REPEATS)
    extent = MeasurementExtent(
        repeats, given.seconds or (QUICK_CELL_S if given.quick else CELL_S), depth
    )
    chosen = [
        part
        for part in PARTS
        if part.name in given.parts or (not given.parts and part.depth <= depth)
    ]
    with contextlib.ExitStack() as stack:
        contenders, base = _contenders(given, stack)
        run = SuiteRun(contenders, extent, given.rows)
        try:
            earlier = _earlier(run, chosen, given.out) if given.resume else None
        except OtherRunError as error:
            print(error, file=sys.stderr)
            return 1
        _prepare(contenders)
        return _measure(run, chosen, base, given.out, earlier)


def _earlier(run: SuiteRun, chosen: Sequence[SuitePart], out: Path) -> Earlier | None:
    """Return the run to continue, if any; failures of repeated parts are dropped.

    Raises OtherRunError.
    """
    names = [contender.name for contender in run.contenders]
    earlier = earlier_in(out, commit(), names, run.extent.cell_s)
    if earlier is not None:
        again = tuple(f"{part.name}: " for part in chosen)
        run.go_on(earlier.tables, [each for each in earlier.problems if not each.startswith(again)])
    return earlier


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parts = "\n".join(f"  {part.name:12} {part.what}" for part in PARTS)
    parser = argparse.ArgumentParser(
        prog="scripts/benchmark",
        description=__doc__,
        epilog=f"parts:\n{parts}\n\nFiles: result.md, result.json and curves.svg in --out.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(parser)
    _add_contenders(parser)
    _add_how(parser)
    given = parser.parse_args()
    if unknown := set(given.parts) - {part.name for part in PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("needs two CPUs: one for the service, one for what asks it")
    return given


def _add_what(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the parts."""
    parser.add_argument("parts", nargs="*", metavar="part", help="all without any; see below")
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="under four minutes, two services")
    depth.add_argument("--slow", action="store_true", help="also ten million blocks, and compiling")
    _add_texts(
        parser,
        "--rows",
        "TEXT",
        'only rows with this in their names, as "512 hashes"; may be repeated',
    )


def _add_contenders(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the services."""
    parser.add_argument(
        "--reference",
        metavar="VERSION",
        action="append",
        help="of ai-dynamo-runtime, from PyPI; may be repeated"
        f" ({' and '.join(REFERENCES)}, quick {REFERENCES[0]})",
    )
    parser.add_argument(
        "--reference-python",
        metavar="PATH",
        action="append",
        help="instead: the Python of an environment that has it",
    )
    parser.add_argument("--no-reference", action="store_true")
    ours = 'this service once more, as --ours="--threads 1"; may be repeated'
    _add_texts(parser, "--ours", "FLAGS", ours)
    _add_texts(parser, "--before", "COMMIT", "this service as it was; may be repeated")
    processor = "this service with machine code for it, as x86-64-v3 or generic; may be repeated"
    _add_texts(parser, "--processor", "NAME", processor)


def _add_how(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for duration and output."""
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep what is complete in the files of --out, of the same commit and services",
    )
    parser.add_argument(
        "--repeats", type=int, help=f"of every cell ({REPEATS}, quick {QUICK_REPEATS})"
    )
    parser.add_argument("--seconds", type=int, help=f"of a load ({CELL_S}, quick {QUICK_CELL_S})")
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder for the files (build/benchmark here)"
    )


def _add_texts(parser: argparse.ArgumentParser, flag: str, metavar: str, text: str) -> None:
    """Add a repeatable flag."""
    parser.add_argument(flag, metavar=metavar, action="append", default=[], help=text)


def _contenders(
    given: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[list[ServiceUnderTest], str | None]:
    """Return all services, this one first, and the base of the ratios."""
    found = [own_service(), *(_with_flags(flags) for flags in given.ours)]
    found += [_for_processor(name) for name in given.processor]
    for name in given.before:
        short = commit(name)
        found.append(
            own_service(
                f"{benchmark_report.BEFORE} ({short})", stack.enter_context(unpack_commit(short))
            )
        )
    if not given.no_reference:
        found += [
            reference_environment.of_python(python) for python in given.reference_python or ()
        ]
        usual = REFERENCES[:1] if given.quick else REFERENCES
        versions = given.reference or (() if given.reference_python else usual)
        found += [reference_environment.of_version(version) for version in versions]
    others = [each.name for each in found if not each.is_ours] or [
        each.name for each in found if benchmark_report.is_before(each.name)
    ]
    return found, others[0] if others else None


def _with_flags(flags: str) -> ServiceUnderTest:
    return own_service(f"ours {flags}").with_flags(*shlex.split(flags))


def _for_processor(name: str) -> ServiceUnderTest:
    """Set the processor of the machine code, as in a package or an image."""
    variables = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}
    return own_service(f"ours for {name}").with_variables(**variables)


def _prepare(contenders: Sequence[ServiceUnderTest]) -> None:
    """Compile machine code and byte code of all services, and pin the load."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not shutil.which("wrk"):
        print(
            "wrk is not installed: a client in Python asks, whose latencies are its own",
            file=sys.stderr,
        )
    for contender in contenders:
        with RunningService(contender, pinned=False) as running:
            running.wait_until_healthy()
    pin_load()


def _measure(
    run: SuiteRun, chosen: Sequence[SuitePart], base: str | None, out: Path, earlier: Earlier | None
) -> int:
    begun, machine = time.monotonic(), this_machine()
    began_at, wall_s = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC", 0.0
    if earlier is not None:
        began_at, wall_s = earlier.begun, earlier.wall_s

    def describe_run() -> benchmark_report.BenchmarkRun:
        return _describe_run(run, base, machine, began_at, wall_s + time.monotonic() - begun)

    try:
        execute_parts(run, chosen, lambda: _write(describe_run(), out))
    finally:
        _write(describe_run(), out)
        print(benchmark_report.render_markdown(describe_run()))
    return 1 if run.problems else 0


def _describe_run(
    run: SuiteRun, base: str | None, machine: MachineFacts, begun: str, wall_s: float
) -> benchmark_report.BenchmarkRun:
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    command = shlex.join(["scripts/benchmark", *words])  # without paths of this machine
    names = [contender.name for contender in run.contenders]
    own = [contender.name for contender in run.contenders if contender.is_ours]
    tables = [table for table in run.tables.values() if table.rows]
    problems, cell_s = run.problems, run.extent.cell_s
    return benchmark_report.BenchmarkRun(
        machine, command, begun, wall_s, names, own, base, tables, problems, cell_s
    )


def _write(found: benchmark_report.BenchmarkRun, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.md").write_text(benchmark_report.render_markdown(found))
    (out / "result.json").write_text(
        json.dumps(benchmark_report.render_document(found), indent=1) + "\n"
    )
    panels = curve_panels.panels(found.tables, found.contenders)
    if panels:
        (out / "curves.svg").write_text(render_svg(panels))


if __name__ == "__main__":
    sys.exit(main())
