"""Makes machine code of kernels with numba; imported only where something is compiled.

Every source of the project that shapes machine code is part of the checksum under which the code is
kept (`kernel_sources`), this one too.
"""

from collections.abc import Callable, Mapping
from typing import Any

from numba import njit
from numba.core import sigutils
from numba.core.caching import _Cache
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


def compile_kernel(function: Callable[..., Any], signature: str, options: Options) -> MachineCode:
    """Raises what numba raises for a function that cannot be compiled."""
    dispatcher = _njit(no_cfunc_wrapper=True, **options)(function)
    dispatcher._cache = taken = _Taken()
    dispatcher.compile(signature)
    return taken.code


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

    def checked(*given: object) -> Any:
        if len(given) != len(expected):
            raise TypeError(f"{len(given)} arguments instead of {len(expected)}")
        for number, (argument, type_) in enumerate(zip(given, expected, strict=True)):
            is_array = isinstance(type_, Array)
            if is_array and _typing.can_convert(_typeof(argument), type_) is None:
                raise TypeError(f"argument {number} is {_typeof(argument)} instead of {type_}")
        return entry(*given)

    return checked
