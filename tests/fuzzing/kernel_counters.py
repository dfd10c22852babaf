"""Counters in machine code that show libFuzzer how far an input gets.

In kernels of chosen modules, each basic block is compiled with a counter, and array bounds are
checked. The instrumented code stays in its process: no cache reads or stores the code.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir

from indexer.jit import kernel_cache
from indexer.jit.kernel_compiler import _Library

COUNTERS_MAX = 1 << 18
BYTE, WORD = ir.IntType(8), ir.IntType(64)


class KernelCounters:
    """Counters, a byte for each basic block of chosen modules compiled within the `with` block."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        """modules: prefixes of module names"""
        self._modules, self._is_counting = modules, False
        self._bytes = np.zeros(COUNTERS_MAX, np.uint8)
        self._n = 0
        self._replaced = _Library.add_ir_module, kernel_cache.find_code, kernel_cache.store_code

    def __enter__(self) -> "KernelCounters":
        add, find, store = self._replaced

        def add_counted(library: Any, module: Any) -> None:
            if self._is_counting:
                for function in module.functions:
                    for block in function.blocks:
                        self._count(block)
            add(library, module)

        def find_code(module: str, name: str) -> Any:
            self._set_counting(module.startswith(self._modules))
            return None if self._is_counting else find(module, name)

        def store_code(module: str, name: str, code: Any) -> None:
            if not module.startswith(self._modules):
                store(module, name, code)
            self._set_counting(False)

        _Library.add_ir_module = add_counted  # type: ignore[method-assign]
        kernel_cache.find_code, kernel_cache.store_code = find_code, store_code
        return self

    def __exit__(self, *_: object) -> None:
        self._set_counting(False)
        add, kernel_cache.find_code, kernel_cache.store_code = self._replaced
        _Library.add_ir_module = add  # type: ignore[method-assign]

    def _set_counting(self, is_counting: bool) -> None:
        self._is_counting = is_counting
        numba.config.BOUNDSCHECK = 1 if is_counting else None  # type: ignore[attr-defined]

    def _count(self, block: Any) -> None:
        assert self._n < COUNTERS_MAX, "too many basic blocks for the counters"
        builder = ir.IRBuilder(block)
        # Phi instructions must stay the first instructions of a block.
        first = next(each for each in block.instructions if each.opname != "phi")
        builder.position_before(first)
        place = ir.Constant(WORD, self._bytes.ctypes.data + self._n).inttoptr(BYTE.as_pointer())
        builder.store(builder.add(builder.load(place), ir.Constant(BYTE, 1)), place)
        self._n += 1

    @property
    def n_blocks(self) -> int:
        return self._n

    def reached_by(self, check: Callable[[bytes], object], data: bytes) -> set[tuple[int, int]]:
        """Return the executed blocks, each with its number of runs to the nearest power of two."""
        self._bytes[:] = 0
        check(data)
        (places,) = self._bytes.nonzero()
        return {(int(place), int(self._bytes[place]).bit_length()) for place in places}

    def register_at_libfuzzer(self, library_file: str) -> None:
        """Make libFuzzer read the counters after each input, with invented code addresses."""
        begin = self._bytes.ctypes.data
        self._places = np.zeros((self._n, 2), np.uintp)
        self._places[:, 0] = begin + np.arange(self._n)
        library = ctypes.CDLL(library_file)
        for name, at, size in (
            ("__sanitizer_cov_8bit_counters_init", begin, self._n),
            ("__sanitizer_cov_pcs_init", self._places.ctypes.data, self._places.nbytes),
        ):
            library[name](ctypes.c_void_p(at), ctypes.c_void_p(at + size))
