"""Fuzzing of every parser, guided by coverage.

    scripts/fuzz --list                            lists the targets
    scripts/fuzz NAME|all [--runs N] [--seconds S] [--folder FOLDER]
    scripts/fuzz --keep [--folder FOLDER]          makes tests/fastpath/corpus.txt of few requests

Each target takes bytes and fails for an exception that the parser does not promise, or for two
readers that disagree. The search is guided by the coverage of the parser's Python code, or of the
machine code of compiled readers with checked array bounds. Without --runs and --seconds a target
gets 60 seconds; `all` runs the targets in turn and prints a table. Inputs with new coverage remain
in the folder, which has a folder per target. An input that fails ends its target, remains there as
`wrong-...`, and makes the exit status 1. Needs atheris (requirements/fuzz.lock): Linux, Python 3.11
to 3.13.
"""

import argparse
import contextlib
import hashlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.fastpath.mutations import PIECES
from tests.fuzzing.fuzz_targets import TARGETS, FuzzTarget

INPUT_BYTES_MAX = 4096
SECONDS, INPUT_S_MAX, MEMORY_MB_MAX = 60, 20, 4096
SHOWN_LINES = 40
FOLDER = Path("fuzz-found")
ROOT = Path(__file__).resolve().parents[2]


class FuzzResult(NamedTuple):
    """Result of one target.

    fault: last lines of the output after a fault; None means no fault
    """

    runs: int
    seconds: float
    reached: int
    fault: str | None


def fuzz_inside(target: FuzzTarget, seeds_folder: Path, options: list[str]) -> None:
    """Fuzz in this process without returning."""
    import atheris
    from atheris import core_with_libfuzzer, instrument_imports

    from tests.fuzzing.kernel_counters import KernelCounters

    with KernelCounters(target.kernels) as counters:
        no_kernels = {"include": list(target.parsers), "exclude": kernel_modules()}
        with instrument_imports(**no_kernels) if target.parsers else contextlib.nullcontext():
            check, seeds = target.load()
        check(seeds[0])
    atheris.Setup([sys.argv[0], *options], check, enable_python_coverage=bool(target.parsers))
    counters.register_at_libfuzzer(core_with_libfuzzer.__file__)
    for data in seeds:
        (seeds_folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    atheris.Fuzz()


def kernel_modules() -> list[str]:
    """Return the modules with kernels, which numba cannot compile with instrumented code."""
    return [
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
        for package in ("indexer", "select_service")
        for path in (ROOT / package).rglob("*.py")
        if "indexer.jit" in path.read_text()
    ]


def write_words(folder: Path) -> Path:
    """Write pieces of the formats as a libFuzzer dictionary, and return its path."""
    path = folder / "words"
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in PIECES)
    path.write_text("".join(f'"{word}"\n' for word in escaped))
    return path


def fuzz_target(name: str, given: argparse.Namespace) -> FuzzResult:
    """Fuzz one target in a separate process."""
    found = given.folder / name
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz") as temporary:
        work = Path(temporary)
        (work / "seeds").mkdir()
        options = [f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1", "-verbosity=1"]
        options += [f"-timeout={INPUT_S_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}"]
        options += [f"-dict={write_words(work)}", f"-artifact_prefix={found}/wrong-"]
        options += [] if given.runs is None else [f"-runs={given.runs}"]
        options += [] if given.seconds is None else [f"-max_total_time={given.seconds}"]
        options += [str(found), str(work / "seeds")]
        command = [sys.executable, "-m", "tests.fuzzing", "--inside", name, "--seeds"]
        command += [str(work / "seeds"), "--", *options]
        begin = time.monotonic()
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    text = done.stdout.decode(errors="replace")
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    reached = re.findall(r"\bcov: (\d+)", text)
    fault = None if done.returncode == 0 else "\n".join(text.splitlines()[-SHOWN_LINES:])
    return FuzzResult(
        int(runs[1]) if runs else 0,
        time.monotonic() - begin,
        int(reached[-1]) if reached else 0,
        fault,
    )


def fuzz_all(names: Iterable[str], given: argparse.Namespace) -> int:
    """Fuzz targets in turn, print a row for each, and return the exit status."""
    status = 0
    print(f"{'target':16}{'runs':>12}{'seconds':>9}{'places':>8}  result", flush=True)
    for name in names:
        result = fuzz_target(name, given)
        shown = "no fault" if result.fault is None else f"fault, see {given.folder / name}"
        print(
            f"{name:16}{result.runs:12,}{result.seconds:9.0f}{result.reached:8}  {shown}",
            flush=True,
        )
        if result.fault is not None:
            print(result.fault, flush=True)
            status = 1
    return status


def keep_requests(folder: Path) -> int:
    """Write the fast path's corpus: the fewest requests that reach all blocks reached so far."""
    from tests.fastpath.corpus import CORPUS, load, save
    from tests.fuzzing.kernel_counters import KernelCounters

    with KernelCounters(TARGETS["requests"].kernels) as counters:
        check, seeds = TARGETS["requests"].load()
        check(seeds[0])
    inputs = [path.read_bytes() for path in (folder / "requests").iterdir()]
    seen, kept = set[tuple[int, int]](), list[bytes]()
    for data in sorted([*load(), *inputs], key=len):
        reached = counters.reached_by(check, data)
        if reached - seen:
            seen |= reached
            kept.append(data)
    save(kept)
    print(f"{CORPUS}: {len(load())} inputs, {CORPUS.stat().st_size} bytes")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("target", nargs="?", choices=[*TARGETS, "all"], metavar="NAME")
    made.add_argument("--list", action="store_true", help="print the targets")
    made.add_argument("--keep", action="store_true", help="make the corpus of requests")
    made.add_argument("--runs", type=int, help="inputs per target")
    made.add_argument("--seconds", type=int, help=f"time per target (default {SECONDS})")
    made.add_argument("--folder", type=Path, default=FOLDER, help=f"default {FOLDER}")
    made.add_argument("--inside", choices=list(TARGETS), help=argparse.SUPPRESS)
    made.add_argument("--seeds", type=Path, help=argparse.SUPPRESS)
    return made


def main() -> int:
    words = sys.argv[1:]
    options = words[words.index("--") + 1 :] if "--" in words else []
    given = parser().parse_args(words[: words.index("--")] if "--" in words else words)
    if given.inside is not None:
        fuzz_inside(TARGETS[given.inside], given.seeds, options)
    if given.list:
        for name, target in TARGETS.items():
            print(f"{name:16}{target.about}")
        return 0
    if given.keep:
        return keep_requests(given.folder)
    if given.target is None:
        parser().error("the name of a target is missing: give one of --list, or all")
    if given.runs is None and given.seconds is None:
        given.seconds = SECONDS
    names = list(TARGETS) if given.target == "all" else [given.target]
    return fuzz_all(names, given)


if __name__ == "__main__":
    sys.exit(main())
