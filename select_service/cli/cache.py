"""Command `select-service cache clear`: removes compiled machine code, before an uninstall."""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from select_service.base.command_line import CommandParser, argument_type, one_of_words, print_error


def cache_command(argv: Sequence[str]) -> int:
    """Run the command; return 0 if everything was removed, 1 if something is left.

    Raises UsageError.
    """
    make_cache_parser().parse_arguments(argv)
    status = 0
    found = list(_list_removals())
    for root, remove in found:
        try:
            print(f"{remove()} bytes of machine code removed: {root}")
        except OSError as error:
            fault = f"{error.filename or root} cannot be removed: {error.strerror}"
            print_error(f"{fault}; remove the rest by hand")
            status = 1
    if not found:
        print("no machine code to remove")
    return status


def make_cache_parser() -> CommandParser:
    """Return the argument parser of the command."""
    result = CommandParser(
        "select-service cache",
        "Remove the machine code written by starts and by `select-service compile`: in "
        "NUMBA_CACHE_DIR, in the cache of this user, in the temporary directory and in the "
        "installed package. The next start compiles the kernels again. Code installed by a wheel "
        "stays until the package is uninstalled.",
        {
            "select-service cache clear": "before an uninstall",
            "NUMBA_CACHE_DIR=/srv/kernels select-service cache clear": "include that directory",
            "sudo -u svc select-service cache clear": "remove the code of another user",
        },
        "clear",
    )
    result.add_argument(
        "action",
        type=argument_type(one_of_words("clear")),
        metavar="clear",
        help="remove the machine code",
    )
    return result


def _list_removals() -> Iterator[tuple[Path, Callable[[], int]]]:
    """Yield each directory of machine code and a function that removes it and returns its size."""
    from indexer.jit import kernel_cache, wheel_code  # imported late: LLVM is slow to load

    roots = [*kernel_cache.user_filled_roots(), kernel_cache.package_root()]
    for root in filter(Path.is_dir, dict.fromkeys(roots)):
        yield root, lambda root=root: kernel_cache.clear_root(root)  # type: ignore[misc]
    of_package = wheel_code.wheel_root()
    # Files recorded by the wheel are removed by pip; removing them here would break the package.
    if of_package.is_dir() and not _is_installed_by_wheel(of_package):
        yield of_package, wheel_code.remove_wheel_code


def _is_installed_by_wheel(root: Path) -> bool:
    """Return whether an uninstall of the package removes these files."""
    try:
        installed = files("select-service") or ()
    except PackageNotFoundError:
        return False
    return any(Path(str(file.locate())).is_relative_to(root) for file in installed)
