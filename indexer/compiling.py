"""Compiles what is missing of the machine code, in several processes, and tells how far it is.

The processes are `python -m indexer.compiling MODULE ...`: importing a module compiles its kernels
and leaves them in the cache.  Modules that import each other are compiled by one process, because
it makes the code of both.  The caller itself compiles nothing and so stays responsive to signals.
"""

import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from indexer import kernel_cache
from indexer.kernel_sources import closure, kernel_modules, size_of

PROCESSES_MAX = 4
"""The largest module takes half of the work, more than these would wait for it."""
COLLECTED_AFTER = 100_000
"""Objects between two looks for garbage, where Python's 700 cost a twelfth of all compiling."""
END_S = 5.0
"""How long an ended process may take to be gone."""

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
    with _processes(_shares(modules)) as (reader, processes):
        for ready, _ in enumerate(reader, 1):
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


def _shares(modules: list[str]) -> list[list[str]]:
    """The modules of every process, of about equal size."""
    n_processes = min(PROCESSES_MAX, len(os.sched_getaffinity(0)))
    shares: list[list[str]] = [[] for _ in range(n_processes)]
    for group in sorted(_groups(modules), key=_size, reverse=True):
        min(shares, key=_size).extend(group)
    return [share for share in shares if share]


def _groups(modules: list[str]) -> list[list[str]]:
    """Modules that import each other, directly or not, are in one group."""
    groups: list[list[str]] = []
    for module in modules:
        near = [g for g in groups if any(m in closure(module) or module in closure(m) for m in g)]
        groups = [group for group in groups if group not in near]
        groups.append([module, *(each for group in near for each in group)])
    return groups


def _size(modules: list[str]) -> int:
    return sum(map(size_of, modules))


@contextmanager
def _processes(
    shares: list[list[str]],
) -> Iterator[tuple[Iterator[str], list["subprocess.Popen[str]"]]]:
    """(lines of all processes, one per kernel that is ready; the processes).

    They ignore a Ctrl-C, which is meant for us, and end with the block.
    """
    out, into = os.pipe()
    try:
        for share in shares:
            command = [sys.executable, "-m", "indexer.compiling", *share]
            _running.append(
                subprocess.Popen(command, stdout=into, text=True, start_new_session=True)
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
                process.wait(END_S)
                _running.remove(process)


def main() -> None:
    """One of the processes: import the modules that are named, a line for each of their kernels."""
    modules = sys.argv[1:]

    def tell(kernel: str) -> None:
        if kernel.rpartition(".")[0] in modules:  # others are there already
            print(kernel, flush=True)

    gc.set_threshold(COLLECTED_AFTER)
    kernel_cache.watch(tell)
    for module in modules:
        importlib.import_module(module)
        kernel_cache.mark_complete(module)


if __name__ == "__main__":
    main()
