"""`select-service cache clear`: removes what starts leave on the disk, as before an uninstall."""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from select_service.command_line import CommandParser, choice, typed


def cache_command(argv: Sequence[str]) -> int:
    """Exit status: 0 all is removed, 1 something stays.  Raises UsageError."""
    parser().read(argv)
    status = 0
    found = list(_removals())
    for root, remove in found:
        try:
            print(f"{remove()} bytes of machine code removed: {root}")
        except OSError as error:
            print(
                f"select-service: error: {error.filename or root} cannot be removed: "
                f"{error.strerror}; what is left there is removed by hand",
                file=sys.stderr,
            )
            status = 1
    if not found:
        print("there is no machine code to remove")
    return status


def parser() -> CommandParser:
    """The command line."""
    result = CommandParser(
        "select-service cache",
        "Remove the machine code of the kernels that starts and `select-service compile` have "
        "left: in NUMBA_CACHE_DIR, in the cache of this user, in the temporary directory and in "
        "the installed package. The next start compiles it again. What a wheel brought with it "
        "stays until the package is uninstalled.",
        {
            "select-service cache clear": "before an uninstall",
            "NUMBA_CACHE_DIR=/srv/kernels select-service cache clear": "that directory, too",
            "sudo -u svc select-service cache clear": "what starts of that user have left",
        },
        "clear",
    )
    result.add_argument(
        "action", type=typed(choice("clear")), metavar="clear", help="remove the machine code"
    )
    return result


def _removals() -> Iterator[tuple[Path, Callable[[], int]]]:
    """Yield each root of machine code with what removes it and returns its bytes."""
    from indexer import kernel_baseline, kernel_cache  # no other command needs LLVM so early

    roots = [*kernel_cache.filled_roots(), kernel_cache.package_root()]
    for root in filter(Path.is_dir, dict.fromkeys(roots)):
        yield root, lambda root=root: kernel_cache.clear(root)  # type: ignore[misc]
    of_package = kernel_baseline.root()
    if of_package.is_dir() and not _is_of_wheel(of_package):
        yield of_package, kernel_baseline.remove


def _is_of_wheel(root: Path) -> bool:
    """Does an uninstall remove these files?"""
    try:
        installed = files("select-service") or ()
    except PackageNotFoundError:
        return False
    return any(Path(str(file.locate())).is_relative_to(root) for file in installed)
