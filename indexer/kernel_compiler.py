"""Makes machine code of kernels with numba; imported only where something is compiled.

Every source of the project that shapes machine code is part of the checksum under which the code is
kept (`kernel_sources`), this one too.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import njit
from numba.core import sigutils
from numba.core.caching import _Cache
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target
from numba.core.types import Array
from numba.core.typing.typeof import typeof

from indexer.machine_code import MachineCode

Options = Mapping[str, Any]

_njit: Any = njit  # its annotations leave out the options that make no wrappers
_typing: Any = cpu_target.typing_context
_typeof: Any = typeof
_normalize_signature: Any = sigutils.normalize_signature


class _Taken(_Cache):
    """Takes the machine code where numba would store it."""

    code: MachineCode

    def save_overload(self, sig: object, data: Any) -> None:
        assert not data.environment.consts, "entries run without the constants of an environment"
        self.code = MachineCode(
            data.fndesc.llvm_cpython_wrapper_name,
            data.fndesc.env_name,
            data.library._get_compiled_object(),
        )

    def load_overload(self, sig: object, target_context: object) -> None:
        return None

    cache_path = "."

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


class _Library(JITCodeLibrary):
    """The code of one function; that of a helper is for linking into its entry alone.

    Numba would translate each helper to machine code of its own, too, which took a third of all
    compiling and which nothing calls.
    """

    entry = ""
    raw_helpers = False

    def _optimize_final_module(self) -> None:
        if self.name == self.entry or not self.raw_helpers:
            super()._optimize_final_module()  # type: ignore[no-untyped-call]

    def _finalize_final_module(self) -> None:
        if self.name == self.entry:
            super()._finalize_final_module()  # type: ignore[no-untyped-call]
        else:
            self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
            self._finalized = True


def compile_kernel(
    function: Callable[..., Any], signature: str, options: Options, *, raw_helpers: bool
) -> MachineCode:
    """raw_helpers: see `compiled`.  Raises what numba raises for what cannot be compiled."""
    dispatcher = _njit(no_cfunc_wrapper=True, **options)(function)
    dispatcher._cache = taken = _Taken()
    with _only_machine_code_of(function.__qualname__, raw_helpers):
        dispatcher.compile(signature)
    return taken.code


@contextmanager
def _only_machine_code_of(entry: str, raw_helpers: bool) -> Iterator[None]:
    codegen = cpu_target.target_context.codegen()
    set_env, library_class = codegen.set_env, codegen._library_class
    _Library.entry, _Library.raw_helpers = entry, raw_helpers

    def set_where_there_is_code(name: str, environment: Any) -> None:
        if codegen._engine.get_global_value_address(name):
            set_env(name, environment)

    codegen.set_env, codegen._library_class = set_where_there_is_code, _Library
    try:
        yield
    finally:
        codegen.set_env, codegen._library_class = set_env, library_class


def helper(function: Callable[..., Any], options: Options) -> Any:
    """A function that becomes part of the kernels that call it."""
    return _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function)


def type_of(thing: object) -> Any:
    """The type that something of numba's has inside a kernel."""
    _typing.refresh()  # it may have been registered a moment ago
    return _typing.resolve_value_type(thing)


def make_callable(entry: Callable[..., Any], helper: object) -> None:
    """Inside kernels `entry` is `helper`."""
    _typing.insert_global(entry, type_of(helper))


def checking(entry: Callable[..., Any], signature: str) -> Callable[..., Any]:
    """`entry` behind a comparison of its arguments with the signature.  Raises TypeError."""
    expected, _ = _normalize_signature(signature)
    arrays = [(place, type_) for place, type_ in enumerate(expected) if isinstance(type_, Array)]
    fits: set[tuple[object, ...]] = set()

    def checked(*given: object) -> Any:
        if len(given) != len(expected):
            raise TypeError(f"{len(given)} arguments instead of {len(expected)}")
        for place, type_ in arrays:
            array = given[place]
            if not isinstance(array, np.ndarray):
                raise TypeError(f"argument {place} is no array but {array!r}")
            layout = (place, array.dtype, array.ndim, array.flags.num)
            if layout not in fits:
                if _typing.can_convert(_typeof(array), type_) is None:
                    raise TypeError(f"argument {place} is {_typeof(array)} instead of {type_}")
                fits.add(layout)
        return entry(*given)

    return checked
