"""How kernels are compiled: once, kept on disk, and never taken from outdated sources.

Numba keeps machine code by the file of the called function alone: it does not notice that a helper
or a constant in another file has changed, and kernels share memory layouts, so stale code would
corrupt them.  Here the code of a module lies in a directory named after a checksum of its source
and of every source of the project that it imports, directly or not; a change anywhere in those
leads to another directory.  The checksum does not depend on where the project lies or on times of
files, so that a copy, an image or another checkout finds the code of equal sources.

Every compiled function of the project is made by `compiled`; nothing else calls `njit`.
"""

import os
import re
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.caching import _CacheLocator

_IMPORT = re.compile(
    r"^from ((?:indexer|select_service)[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE
)
_LOCATOR = f"{__name__}.KernelCacheLocator"
_SETTINGS: Any = config  # names that numba makes at run time


def compiled(
    signature: Any = None, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: compile with this signature now, or take the code from the cache.

    Without a signature the function can only be called by other kernels: it is compiled into each.
    """

    def compile_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
        if signature is None:
            helper: Callable[..., Any] = njit(**options)(function)
            return helper
        others = _SETTINGS.CACHE_LOCATOR_CLASSES
        _SETTINGS.CACHE_LOCATOR_CLASSES = _LOCATOR
        try:
            kernel: Callable[..., Any] = njit(signature, cache=True, **options)(function)
        finally:
            _SETTINGS.CACHE_LOCATOR_CLASSES = others
        return kernel

    return compile_kernel


def checksum_of(module: str) -> str:
    """Of the sources that can end up in the machine code of a module, as hexadecimal digits."""
    checksum = 0
    for name in sorted(_closure(module)):
        checksum = zlib.crc32(_source_of(name), zlib.crc32(name.encode(), checksum))
    bounds = b"boundscheck" if _SETTINGS.BOUNDSCHECK else b""
    return f"{zlib.crc32(bounds, checksum):08x}"


def _closure(module: str) -> set[str]:
    """The module and all modules of the project that it imports, directly or not."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imports_of(name)
    return found


@cache
def _imports_of(module: str) -> list[str]:
    """Modules of the project that a module imports."""
    found = []
    for parent, names in _IMPORT.findall(_source_of(module).decode()):
        parts = (part.split(" as ")[0].strip() for part in names.strip("()\n ").split(","))
        inside = [f"{parent}.{part}" for part in parts if part and _path_of(f"{parent}.{part}")]
        found += inside or [parent]
    return found


@cache
def _source_of(module: str) -> bytes:
    path = _path_of(module)
    return b"" if path is None else path.read_bytes()


@cache
def _path_of(module: str) -> Path | None:
    """Source file of a module or package of the project; None when there is none."""
    package, _, rest = module.partition(".")
    root = Path(str(sys.modules[package].__file__)).parent if package in sys.modules else None
    if root is None:
        return None
    path = root.joinpath(*rest.split(".")) if rest else root
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in candidates if each.is_file()), None)


class KernelCacheLocator(_CacheLocator):
    """Tells numba where the machine code of a kernel lies."""

    def __init__(self, module: str) -> None:
        self._checksum = checksum_of(module)
        self._path = str(_cache_root() / f"{module}-{self._checksum}")

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return self._checksum

    def get_disambiguator(self) -> str:
        return "k"

    @classmethod
    def from_function(
        cls, py_func: Callable[..., Any], py_file: str
    ) -> "KernelCacheLocator | None":
        locator = cls(py_func.__module__)
        try:
            locator.ensure_cache_path()  # type: ignore[no-untyped-call]
        except OSError:
            return None
        return locator


def _cache_root() -> Path:
    given = _SETTINGS.CACHE_DIR
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "select-service" / "kernels"
