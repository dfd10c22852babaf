"""Makes machine code of kernels with numba; imported only where something is compiled.

Every source of the project that shapes machine code is part of the checksum under which the code is
kept (`kernel_sources`), this one too.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite.binding import ModuleRef
from numba import njit
from numba.core import sigutils, types
from numba.core.caching import _Cache
from numba.core.codegen import CodeLibrary, JITCodeLibrary
from numba.core.registry import cpu_target
from numba.core.types import Array
from numba.core.typing.typeof import typeof

from indexer.kernel_passes import Pipeline, only_what_kernels_need
from indexer.machine_code import MachineCode

Options = Mapping[str, Any]

_njit: Any = njit  # its annotations leave out the options that make no wrappers
_typing: Any = cpu_target.typing_context
_typeof: Any = typeof
_unliteral: Any = types.unliteral
_WRAPPER = "_ZN7cpython"
"""How the names of the functions begin that Python calls."""
_ALLOCATE = re.compile("NRT_(MemInfo_(new|.*alloc)|.*Allocate)")
"""What the functions are called with which numba allocates."""
_ENTRY = "the entry"
"""What the function that Python calls is called while it is compiled; no helper can be."""
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

    Numba would optimize each helper together with all that it calls, level by level up to the
    entry, and translate each to machine code of its own, which took most of all compiling.  Here a
    helper is its own code alone, tidied once, and all of them are linked into the entry and
    optimized there.  There all but the wrapper that Python calls is private: LLVM then knows every
    caller, which makes better code, and drops what it inlined.  It may also change how a function
    is called, so that no other code must find it: numba keeps one table of symbols for all code of
    the process, in which names of functions that are only internal appear, too.
    """

    _final_module: ModuleRef
    _linking_libraries: list[CodeLibrary]
    _with_callees: ModuleRef | None = None

    def finalize(self) -> None:
        if self.name == _ENTRY:
            self._link_callees(self._final_module)
            self._optimize_final_module()
            self._final_module.verify()
            self._finalize_final_module()  # type: ignore[no-untyped-call]
            return
        for function in self._final_module.functions:
            if not function.is_declaration:
                function.linkage = "linkonce_odr"
        self._finalized = True

    def _link_callees(self, module: ModuleRef) -> None:
        """Each once, after all that call it: what nobody has called until then is left out."""
        found: dict[CodeLibrary, None] = {}
        self._find_callees(found)
        for library in reversed(found):
            if isinstance(library, _Library):
                module.link_in(library._final_module, preserve=True)
            else:
                other: Any = library
                module.link_in(other._get_module_for_linking(), preserve=True)

    def _find_callees(self, found: dict[CodeLibrary, None]) -> None:
        """Each after all that it calls."""
        for library in self._linking_libraries:
            if library not in found:
                if isinstance(library, _Library):
                    library._find_callees(found)
                found[library] = None

    def _get_module_for_linking(self) -> ModuleRef:
        """For other code of numba."""
        if self._with_callees is None:
            module = self._final_module.clone()
            self._link_callees(module)
            self._with_callees = module
        return self._with_callees

    def _optimize_functions(self, ll_module: ModuleRef) -> None:
        codegen: Any = self._codegen
        ll_module.data_layout = codegen._data_layout
        builder = codegen._pass_builder()
        passes = builder.getFunctionPassManager()
        for function in ll_module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        codegen: Any = self._codegen
        for function in self._final_module.functions:
            if not function.is_declaration and not function.name.startswith(_WRAPPER):
                function.linkage = "private"
        tidy, builder = codegen._module_pass_manager(
            cost="cheap", opt=0, loop_vectorize=False, slp_vectorize=False
        )
        tidy.run(self._final_module, builder)  # without it long prompts take 1.06 of their time
        builder = codegen._pass_builder()
        builder.getModulePassManager().run(self._final_module, builder)
        if any(_ALLOCATE.match(each.name) for each in self._final_module.functions):
            raise TypeError("a kernel that allocates arrays, which nobody would free")


def compile_kernel(function: Callable[..., Any], signature: str, options: Options) -> MachineCode:
    """Raises what numba raises for what cannot be compiled."""
    same = function.__globals__, function.__name__, function.__defaults__, function.__closure__
    entry = FunctionType(function.__code__, *same)
    entry.__qualname__ = _ENTRY
    dispatcher = _njit(pipeline_class=Pipeline, no_cfunc_wrapper=True, **options)(entry)
    dispatcher._cache = taken = _Taken()
    with only_what_kernels_need(), _only_machine_code_of_the_entry():
        dispatcher.compile(signature)
    return taken.code


@contextmanager
def _only_machine_code_of_the_entry() -> Iterator[None]:
    codegen = cpu_target.target_context.codegen()
    set_env, library_class = codegen.set_env, codegen._library_class

    def set_where_there_is_code(name: str, environment: Any) -> None:
        if codegen._engine.get_global_value_address(name):
            set_env(name, environment)

    codegen.set_env, codegen._library_class = set_where_there_is_code, _Library
    try:
        yield
    finally:
        codegen.set_env, codegen._library_class = set_env, library_class


def helper(function: Callable[..., Any], options: Options) -> Any:
    """A function that becomes part of the kernels that call it.

    It is compiled once for the types of its arguments; numba would do so for every constant.
    """
    without = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    made = _njit(pipeline_class=Pipeline, **without, **options)(function)
    template_of = made.get_call_template

    def template(args: Iterable[Any], kws: Mapping[str, Any]) -> Any:
        return template_of([*map(_unliteral, args)], {k: _unliteral(v) for k, v in kws.items()})

    made.get_call_template = template
    return made


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
