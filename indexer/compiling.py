"""Compiles what is missing of the machine code, in several processes, and tells how far it is.

The processes are `python -m indexer.compiling NUMBER`.  Each is handed one module after the other,
compiles the kernels of that module alone and leaves them in the cache.  The caller itself compiles
nothing and so stays responsive to signals.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from indexer import compiled, kernel_baseline, kernel_cache
from indexer.kernel_sources import PACKAGES, kernel_modules, size_of

PROCESSES_MAX = 4
"""The largest modules take a fifth of the work each, more than these would wait for them."""
COLLECTED_AFTER = 100_000
"""Objects between two looks for garbage, where Python's 700 cost a twelfth of all compiling."""
END_S = 5.0
"""How long an ended process may take to be gone."""

_MORE = "more"

_running: list["subprocess.Popen[str]"] = []


def compile_missing(progress: Callable[[int, int], None], without: tuple[str, ...] = ()) -> int:
    """Compile every module whose code is not all there; returns how many kernels they have.

    progress: called with (kernels ready, kernels in all), first with 0 and not when all is there.
    without: packages whose kernels nobody needs
    Raises CompileError.
    """
    modules = kernel_cache.incomplete(without)
    count = sum(kernel_modules()[module] for module in modules)
    if not modules:
        return 0
    progress(0, count)
    work, ready = Work(modules), 0
    with _processes(_n_processes(modules)) as (reader, processes):
        for line in reader:
            number, _, is_asked = line.strip().partition(" ")
            if is_asked:
                work.hand_out(int(number), processes[int(number)])
            else:
                ready += 1
                progress(ready, count)
        failed = [process for process in processes if process.wait()]
        if failed:
            raise CompileError("a process that compiles kernels failed; its error stands above")
    kernel_cache.directory_of.cache_clear()
    return count


class CompileError(Exception):
    """What could not be compiled, in one line."""


def stop() -> None:
    """End the processes at once.  May be called on any thread."""
    for process in _running:
        process.kill()


def _n_processes(modules: list[str]) -> int:
    return min(PROCESSES_MAX, len(os.sched_getaffinity(0)), len(modules))


class Work:
    """The modules that wait for a process: one list with a process or more at either end.

    Neighbours in it have helpers in common, which a process translates once: modules of a package,
    those that import few others first.
    """

    def __init__(self, modules: list[str]) -> None:
        self._waiting = sorted(
            modules, key=lambda m: (PACKAGES.index(m.partition(".")[0]), size_of(m))
        )

    def hand_out(self, number: int, process: "subprocess.Popen[str]") -> None:
        """The next module for process `number`, or the end of its work."""
        assert process.stdin is not None
        if not self._waiting:
            _close(process)
            return
        with suppress(BrokenPipeError):  # it has failed, which its end tells
            process.stdin.write(self._waiting.pop(0 if number % 2 else -1) + "\n")
            process.stdin.flush()


def _close(process: "subprocess.Popen[str]") -> None:
    """It gets no more work.  May be called again."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended
        process.stdin.close()


@contextmanager
def _processes(n: int) -> Iterator[tuple[Iterator[str], list["subprocess.Popen[str]"]]]:
    """(lines of all processes, see `main`; the processes).

    They ignore a Ctrl-C, which is meant for us, and end with the block.
    """
    out, into = os.pipe()
    try:
        for number in range(n):
            command = [sys.executable, "-m", "indexer.compiling", str(number)]
            _running.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=into,
                    text=True,
                    start_new_session=True,
                )
            )
    finally:
        os.close(into)
    processes = list(_running)
    with os.fdopen(out) as reader:
        try:
            yield reader, processes
        finally:
            stop()
            for process in processes:
                _close(process)
                process.wait(END_S)
                _running.remove(process)


def main() -> None:
    """One of the processes: compile the modules that are named on standard input.

    Tells of each kernel that is ready in a line, and asks for a module with a line "NUMBER more",
    its own number.
    """
    gc.set_threshold(COLLECTED_AFTER)
    kernel_baseline.ignore()
    kernel_cache.watch(_tell)
    compiled.put_off()
    more = f"{sys.argv[1]} {_MORE}"
    _tell(more)
    for line in sys.stdin:
        module = line.strip()
        compiled.compile_put_off(module)
        kernel_cache.mark_complete(module)
        _tell(more)


def _tell(text: str) -> None:
    """One write for the whole line: others write into the same pipe."""
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    main()
