"""How kernels are compiled: every compiled function of the project is made by `compiled`.

A kernel with a signature is called from Python; its machine code is kept on disk (`kernel_cache`).
One without is a helper: it becomes part of the kernels that call it, has no code of its own on disk
and no entry for Python, which is what makes compiling fast: of every entry LLVM makes a further
copy.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from numba import njit
from numba.extending import typeof_impl

from indexer import kernel_cache

_njit: Any = njit  # its annotations leave the options out that make no wrappers


class Helper:
    """A function for kernels; called from Python, where it has no entry, it raises TypeError."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.__doc__ = function.__doc__
        self.name = function.__name__
        compile_later = _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
        self.dispatcher: Any = compile_later(function)

    def __call__(self, *given: object) -> NoReturn:
        raise TypeError(f"{self.name} has no signature: only kernels can call it")


@typeof_impl.register(Helper)
def _type_in_kernels(helper: Helper, context: object) -> Any:
    return helper.dispatcher._numba_type_


def compiled(signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: compile with this signature now, or take the code from the cache.

    Without a signature only other kernels can call the function, and it is compiled with them.
    """

    def compile_kernel(function: Callable[..., Any]) -> Any:
        if signature is None:
            return Helper(function, options)
        with kernel_cache.locating(function.__module__) as kept:
            kernel = _njit(signature, cache=kept, no_cfunc_wrapper=True, **options)(function)
        kernel_cache.made(function)
        return kernel

    return compile_kernel
