"""Measures this service and others in turns; prints medians and ratios, and writes them to files.

The others are the reference, in an environment from PyPI that is made when it is first asked for,
and any commit or any flags of this service.  Servers are kept on CPU 0, everything that asks or
publishes on CPU 1.  Every cell is measured --repeats times, the services in turn.  CPU is that of
the server's process, all threads, by the scheduler's own clock.  Wall times on a machine with
neighbours move by a factor of two, CPU times by some ten percent: compare within a table only.
Files are written after each part; with --resume a run goes on, after an end in between or part by
part.
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

from scripts.bench.contenders import ROOT, Contender, Running, ours, pin_load, unpacked
from scripts.bench.line_plot import svg
from scripts.bench.suite import curves, events, reference, report, requests, scale, starts
from scripts.bench.suite.earlier import Earlier, OtherRunError, earlier_in
from scripts.bench.suite.machine import Machine, commit, this_machine
from scripts.bench.suite.work import Depth, Extent, Part, Run, work_through

PARTS = (
    Part("select", "CPU and latency of POST /select, by hashes", (8, 256), requests.select),
    Part("tokens", "the same by token_ids", (8,), requests.tokens),
    Part("connections", "the same by connections", (8,), requests.connections),
    Part("events", "CPU per event message at a fixed rate", (8,), events.events),
    Part("mixed", "latency of POST /select under events", (8,), events.mixed),
    Part("visible", "from an event to the answer that shows it", (8,), events.visible, Depth.FULL),
    Part("life", "CPU of reserving, completing and freeing", (8, 256), requests.life),
    Part("burst", "64-block events into an empty index", (), events.burst),
    Part("cores", "POST /select, server and load on two CPUs", (), requests.cores),
    Part("ranks", "POST /select by the ranks of a fleet", (), scale.ranks),
    Part("blocks", "POST /select by the blocks of the index", (), scale.blocks),
    Part("start", "CPU and wall time of a start", (), starts.start),
    Part("memory", "resident memory", (), starts.memory),
    Part("compile", "compiling all kernels of ours", (), starts.cold, Depth.SLOW),
)
OUT = ROOT / "build" / "benchmark"
QUICK_REPEATS, REPEATS = 3, 5
QUICK_CELL_S, CELL_S = 1, 3
REFERENCES = ("1.3.1", "1.6.1")
"""Of which a quick run takes the first."""


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # services end, what is known is kept
    depth = Depth.QUICK if given.quick else Depth.SLOW if given.slow else Depth.FULL
    repeats = given.repeats or (QUICK_REPEATS if given.quick else REPEATS)
    extent = Extent(repeats, given.seconds or (QUICK_CELL_S if given.quick else CELL_S), depth)
    chosen = [
        part
        for part in PARTS
        if part.name in given.parts or (not given.parts and part.depth <= depth)
    ]
    with contextlib.ExitStack() as stack:
        contenders, base = _contenders(given, stack)
        run = Run(contenders, extent, given.rows)
        try:
            earlier = _earlier(run, chosen, given.out) if given.resume else None
        except OtherRunError as error:
            print(error, file=sys.stderr)
            return 1
        _prepare(contenders)
        return _measure(run, chosen, base, given.out, earlier)


def _earlier(run: Run, chosen: Sequence[Part], out: Path) -> Earlier | None:
    """The run that is gone on with, if there is one; what went wrong in parts that are done again
    is forgotten.  Raises OtherRunError."""
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
    """What is measured."""
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
    """Which services are measured."""
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
    """How long it takes, and where results go."""
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
    """A flag that may be repeated."""
    parser.add_argument(flag, metavar=metavar, action="append", default=[], help=text)


def _contenders(
    given: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[list[Contender], str | None]:
    """All of them, ours first; and which one ratios are about."""
    found = [ours(), *(_with_flags(flags) for flags in given.ours)]
    found += [_for_processor(name) for name in given.processor]
    for name in given.before:
        short = commit(name)
        found.append(ours(f"{report.BEFORE} ({short})", stack.enter_context(unpacked(short))))
    if not given.no_reference:
        found += [reference.of_python(python) for python in given.reference_python or ()]
        usual = REFERENCES[:1] if given.quick else REFERENCES
        versions = given.reference or (() if given.reference_python else usual)
        found += [reference.of_version(version) for version in versions]
    others = [each.name for each in found if not each.is_ours] or [
        each.name for each in found if report.is_before(each.name)
    ]
    return found, others[0] if others else None


def _with_flags(flags: str) -> Contender:
    return ours(f"ours {flags}").with_flags(*shlex.split(flags))


def _for_processor(name: str) -> Contender:
    """As a package or an image has it that is not of this machine alone."""
    variables = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}
    return ours(f"ours for {name}").with_variables(**variables)


def _prepare(contenders: Sequence[Contender]) -> None:
    """Machine code and byte code of all are there; the load is where it belongs."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not shutil.which("wrk"):
        print(
            "wrk is not installed: a client in Python asks, whose latencies are its own",
            file=sys.stderr,
        )
    for contender in contenders:
        with Running(contender, pinned=False) as running:
            running.wait_until_healthy()
    pin_load()


def _measure(
    run: Run, chosen: Sequence[Part], base: str | None, out: Path, earlier: Earlier | None
) -> int:
    begun, machine = time.monotonic(), this_machine()
    began_at, wall_s = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC", 0.0
    if earlier is not None:
        began_at, wall_s = earlier.begun, earlier.wall_s

    def found() -> report.Found:
        return _found(run, base, machine, began_at, wall_s + time.monotonic() - begun)

    try:
        work_through(run, chosen, lambda: _write(found(), out))
    finally:
        _write(found(), out)
        print(report.markdown(found()))
    return 1 if run.problems else 0


def _found(run: Run, base: str | None, machine: Machine, begun: str, wall_s: float) -> report.Found:
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    command = shlex.join(["scripts/benchmark", *words])  # without paths of this machine
    names = [contender.name for contender in run.contenders]
    own = [contender.name for contender in run.contenders if contender.is_ours]
    tables = [table for table in run.tables.values() if table.rows]
    problems, cell_s = run.problems, run.extent.cell_s
    return report.Found(machine, command, begun, wall_s, names, own, base, tables, problems, cell_s)


def _write(found: report.Found, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.md").write_text(report.markdown(found))
    (out / "result.json").write_text(json.dumps(report.document(found), indent=1) + "\n")
    panels = curves.panels(found.tables, found.contenders)
    if panels:
        (out / "curves.svg").write_text(svg(panels))


if __name__ == "__main__":
    sys.exit(main())
