"""Compiling kernels ahead of their first use: by the command, or by a start that lacks them."""

import logging
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from select_service.command_line import CommandParser, UsageError, file_fault
from select_service.settings.config import Unusable
from select_service.starting.signals import before_end

LOOPS = "select_service.loops"
REPLAYING = "select_service.replaying"
STAGES = 4
"""Lines that tell of the progress where there is no terminal."""

_ANY_PROCESSOR = "for any processor; `select-service compile` makes some for this one"
_NO_BASELINE = "--portable makes code for {}, and not for {}"
_NO_TEMPORARY = "no temporary directory can be written to: give --cache DIR"
_OTHER_PROCESSOR = (
    "NUMBA_CPU_NAME={}: the kernels are for processors that have {}, and this one has not; take "
    "an image that was built with CPU=generic, or start without the variable"
)

log = logging.getLogger("select_service")


def compile_command(argv: Sequence[str]) -> int:
    """`select-service compile`.  Exit status: 0 all kernels are ready, 1 they are not.

    Raises UsageError.
    """
    arguments = parser().read(argv)
    if arguments.portable:
        return _fill_package(arguments.cache, arguments.machine)
    return _compile_into(arguments.cache, () if arguments.input_loops else (LOOPS,))


def parser() -> CommandParser:
    """The command line."""
    result = CommandParser(
        "select-service compile",
        "Compile all kernels now, so that no start has to; when all are there, it takes a second. "
        "The code fits these sources, this Python and this model of processor; with "
        "NUMBA_CPU_NAME=generic, here and at the start, any processor of this architecture.",
        {
            "select-service compile": "for starts of this user",
            "select-service compile --cache /srv/kernels": "for NUMBA_CACHE_DIR=/srv/kernels",
            "select-service compile --input-loops": "also for --input-loops",
        },
    )
    result.add_argument(
        "--cache",
        metavar="DIR",
        help="directory for the machine code, where a start with NUMBA_CACHE_DIR=DIR finds it "
        "(default: NUMBA_CACHE_DIR, else where a start of this user looks by itself)",
    )
    result.add_argument(
        "--input-loops",
        action="store_true",
        help="also the kernels that a start with --input-loops needs",
    )
    result.add_argument(
        "--portable",
        action="store_true",
        help="put code into the installed package that fits every processor with AVX2 (x86-64-v3) "
        "or every ARMv8, as a platform wheel has it; starts use it where they find none of their "
        "own",
    )
    result.add_argument(
        "--machine",
        default=platform.machine(),
        metavar="ARCHITECTURE",
        help="with --portable: x86_64 or aarch64, the architecture that the package is for "
        "(default: this machine's, %(default)s)",
    )
    return result


def _fill_package(cache: str | None, machine: str) -> int:
    """Put machine code for every processor of an architecture into the package.

    cache: where the code is compiled, and left; None means a directory that goes
    """
    from indexer import kernel_baseline, kernel_sources

    os.environ[kernel_sources.MACHINE_VARIABLE] = machine
    baseline = kernel_sources.baseline()
    if baseline is None:
        known = " and ".join(kernel_sources.BASELINES)
        raise UsageError(_NO_BASELINE.format(known, machine))
    os.environ.update({f"NUMBA_{name}": value for name, value in baseline})
    with ExitStack() as ends:
        try:
            given = cache or ends.enter_context(tempfile.TemporaryDirectory())
        except FileNotFoundError:
            raise UsageError(_NO_TEMPORARY) from None
        made = Path(given).absolute()
        status = _compile_into(str(made), ())
        if status:
            return status
        try:
            size = kernel_baseline.fill(made)
        except OSError as error:
            fault = file_fault(kernel_baseline.root(), error, "written")
            raise UsageError(f"{fault}; run it as the owner of the installed package") from None
    print(f"{size} bytes of machine code for any processor: {kernel_baseline.root()}")
    return 0


def _compile_into(given: str | None, without: tuple[str, ...]) -> int:
    if given is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(Path(given).absolute())
    from indexer import compiling, kernel_baseline, kernel_cache  # now: numba reads it once

    kernel_baseline.ignore()
    root = kernel_cache.root()
    if root is None or (given is not None and root != Path(given).absolute()):
        where = given or os.environ.get("NUMBA_CACHE_DIR") or "any of the usual places"
        raise UsageError(
            f"machine code cannot be written to {where}: give --cache DIR, a directory that this "
            "user may write in"
        )
    before_end(compiling.stop)
    try:
        count = compiling.compile_missing(
            _progress(lambda text: print(text, file=sys.stderr)), without
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
    Raises Unusable where this processor cannot run what NUMBA_CPU_NAME asks for.
    """
    from indexer import compiling, kernel_baseline, kernel_cache

    if lacking := kernel_baseline.lacking_of_wanted():
        raise Unusable(_OTHER_PROCESSOR.format(os.environ["NUMBA_CPU_NAME"], ", ".join(lacking)))
    if kernel_cache.is_baseline():
        log.info(f"machine code is that of the package, {_ANY_PROCESSOR}")
        return
    root, given = kernel_cache.root(), os.environ.get("NUMBA_CACHE_DIR")
    before_end(compiling.stop)
    missing = kernel_cache.incomplete(_left_out(has_loops=has_loops))
    if missing and (fault := kernel_baseline.fault()):
        log.warning("machine code of the package is not used", extra={"fields": {"why": fault}})
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
