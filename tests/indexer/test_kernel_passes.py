"""What is left out of numba's work on kernels, and that it is back for all others."""

import operator
from typing import Any

import pytest
from numba import njit, types
from numba.core import event
from numba.core.errors import TypingError
from numba.core.registry import cpu_target

from indexer import kernel_compiler
from indexer.kernel_passes import Remembered, only_what_kernels_need

typing: Any = cpu_target.typing_context


class Resolver:
    """Counts; finds nothing for strings."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, function: Any, args: tuple[Any, ...], kws: Any) -> Any:
        self.asked.append((function, args))
        return None if types.unicode_type in args else types.int64(*args)


def test_the_type_of_a_call_is_found_once() -> None:
    resolver = Resolver()
    remembered = Remembered(resolver)
    for _ in range(2):
        for args in ((types.int64, types.int64), (types.int64, types.float64)):
            assert remembered(operator.add, args, {}).args == args
        remembered(operator.sub, (types.int64, types.int64), {})
    assert len(resolver.asked) == 3


def test_constants_of_equal_numbers_are_not_the_same() -> None:
    resolver = Resolver()
    remembered = Remembered(resolver)
    for value in (1, True, 2):
        remembered(operator.neg, (types.literal(value),), {})  # type: ignore[no-untyped-call]
    assert len(resolver.asked) == 3


def test_what_is_no_plain_call_of_a_known_function_is_asked_each_time() -> None:
    resolver = Resolver()
    remembered = Remembered(resolver)
    helper: Any = njit(lambda: None)
    ours = types.Dispatcher(helper)
    for _ in range(2):
        remembered(operator.add, (types.int64,), {"by": types.int64})
        remembered("static_getitem", (types.int64, slice(1)), {})
        remembered(operator.add, (types.unicode_type,), {})
        remembered(ours, (types.int64,), {})
    assert len(resolver.asked) == 8


def test_numba_is_as_before_also_after_an_error() -> None:
    before = event.start_event, event.end_event, typing.resolve_function_type
    with pytest.raises(TypingError):
        kernel_compiler.compile_kernel(lambda number: number + "1", "int64(int64)", {})
    assert before == (event.start_event, event.end_event, typing.resolve_function_type)
    with only_what_kernels_need():
        assert before[2] != typing.resolve_function_type
