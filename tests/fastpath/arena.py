"""Memory between guard bytes, for arrays that compiled code reaches by address."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from select_service.fastpath import (
    fastpath_counts,
    partition_cache,
    response_templates,
    service_handler,
)

GUARDED = (response_templates, fastpath_counts, partition_cache, service_handler)
"""Modules that create the arrays of the fast path."""
GUARD_BYTES = 4096


class Arena:
    """Substitute of numpy for a module that creates arrays: every array is between guard bytes.

    Memory that numpy would leave uninitialized is filled with guard bytes, too.
    """

    def __init__(self, guard: int) -> None:
        self._guard = guard
        self._blocks: list[npt.NDArray[np.uint8]] = []

    def on_emptied(self, shape: Any, dtype: Any = np.float64) -> npt.NDArray[Any]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        block = np.full(size + 2 * GUARD_BYTES, self._guard, np.uint8)
        self._blocks.append(block)
        return block[GUARD_BYTES : GUARD_BYTES + size].view(dtype).reshape(shape)

    def zeros(self, shape: Any, dtype: Any = np.float64) -> npt.NDArray[Any]:
        array = self.on_emptied(shape, dtype)
        array[:] = 0
        return array

    def array(self, given: Any, dtype: Any = None) -> npt.NDArray[Any]:
        return self._copied(np.array(given, dtype))

    def frombuffer(self, given: Any, dtype: Any) -> npt.NDArray[Any]:
        return self._copied(np.frombuffer(given, dtype))

    def _copied(self, made: npt.NDArray[Any]) -> npt.NDArray[Any]:
        array = self.on_emptied(made.shape, made.dtype)
        array[:] = made
        return array

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def are_guards_intact(self) -> bool:
        return all(
            (block[:GUARD_BYTES] == self._guard).all()
            and (block[-GUARD_BYTES:] == self._guard).all()
            for block in self._blocks
        )


@contextmanager
def guarded(guard: int) -> Iterator[Arena]:
    """Put the arrays that the fast path creates inside the context between these guard bytes."""
    arena = Arena(guard)
    with ExitStack() as stack:
        for module in GUARDED:
            stack.enter_context(mock.patch.object(module, "np", arena))
        yield arena
