"""Parallel compilation of missing machine code, with progress reports.

The worker processes are `python -m indexer.jit.parallel_compile NUMBER`.  Each receives module
names in turn, compiles the kernels of that module alone and stores them in the cache.  The calling
process compiles nothing and so stays responsive to signals.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from indexer.jit import decorators, kernel_cache, wheel_code
from indexer.jit.kernel_sources import PACKAGES, kernel_modules, kernel_source_bytes

PROCESSES_MAX = 4
"""Limit of processes; more would wait for the largest modules, a fifth of the work each."""
GC_THRESHOLD = 100_000
"""Allocations between garbage collections; Python's 700 cost a twelfth of the compile time."""
KILL_WAIT_S = 5.0
"""Time limit for a killed process to disappear, in seconds."""

_MORE = "more"

_workers: list["subprocess.Popen[str]"] = []


def compile_missing(progress: Callable[[int, int], None], excluded: tuple[str, ...] = ()) -> int:
    """Compile every module with incomplete machine code; return the number of kernels.

    progress: called with (kernels ready, kernels in all), first with 0; not called if none is
    missing
    excluded:  packages of kernels that are not needed
    Raises CompileError.
    """
    modules = kernel_cache.incomplete_modules(excluded)
    count = sum(kernel_modules()[module] for module in modules)
    if not modules:
        return 0
    progress(0, count)
    work, ready = CompileQueue(modules), 0
    with _started_workers(_worker_count(modules)) as (reader, processes):
        for line in reader:
            number, _, is_asked = line.strip().partition(" ")
            if is_asked:
                work.send_next(int(number), processes[int(number)])
            else:
                ready += 1
                progress(ready, count)
        failed = [process for process in processes if process.wait()]
        if failed:
            raise CompileError("a compiler process failed; see its error above")
    kernel_cache.directory_of.cache_clear()
    return count


class CompileError(Exception):
    """Error of a failed compilation, in one line."""


def kill_workers() -> None:
    """Kill the worker processes at once.  Thread-safe."""
    for process in _workers:
        process.kill()


def _worker_count(modules: list[str]) -> int:
    return min(PROCESSES_MAX, len(os.sched_getaffinity(0)), len(modules))


class CompileQueue:
    """List of modules to compile, with workers taking from either end.

    Neighbours share helpers, which a process translates once: the order is by package, then by the
    size of the imported kernels.
    """

    def __init__(self, modules: list[str]) -> None:
        self._modules = sorted(
            modules, key=lambda m: (PACKAGES.index(m.partition(".")[0]), kernel_source_bytes(m))
        )

    def send_next(self, number: int, process: "subprocess.Popen[str]") -> None:
        """Send the next module to process `number`, or close its input if no module is left."""
        assert process.stdin is not None
        if not self._modules:
            _close_input(process)
            return
        with suppress(BrokenPipeError):  # the end of a failed process is reported below
            process.stdin.write(self._modules.pop(0 if number % 2 else -1) + "\n")
            process.stdin.flush()


def _close_input(process: "subprocess.Popen[str]") -> None:
    """Close the input of a process, which ends after the current module.  Idempotent."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the process has ended already
        process.stdin.close()


@contextmanager
def _started_workers(n: int) -> Iterator[tuple[Iterator[str], list["subprocess.Popen[str]"]]]:
    """Start the worker processes and yield (lines of all processes, see `main`; the processes).

    The processes ignore a Ctrl-C, which is meant for the parent, and end with the block.
    """
    out, into = os.pipe()
    try:
        for number in range(n):
            command = [sys.executable, "-m", "indexer.jit.parallel_compile", str(number)]
            _workers.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=into,
                    text=True,
                    start_new_session=True,
                )
            )
    finally:
        # The reader sees the end of file only after every copy of the write end is closed.
        os.close(into)
    processes = list(_workers)
    with os.fdopen(out) as reader:
        try:
            yield reader, processes
        finally:
            kill_workers()
            for process in processes:
                _close_input(process)
                process.wait(KILL_WAIT_S)
                _workers.remove(process)


def main() -> None:
    """Run a worker process: compile the modules named on standard input.

    Prints a line for each finished kernel; a line "NUMBER more" (its own number) requests a module.
    """
    # LLVM and numba allocate many objects that live on; frequent collections find no garbage.
    gc.set_threshold(GC_THRESHOLD)
    wheel_code.ignore_wheel_code()
    kernel_cache.add_watcher(_print_line)
    decorators.defer_compilation()
    more = f"{sys.argv[1]} {_MORE}"
    _print_line(more)
    for line in sys.stdin:
        module = line.strip()
        decorators.compile_deferred(module)
        kernel_cache.mark_complete(module)
        _print_line(more)


def _print_line(text: str) -> None:
    """Print a line in a single write, because other processes write to the same pipe."""
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    main()
