"""Tests of kernels against Python, with arrays that numba's lowering would count and place."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.errors import NumbaRuntimeError

from indexer.jit import kernel_compiler, kernel_sources
from indexer.jit.machine_code import link_code

VALUES = np.arange(12) * 3 - 7


def kernel(function: Callable[..., Any], signature: str) -> Callable[..., Any]:
    code = kernel_compiler.compile_kernel(function, signature, {})
    return link_code(code, __name__, function.__name__)


def run_checked(
    function: Callable[..., Any], signature: str, *arrays: np.ndarray, **given: int
) -> Any:
    """Return the kernel's result, after a comparison with Python on copies of the arrays."""
    copies = [array.copy() for array in arrays]
    returned = kernel(function, signature)(*arrays, *given.values())
    assert returned == function(*copies, *given.values())
    for array, copy in zip(arrays, copies, strict=True):
        assert np.array_equal(array, copy)
    return returned


def test_items_are_read_and_written_where_python_does() -> None:
    def mix(a: Any, b: Any, m: Any, marks: Any, n: int) -> int:
        b[0], b[-1], b[n] = a[1] + 3, a[-1] * 2.5, a[-n]
        b[np.uint64(n + 1)] = True
        marks[n], marks[-1] = a[n] > 0, 2
        m[n, -1] = m[-n, n - 1] + np.uint32(5)
        m[1][n] = 2.75
        for k in range(m.shape[0]):
            for j in range(m.shape[1]):
                m[k, j] += 10 * k + j + (100 if marks[j] else 0)
        pair = (m[0, 1], b[2])
        return int(pair[0] + pair[1])

    signature = "int64(int64[::1], float64[::1], int32[:, ::1], boolean[::1], int64)"
    matrix = np.arange(20, dtype=np.int32).reshape(4, 5)
    run_checked(mix, signature, VALUES, np.zeros(6), matrix, np.zeros(5, np.bool_), n=2)


def test_parts_and_whole_rows_are_views() -> None:
    def parts(a: Any, m: Any) -> int:
        middle = a[2:-2]
        middle[0] = 99
        middle[1:3] = 5
        row = m[1]
        row[:] = -1
        total = 0
        for value in middle:
            total += value
        return int(total + len(row) + middle[-1])

    run_checked(parts, "int64(int64[::1], int64[:, ::1])", VALUES.copy(), np.ones((3, 4), np.int64))


@pytest.mark.parametrize("n", [0, 1, 5, 9])
def test_variables_that_only_some_ways_assign(n: int) -> None:
    def walk(a: Any, n: int) -> int:
        found, last = 0, -1
        if n > 4:
            big = n * 2
        for k in range(n):
            if a[k] < 0:
                continue
            last = k
            seen = a[k]
            while seen > 3:
                seen -= 2
                found += 1
                if found > 8:
                    break
            else:
                found += 100
        if n > 4:
            found += big
        return int(found * 10 + last)

    run_checked(walk, "int64(int64[::1], int64)", VALUES, n=n)


def test_powers_and_mixed_operands() -> None:
    def powers(a: Any, n: int) -> float:
        total = n**2 + 2**n + a[n] ** 3 + n / 4 + (n // 3) * 0.5 + (n & 6 | 1) - (-n % 5)
        return float(total)

    run_checked(powers, "float64(int64[::1], int64)", VALUES, n=5)


def test_a_kernel_that_would_own_memory_is_refused() -> None:
    def allocates(n: int) -> int:
        return np.empty(n, np.int64)[0]  # type: ignore[no-any-return]

    def copies(a: Any) -> int:
        return a.copy()[0]  # type: ignore[no-any-return]

    for function, signature in ((allocates, "int64(int64)"), (copies, "int64(int64[::1])")):
        with pytest.raises((TypeError, NumbaRuntimeError), match=r"allocates|NRT required"):
            kernel_compiler.compile_kernel(function, signature, {})


def test_a_helper_within_helpers_is_there_for_other_code_of_numba_too() -> None:
    inner = kernel_compiler.make_helper(lambda a, n: a[n] * 2, {})
    outer = kernel_compiler.make_helper(lambda a, n: inner(a, n) + inner(a, -1), {})

    def entry(a: Any, n: int) -> int:
        return outer(a, n) - inner(a, 0)  # type: ignore[no-any-return]

    expected = 2 * (VALUES[3] + VALUES[-1] - VALUES[0])
    assert kernel(entry, "int64(int64[::1], int64)")(VALUES, 3) == expected
    assert kernel(entry, "int64(int64[::1], int64)")(VALUES, 3) == expected
    assert njit(entry)(VALUES, 3) == expected
    assert len(inner.signatures) == 1


def test_two_helpers_with_a_common_helper_are_there_for_other_code_of_numba_too() -> None:
    inner = kernel_compiler.make_helper(lambda a, n: a[n] * 2, {})
    left = kernel_compiler.make_helper(lambda a, n: inner(a, n) + 1, {})
    right = kernel_compiler.make_helper(lambda a, n: inner(a, n) + 3, {})

    def entry(a: Any, n: int) -> int:
        return left(a, n) * right(a, n)  # type: ignore[no-any-return]

    expected = (2 * VALUES[3] + 1) * (2 * VALUES[3] + 3)
    assert kernel(entry, "int64(int64[::1], int64)")(VALUES, 3) == expected
    assert njit(entry)(VALUES, 3) == expected


AARCH64 = 183
"""EM_AARCH64 of elf.h."""
FOR_ANOTHER_MACHINE = """
import sys
from indexer.jit import kernel_compiler
code = kernel_compiler.compile_kernel(lambda a, n: a[n] + a[-1], "int64(int64[::1], int64)", {})
sys.stdout.buffer.write(code.object_file)
"""


def test_code_for_another_machine_is_of_that_machine() -> None:
    variables = {kernel_sources.MACHINE_VARIABLE: "aarch64", "NUMBA_CPU_NAME": "generic"}
    done = subprocess.run(
        [sys.executable, "-c", FOR_ANOTHER_MACHINE],
        env={**os.environ, **variables},
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.startswith(b"\x7fELF")
    assert int.from_bytes(done.stdout[18:20], "little") == AARCH64


def test_code_for_another_machine_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generic processor name does not identify the machine: each architecture has one."""
    generic, found = (("CPU_NAME", "generic"), ("CPU_FEATURES", "")), set()
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setenv(kernel_sources.MACHINE_VARIABLE, machine)
        found.add(kernel_sources._machine_fingerprint.__wrapped__(generic))
    assert len(found) == 2
