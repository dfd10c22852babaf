"""How kernels are compiled: every compiled function of the project is made by `compiled`.

A kernel with a signature is called from Python; its machine code is kept on disk (`kernel_cache`),
and where it is found there numba is not even imported.  One without is a helper: it becomes part of
the kernels that call it, has no code of its own on disk and no entry for Python, which is what
makes compiling fast: of every entry LLVM makes a further copy.

Entries do not compare the types of their arguments.  With NUMBA_BOUNDSCHECK=1 they do.
"""

import importlib
from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn

from indexer import kernel_cache
from indexer.kernel_sources import with_bounds_checks
from indexer.machine_code import MachineCode, load

READ_ONLY = "Array({}, 1, 'C', readonly=True)"
"""In signatures: a one-dimensional array that the kernel only reads; writable ones fit, too."""


class InKernels:
    """What only kernels can use, made when a kernel that does is compiled.

    Called from Python, where it has no entry, it raises TypeError.
    """

    def __init__(self, name: str, make: Callable[[], Any], doc: str | None = None) -> None:
        self.name = name
        self.__doc__ = doc
        self._make = make

    @cached_property
    def _made(self) -> Any:
        """Types refer to it weakly."""
        return self._make()

    @cached_property
    def _numba_type_(self) -> Any:
        """The compiler asks for it."""
        from indexer.kernel_compiler import type_of

        return type_of(self._made)

    def __call__(self, *given: object) -> NoReturn:
        raise TypeError(f"{self.name} has no signature: only kernels can call it")


def compiled(signature: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: take the code of this signature from the cache, or compile it now.

    signature: in the words of numba.types, as "int64(uint64[::1], int64)".
    Without one only other kernels can call the function, and it is compiled with them.
    options: those of the decorator of numba.
    """

    def compile_kernel(function: Callable[..., Any]) -> Any:
        if signature is None:
            return _helper(function, options)
        if _put_off is not None:
            _put_off.setdefault(function.__module__, []).append((function, signature, options))
            return _helper(function, options)
        entry = _entry(function, signature, options)
        kernel_cache.made(function)
        return entry

    return compile_kernel


def intrinsic(function: Callable[..., Any]) -> InKernels:
    """Decorator: as numba.extending.intrinsic."""

    def make() -> Any:
        from numba.extending import intrinsic

        return intrinsic(function)

    return InKernels(function.__name__, make, function.__doc__)


def _carray() -> Any:
    import numba

    everything: Any = numba
    return everything.carray


carray = InKernels("carray", _carray)
"""As numba.carray."""


def _helper(function: Callable[..., Any], options: dict[str, Any]) -> InKernels:
    def make() -> Any:
        from indexer import kernel_compiler

        return kernel_compiler.helper(function, options)

    return InKernels(function.__name__, make, function.__doc__)


_put_off: dict[str, list[tuple[Callable[..., Any], str, dict[str, Any]]]] | None = None
"""Module -> kernels of it that are neither compiled nor loaded yet, with signature and options."""


def put_off() -> None:
    """From now on a module that is imported compiles nothing; its kernels cannot be called.

    So several processes can share the kernels of modules that import each other.
    """
    global _put_off
    _put_off = {}


def compile_put_off(module: str) -> None:
    """Leave the machine code of the module's kernels in the cache.  After `put_off`."""
    assert _put_off is not None
    importlib.import_module(module)
    for function, signature, options in _put_off.pop(module, ()):
        if kernel_cache.find(module, function.__name__) is None:
            code = _compile(function, signature, options)
            kernel_cache.keep(module, function.__name__, code)
        kernel_cache.made(function)


_entries: dict[Callable[..., Any], InKernels] = {}
"""Entry of a kernel -> what stands for it inside kernels."""
_told: set[Callable[..., Any]] = set()
"""Entries of which the compiler knows that."""


def _entry(function: Callable[..., Any], signature: str, options: dict[str, Any]) -> Any:
    module, name = function.__module__, function.__name__
    code = kernel_cache.find(module, name)
    if code is None:
        code = _compile(function, signature, options)
        kernel_cache.keep(module, name, code)
    entry = load(code, module, name)
    if with_bounds_checks():
        from indexer import kernel_compiler

        entry = kernel_compiler.checking(entry, signature)
    _entries[entry] = _helper(function, options)
    return entry


def _compile(function: Callable[..., Any], signature: str, options: dict[str, Any]) -> MachineCode:
    """Raises what numba raises for a function that cannot be compiled."""
    from indexer import kernel_compiler

    for entry in _entries.keys() - _told:
        kernel_compiler.make_callable(entry, _entries[entry])
        _told.add(entry)
    return kernel_compiler.compile_kernel(function, signature, options)
