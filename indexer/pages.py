"""Large arrays on pages of their own, which can be given back to the system bit by bit."""

from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

OWN_PAGES_MIN = 1 << 18  # bytes
LARGE_PAGES_MIN = 1 << 22  # bytes, of numpy
GIVE_BACK_BYTES = 1 << 22
"""What one step gives back: it takes time for every page."""
_MAP_NORESERVE = 0x4000  # of Linux: what is never touched counts for nothing


def zeros(length: int, dtype: Any) -> NDArray[Any]:
    """Zeroed array; a large one on pages of its own. Raises MemoryError.

    The C allocator may serve it from a heap that it has grown to like: then freed tables stay with
    the process, and zeroing a reserved column touches all of it.
    """
    size = length * np.dtype(dtype).itemsize
    if size < OWN_PAGES_MIN:
        return np.zeros(length, dtype)
    try:
        pages = mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS | _MAP_NORESERVE)
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error}") from error
    return np.frombuffer(pages, dtype, length)


def scratch(length: int, dtype: Any) -> NDArray[Any]:
    """Array of whatever values, of which perhaps only a part is used.  Raises MemoryError.

    numpy asks for large pages for the larger ones, and the first touch of one takes milliseconds.
    """
    size = length * np.dtype(dtype).itemsize
    return np.empty(length, dtype) if size < LARGE_PAGES_MIN else zeros(length, dtype)


def has_own_pages(array: NDArray[Any]) -> bool:
    """Does it lie on pages that are nobody else's?"""
    return _pages_of(array) is not None


def give_back(array: NDArray[Any], first: int, size: int) -> None:
    """So many bytes from `first` on, a multiple of the page size, of an array that `zeros` made.

    They read as zeros from then on. Nothing happens to a small array.
    """
    pages = _pages_of(array)
    if pages is not None:
        pages.madvise(MADV_DONTNEED, first, size)


def _pages_of(array: NDArray[Any]) -> mmap | None:
    base = array.base
    while isinstance(base, np.ndarray):  # the array is a view of what `zeros` made
        base = base.base
    pages = base.obj if isinstance(base, memoryview) else None
    return pages if isinstance(pages, mmap) else None
