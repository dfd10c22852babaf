"""`python -m indexer.warm [package ...]`: compile every kernel now instead of at the first start.

Importing a kernel module compiles its functions (their signatures are explicit) and leaves the
machine code in numba's cache, beside the source or in NUMBA_CACHE_DIR.  With a warm cache this
takes a second.
"""

import importlib
import pkgutil
import sys
import time
from collections.abc import Iterator


def kernel_modules(package_name: str) -> Iterator[str]:
    """Names of the modules of a package that hold compiled loops: `kernels` and `*_kernels`.

    Raises ModuleNotFoundError for an unknown package.
    """
    package = importlib.import_module(package_name)
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{package_name}."):
        last = module.name.rpartition(".")[2]
        if last == "kernels" or last.endswith("_kernels"):
            yield module.name


def warm(package_names: list[str]) -> list[str]:
    """Import all kernel modules of the packages; returns their names."""
    names = [name for package_name in package_names for name in kernel_modules(package_name)]
    for name in names:
        importlib.import_module(name)
    return names


def main() -> None:
    """The command line: the packages to look in, `indexer` when none is named."""
    started = time.perf_counter()
    names = warm(sys.argv[1:] or ["indexer"])
    print(f"{len(names)} kernel modules ready after {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
