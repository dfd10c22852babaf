"""Decorator `compiled`, which makes every compiled function (kernel) of the project.

A kernel with a signature is an entry: Python calls the kernel, its machine code is cached on disk
(`kernel_cache`), and with a cached entry numba is not even imported.  A kernel without a signature
is a helper: compiled into the entries that call it, without an entry or cached code.  Helpers make
compiling fast, since LLVM makes a further copy of the code for every entry.

Entries do not compare argument types.  With NUMBA_BOUNDSCHECK=1 they do.
"""

import importlib
from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn

from indexer.jit import kernel_cache
from indexer.jit.kernel_sources import has_bounds_checks
from indexer.jit.machine_code import MachineCode, link_code

READ_ONLY = "Array({}, 1, 'C', readonly=True)"
"""Signature text of a one-dimensional array that a kernel only reads; writable arrays fit, too."""


class KernelOnly:
    """Object that only kernels can use, made when a kernel that needs it is compiled.

    A call from Python raises TypeError, because there is no entry.
    """

    def __init__(self, name: str, make: Callable[[], Any], doc: str | None = None) -> None:
        self.name = name
        self.__doc__ = doc
        self._make = make

    @cached_property
    def _compiled_object(self) -> Any:
        """The compiled object, kept alive here because numba's types refer to it weakly."""
        return self._make()

    @cached_property
    def _numba_type_(self) -> Any:
        """Type of the object inside kernels; numba's compiler reads this attribute."""
        from indexer.jit.kernel_compiler import numba_type_of

        return numba_type_of(self._compiled_object)

    def __call__(self, *given: object) -> NoReturn:
        raise TypeError(f"{self.name} has no signature, so only kernels can call it")


def compiled(signature: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that loads the machine code of a signature from the cache or compiles it.

    signature: types in the notation of numba.types, as "int64(uint64[::1], int64)".
               None makes a helper, compiled with the kernels that call it.
    options:   options of numba's own decorator
    """

    def compile_kernel(function: Callable[..., Any]) -> Any:
        if signature is None:
            return _make_helper(function, options)
        if _deferred is not None:
            _deferred.setdefault(function.__module__, []).append((function, signature, options))
            return _make_helper(function, options)
        entry = _make_entry(function, signature, options)
        kernel_cache.report_ready(function)
        return entry

    return compile_kernel


def intrinsic(function: Callable[..., Any]) -> KernelOnly:
    """Decorate a code generator as numba.extending.intrinsic does, without importing numba now."""

    def make() -> Any:
        from numba.extending import intrinsic

        return intrinsic(function)

    return KernelOnly(function.__name__, make, function.__doc__)


def _import_carray() -> Any:
    import numba

    everything: Any = numba
    return everything.carray


carray = KernelOnly("carray", _import_carray)
"""Equivalent of numba.carray inside kernels."""


def _make_helper(function: Callable[..., Any], options: dict[str, Any]) -> KernelOnly:
    def make() -> Any:
        from indexer.jit import kernel_compiler

        return kernel_compiler.make_helper(function, options)

    return KernelOnly(function.__name__, make, function.__doc__)


_deferred: dict[str, list[tuple[Callable[..., Any], str, dict[str, Any]]]] | None = None
"""Deferred kernels by module, with signature and options; None: kernels compile at once."""


def defer_compilation() -> None:
    """Defer compilation: kernels of modules imported from now on are neither compiled nor callable.

    Several processes can then share the kernels of modules that import each other.
    """
    global _deferred
    _deferred = {}


def compile_deferred(module: str) -> None:
    """Compile the deferred kernels of a module and store their machine code in the cache.

    Requires an earlier `defer_compilation`.
    """
    assert _deferred is not None
    importlib.import_module(module)
    for function, signature, options in _deferred.pop(module, ()):
        if kernel_cache.find_code(module, function.__name__) is None:
            code = _compile(function, signature, options)
            kernel_cache.store_code(module, function.__name__, code)
        kernel_cache.report_ready(function)


_entries: dict[Callable[..., Any], KernelOnly] = {}
"""Entry of a kernel -> helper that replaces the entry inside other kernels."""
_registered_entries: set[Callable[..., Any]] = set()
"""Entries already registered with the compiler."""


def _make_entry(function: Callable[..., Any], signature: str, options: dict[str, Any]) -> Any:
    module, name = function.__module__, function.__name__
    code = kernel_cache.find_code(module, name)
    if code is None:
        code = _compile(function, signature, options)
        kernel_cache.store_code(module, name, code)
    entry = link_code(code, module, name)
    # Machine code trusts its arguments: only the test mode pays for comparing layouts at each call.
    if has_bounds_checks():
        from indexer.jit import kernel_compiler

        entry = kernel_compiler.with_argument_checks(entry, signature)
    _entries[entry] = _make_helper(function, options)
    return entry


def _compile(function: Callable[..., Any], signature: str, options: dict[str, Any]) -> MachineCode:
    """Compile a function.  Raises the errors of numba for a function that cannot be compiled."""
    from indexer.jit import kernel_compiler

    # Loaded entries have no numba dispatcher; numba would treat them as plain Python objects.
    for entry in _entries.keys() - _registered_entries:
        kernel_compiler.register_entry(entry, _entries[entry])
        _registered_entries.add(entry)
    return kernel_compiler.compile_kernel(function, signature, options)
