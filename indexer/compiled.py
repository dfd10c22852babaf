"""How a kernel that Python calls is compiled: cached on disk, and never from outdated sources.

Numba keeps machine code by the file of the called function alone; it does not notice that a helper
in another file changed. Kernels of the index share one memory layout, so stale code would corrupt
it. Therefore the name under which the code is kept carries a checksum of all kernel sources.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


def _checksum_of_sources() -> str:
    checksum = 0
    for source in sorted(Path(__file__).parent.glob("*kernels.py")):
        checksum = zlib.crc32(source.read_bytes(), checksum)
    return f"{checksum:08x}"


_SOURCES = _checksum_of_sources()


def compiled(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: `njit` with this signature, cached until any kernel source changes."""

    def compile_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__qualname__ = f"{function.__qualname__}_{_SOURCES}"
        kernel: Callable[..., Any] = njit(signature, cache=True, **options)(function)
        return kernel

    return compile_kernel
