"""Compilation of kernels ahead of the first use, by the command or a start without kernels."""

import logging
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from select_service.base.command_line import CommandParser, UsageError, file_error_text, print_error
from select_service.config.settings_loader import UnusableSetting
from select_service.server.early_signals import add_exit_callback

_LEFT_OUT = ("select_service.sim.engine",)
"""Packages of kernels that no start needs."""
STAGES = 4
"""Number of progress lines without a terminal."""


log = logging.getLogger("select_service")


def compile_command(argv: Sequence[str]) -> int:
    """Run `select-service compile`; return 0 if all kernels are ready, else 1.

    Raises UsageError.
    """
    arguments = make_compile_parser().parse_arguments(argv)
    if arguments.portable:
        return _fill_package(arguments.cache, arguments.machine)
    return _compile_into(arguments.cache, ())


def make_compile_parser() -> CommandParser:
    """Return the argument parser of the command."""
    result = CommandParser(
        "select-service compile",
        "Compile all kernels ahead of the first start; takes a second if all are compiled. "
        "The code fits these sources, this Python and this model of processor; with "
        "NUMBA_CPU_NAME=generic, here and at the start, any processor of this architecture.",
        {
            "select-service compile": "for starts of this user",
            "select-service compile --cache /srv/kernels": "for NUMBA_CACHE_DIR=/srv/kernels",
            "select-service compile --portable": "for all processors, into the installed package",
        },
    )
    result.add_argument(
        "--cache",
        metavar="DIR",
        help="directory for the machine code, found by starts with NUMBA_CACHE_DIR=DIR (default: "
        "NUMBA_CACHE_DIR, else the cache of this user)",
    )
    result.add_argument(
        "--portable",
        action="store_true",
        help="put code for every processor with AVX2 (x86-64-v3) or every ARMv8 into the installed "
        "package, as in a platform wheel; starts without own code use it",
    )
    result.add_argument(
        "--machine",
        default=platform.machine(),
        metavar="ARCHITECTURE",
        help="with --portable: target architecture, x86_64 or aarch64 (default: that of this "
        "machine, %(default)s)",
    )
    return result


def _fill_package(cache: str | None, machine: str) -> int:
    """Put machine code for every processor of an architecture into the package.

    cache: directory of the compilation, which is kept; None means a temporary directory
    """
    from indexer.jit import kernel_sources, wheel_code

    os.environ[kernel_sources.MACHINE_VARIABLE] = machine
    baseline = kernel_sources.baseline_settings()
    if baseline is None:
        known = " and ".join(kernel_sources.BASELINES)
        raise UsageError(f"--portable supports {known}, not {machine}")
    os.environ.update({f"NUMBA_{name}": value for name, value in baseline})
    with ExitStack() as ends:
        try:
            given = cache or ends.enter_context(tempfile.TemporaryDirectory())
        except FileNotFoundError:
            raise UsageError("no writable temporary directory: give --cache DIR") from None
        made = Path(given).absolute()
        status = _compile_into(str(made), ())
        if status:
            return status
        try:
            size = wheel_code.write_wheel_code(made)
        except OSError as error:
            fault = file_error_text(wheel_code.wheel_root(), error, "written")
            raise UsageError(
                f"{fault}; run the command as the owner of the installed package"
            ) from None
    print(f"{size} bytes of machine code for any processor: {wheel_code.wheel_root()}")
    return 0


def _compile_into(given: str | None, without: tuple[str, ...]) -> int:
    if given is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(Path(given).absolute())
    from indexer.jit import (  # imported now: numba reads NUMBA_CACHE_DIR once
        kernel_cache,
        parallel_compile,
        wheel_code,
    )

    # Otherwise the portable code of the package would count as compiled.
    wheel_code.ignore_wheel_code()
    root = kernel_cache.active_root()
    if root is None or (given is not None and root != Path(given).absolute()):
        where = given or os.environ.get("NUMBA_CACHE_DIR") or "any of the usual places"
        raise UsageError(
            f"machine code cannot be written to {where}: give --cache DIR, a directory writable "
            "for this user"
        )
    add_exit_callback(parallel_compile.kill_workers)
    try:
        count = parallel_compile.compile_missing(
            _progress_callback(lambda text: print(text, file=sys.stderr)), without
        )
    except parallel_compile.CompileError as error:
        print_error(str(error))
        return 1
    print(
        f"{f'{count} kernels compiled' if count else 'all kernels were compiled already'}: {root}"
    )
    return 0


def compile_before_start() -> None:
    """Compile what a start lacks, and tell an operator where the code cannot stay.

    What cannot be compiled here is compiled, or fails, when it is imported.
    Raises Unusable where this processor cannot run what NUMBA_CPU_NAME asks for.
    """
    from indexer.jit import kernel_cache, parallel_compile, wheel_code

    if lacking := wheel_code.lacking_requested_features():
        raise UnusableSetting(
            f"NUMBA_CPU_NAME={os.environ['NUMBA_CPU_NAME']}: the kernels need processor features "
            f"missing here: {', '.join(lacking)}; use an image built with CPU=generic, or unset "
            "the variable"
        )
    if kernel_cache.is_from_wheel():
        advice = "`select-service compile` optimises it for this one"
        log.info(f"using machine code of the package, for any processor; {advice}")
        return
    root, given = kernel_cache.active_root(), os.environ.get("NUMBA_CACHE_DIR")
    add_exit_callback(parallel_compile.kill_workers)
    missing = kernel_cache.incomplete_modules(_LEFT_OUT)
    if missing and (fault := wheel_code.unusable_reason()):
        log.warning("machine code of the package not used", extra={"fields": {"why": fault}})
    try:
        parallel_compile.compile_missing(_progress_callback(log.info), _LEFT_OUT)
    except parallel_compile.CompileError as error:
        log.error("kernels not compiled ahead", extra={"fields": {"error": str(error)}})
    advice = "run `select-service compile --cache DIR` and start with NUMBA_CACHE_DIR=DIR"
    if root is None:
        log.warning(f"no writable kernel cache, each start compiles for a minute: {advice}")
    elif root == kernel_cache.private_root():
        log.warning(f"kernel cache in the temporary directory {root}: {advice}")
    elif given and root != Path(given):
        fields = {"given": given, "instead": str(root)}
        log.warning("NUMBA_CACHE_DIR not writable", extra={"fields": fields})


def _progress_callback(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return a progress callback: one changing line on a terminal, else one line per stage."""
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
