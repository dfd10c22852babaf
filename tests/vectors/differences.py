"""Comparison of expected and found JSON values."""

from collections.abc import Iterator
from math import isclose
from typing import Any, NamedTuple

RELATIVE = 1e-6
"""Tolerance of numbers, relative and absolute."""
MISSING = "(nothing)"


class Difference(NamedTuple):
    """Value that differs.

    where: path inside the case
    """

    where: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected!r}, found {self.found!r}"


def differences(expected: Any, found: Any, where: str = "result") -> Iterator[Difference]:
    """Yield every value that differs from `expected`; keys without an expectation are ignored."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            yield from differences(value, found.get(key, MISSING), f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for at, (value, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(value, other, f"{where}[{at}]")
    elif not is_same(expected, found):
        yield Difference(where, expected, found)


def is_same(expected: object, found: object) -> bool:
    """Return whether numbers are equal within `RELATIVE`, and other values exactly."""
    numbers = int | float
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, numbers) and isinstance(found, numbers):
        return isclose(expected, found, rel_tol=RELATIVE, abs_tol=RELATIVE)
    return expected == found
