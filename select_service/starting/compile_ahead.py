"""Compiling kernels ahead of their first use: by the command, or by a start that lacks them."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from select_service.starting.signals import before_end

LOOPS = "select_service.loops"
REPLAYING = "select_service.replaying"
STAGES = 4
"""Lines that tell of the progress where there is no terminal."""

log = logging.getLogger("select_service")


def compile_command(argv: Sequence[str]) -> int:
    """`select-service compile`.  Exit status: 0 all kernels are ready, 1 they are not."""
    parser = argparse.ArgumentParser(
        prog="select-service compile",
        description="Compile all kernels now, so that no start has to; when all are there, this "
        "takes a second. The code fits these sources, this Python and this model of processor; "
        "with NUMBA_CPU_NAME=generic, here and at the start, any processor of this architecture.",
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="where to keep the machine code; a start finds it there when NUMBA_CACHE_DIR=DIR. "
        "Default: NUMBA_CACHE_DIR, else where a start of this user looks by itself",
    )
    parser.add_argument(
        "--input-loops",
        action="store_true",
        help="also what a start with --input-loops needs",
    )
    arguments = parser.parse_args(argv)
    given = arguments.cache
    if given is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(Path(given).absolute())
    from indexer import compiling, kernel_cache  # only now: numba reads the variable once

    root = kernel_cache.root()
    if root is None or (given is not None and root != Path(given).absolute()):
        where = given or os.environ.get("NUMBA_CACHE_DIR") or "any of the usual places"
        print(f"select-service: error: cannot write machine code to {where}", file=sys.stderr)
        return 1
    before_end(compiling.stop)
    try:
        count = compiling.compile_missing(
            _progress(lambda text: print(text, file=sys.stderr)),
            () if arguments.input_loops else (LOOPS,),
        )
    except compiling.CompileError as error:
        print(f"select-service: error: {error}", file=sys.stderr)
        return 1
    print(f"{f'{count} kernels compiled' if count else 'all kernels were there'}: {root}")
    return 0


def compile_before_start(*, has_loops: bool) -> None:
    """Compile what a start lacks, and tell an operator where the code cannot stay.

    has_loops: does it have input loops?
    What cannot be compiled here is compiled, or fails, when it is imported.
    """
    from indexer import compiling, kernel_cache

    root, given = kernel_cache.root(), os.environ.get("NUMBA_CACHE_DIR")
    before_end(compiling.stop)
    try:
        compiling.compile_missing(_progress(log.info), _left_out(has_loops=has_loops))
    except compiling.CompileError as error:
        log.error("kernels could not be compiled ahead", extra={"fields": {"error": str(error)}})
    advice = "`select-service compile --cache DIR`, then starting with NUMBA_CACHE_DIR=DIR, helps"
    if root is None:
        log.warning(f"compiling kernels, a minute at every start: nowhere to keep them; {advice}")
    elif root == kernel_cache.private_root():
        log.warning(f"kernels are kept in the temporary directory {root}; {advice}")
    elif given and root != Path(given):
        fields = {"given": given, "instead": str(root)}
        log.warning("NUMBA_CACHE_DIR cannot be written to", extra={"fields": fields})


def _left_out(*, has_loops: bool) -> tuple[str, ...]:
    """Packages whose kernels no start needs."""
    return (REPLAYING,) if has_loops else (REPLAYING, LOOPS)


def _progress(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Tells how far compiling is: one changing line on a terminal, else one line per stage."""
    if sys.stderr.isatty():
        return _show_on_terminal

    def tell(ready: int, count: int) -> None:
        stages = {count * stage // STAGES for stage in range(STAGES + 1)}
        if ready in stages:
            say(f"compiling kernels: {ready} of {count}")

    return tell


def _show_on_terminal(ready: int, count: int) -> None:
    end = "\n" if ready == count else ""
    print(f"\rcompiling kernels: {ready} of {count}", end=end, file=sys.stderr, flush=True)
