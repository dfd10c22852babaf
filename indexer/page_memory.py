"""Large arrays on private pages, which can be returned to the system in parts."""

from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

OWN_PAGES_MIN = 1 << 18  # bytes
LARGE_PAGES_MIN = 1 << 22  # bytes, from here on numpy maps large pages
RETURN_STEP_BYTES = 1 << 22
"""Bytes returned per step: the system call takes time for every page."""
_MAP_NORESERVE = 0x4000  # Linux: pages that are never touched need no backing memory


def zeroed_array(length: int, dtype: Any) -> NDArray[Any]:
    """Return a zeroed array; a large array gets private pages.  Raises MemoryError.

    The C allocator may serve such an array from a heap it has grown: freed tables then stay with
    the process, and zeroing a reserved column touches every page.
    """
    size = length * np.dtype(dtype).itemsize
    if size < OWN_PAGES_MIN:
        return np.zeros(length, dtype)
    try:
        pages = mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS | _MAP_NORESERVE)
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error}") from error
    return np.frombuffer(pages, dtype, length)


def scratch_array(length: int, dtype: Any) -> NDArray[Any]:
    """Return an array of undefined values, of which a part may stay unused.  Raises MemoryError.

    numpy maps large pages for larger arrays, and the first touch of a large page takes
    milliseconds.
    """
    size = length * np.dtype(dtype).itemsize
    return np.empty(length, dtype) if size < LARGE_PAGES_MIN else zeroed_array(length, dtype)


def has_own_pages(array: NDArray[Any]) -> bool:
    """Return whether the array is on private pages made by `zeros`."""
    return _pages_of(array) is not None


def return_pages(array: NDArray[Any], first: int, size: int) -> None:
    """Return bytes of an array that `zeros` made to the system; a small array stays as is.

    first, size: bytes, multiples of the page size.  The range reads as zeros afterwards.
    """
    pages = _pages_of(array)
    if pages is not None:
        pages.madvise(MADV_DONTNEED, first, size)


def _pages_of(array: NDArray[Any]) -> mmap | None:
    base = array.base
    while isinstance(base, np.ndarray):  # the bases of a view lead to the array of `zeros`
        base = base.base
    pages = base.obj if isinstance(base, memoryview) else None
    return pages if isinstance(pages, mmap) else None
