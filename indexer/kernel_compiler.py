"""Makes machine code of kernels with numba; imported only where something is compiled.

Every source of the project that shapes machine code is part of the checksum under which the code is
kept (`kernel_sources`), this one too.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding
from llvmlite.binding import ModuleRef
from numba import config, njit
from numba.core import sigutils, types
from numba.core.codegen import CodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import cpu_target
from numba.core.typed_passes import IRLegalization, NativeLowering, NoPythonBackend
from numba.core.types import Array
from numba.core.typing.typeof import typeof

from indexer.kernel_sources import is_for_another_machine, target_machine
from indexer.machine_code import MachineCode, relocation_of

Options = Mapping[str, Any]

# None of these has annotations, or none that fit.
_config: Any = config
_njit: Any = njit
_register_pass: Any = register_pass
_Lowering: Any = NativeLowering
_PassBuilder: Any = DefaultPassBuilder
_PassManager: Any = PassManager
_typing: Any = cpu_target.typing_context
_typeof: Any = typeof
_unliteral: Any = types.unliteral
_normalize_signature: Any = sigutils.normalize_signature

_ALLOCATE = re.compile("NRT_(MemInfo_(new|.*alloc)|.*Allocate)")
"""The names of the functions with which numba allocates."""
_OPTIMIZATION = 3


@_register_pass(mutates_CFG=True, analysis_only=False)
class Lowering(_Lowering):  # type: ignore[misc]
    """Numba's own, which counts no references here.

    Numba counts those to every array, so that what a function allocates goes when nothing refers to
    it any more.  No kernel owns memory: its arrays are its caller's, parts of what the index owns,
    or on its stack (`memory_kernels`).
    """

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Only this pass, because numba lets no function that counts nothing return an array."""
        of_numba = state.targetctx
        state.targetctx = of_numba.subtarget(enable_nrt=False)
        try:
            return bool(super().run_pass(state))
        finally:
            state.targetctx = of_numba


class Pipeline(CompilerBase):
    """The passes of numba with another lowering."""

    def define_pipelines(self) -> list[Any]:
        passes = _PassManager("kernel")
        for part in (_PassBuilder.define_untyped_pipeline, _PassBuilder.define_typed_pipeline):
            passes.passes.extend(part(self.state).passes)
        for each in (IRLegalization, Lowering, NoPythonBackend):
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


class _Library(CodeLibrary):
    """The code of one function, for linking into the entry that calls it.

    Numba would optimize each helper together with all that it calls, level by level up to the
    entry, and translate each to machine code of its own, which took most of all compiling.  Here a
    helper is its own code alone, tidied once, and all of them are linked into the entry and
    optimized there.  There all but the wrapper that Python calls is private: LLVM then knows every
    caller, which makes better code, and drops what it inlined.  It may also change how a function
    is called, so that no other code must find it by its name.
    """

    _with_callees: ModuleRef | None = None

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self._callees: list[CodeLibrary] = []
        self._module = _parsed(self.create_ir_module(name))  # type: ignore[no-untyped-call]

    def add_ir_module(self, ir_module: Any) -> None:
        module = _parsed(ir_module)
        _tidy_functions(module)
        self._module.link_in(module)

    def add_linking_library(self, library: CodeLibrary) -> None:
        self._callees.append(library)

    def finalize(self) -> None:
        """Nothing is linked before the entry is there."""
        _let_repeat(self._module)
        self._finalized = True

    def machine_code(self, entry: str) -> bytes:
        """Return the object file of the function named `entry` and of all that it calls."""
        module = self._linked()
        for function in module.functions:
            if not function.is_declaration:
                function.linkage = "external" if function.name == entry else "private"
        _optimize(module)
        module.verify()
        if any(_ALLOCATE.match(each.name) for each in module.functions):
            raise TypeError("a kernel that allocates arrays, which nobody would free")
        return bytes(_target_machine().emit_object(module))

    def _linked(self) -> ModuleRef:
        """Return a copy with all callees, each once and after all that call it: LLVM leaves out
        what nothing has called until then."""
        module = self._module.clone()
        for library in reversed(self._all_callees({})):
            if isinstance(library, _Library):
                module.link_in(library._module, preserve=True)
            else:
                of_numba: Any = library
                other = binding.parse_assembly(of_numba.get_llvm_str())
                _let_repeat(other)
                module.link_in(other)
        return module

    def _all_callees(self, found: dict[CodeLibrary, None]) -> dict[CodeLibrary, None]:
        """Each after all that it calls."""
        for library in self._callees:
            if library not in found:
                if isinstance(library, _Library):
                    library._all_callees(found)
                found[library] = None
        return found

    def _get_module_for_linking(self) -> ModuleRef:
        """Other code of numba calls it."""
        if self._with_callees is None:
            self._with_callees = self._linked()
        return self._with_callees

    def get_function(self, name: str) -> Any:
        return self._module.get_function(name)

    def get_pointer_to_function(self, name: str) -> int:
        """Null: there is no machine code that numba could call."""
        return 0

    def get_llvm_str(self) -> str:
        return str(self._module)

    def get_asm_str(self) -> str:
        return str(_target_machine().emit_assembly(self._module))


def _parsed(module: Any) -> ModuleRef:
    parsed = binding.parse_assembly(str(module))
    parsed.name = module.name
    if is_for_another_machine():  # layouts of data are the same on all that we compile for
        machine = _target_machine()
        parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
    return parsed


def _let_repeat(module: ModuleRef) -> None:
    for function in module.functions:
        if not function.is_declaration:
            function.linkage = "linkonce_odr"


@cache
def _target_machine() -> Any:
    """Return LLVM's own of the processor that code is for, which may be one of another machine."""
    triple = binding.get_process_triple()
    if is_for_another_machine():
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        triple = f"{target_machine()}-unknown-linux-gnu"
    target = binding.Target.from_triple(triple)
    name, features = _config.CPU_NAME, _config.CPU_FEATURES
    if features is None:
        features = binding.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=name or binding.get_host_cpu_name(),
        features=features,
        opt=_OPTIMIZATION,
        reloc=relocation_of(target),
        codemodel="jitdefault",
        jit=True,
    )


def _pass_builder(level: int, *, vectorize: bool) -> Any:
    tuning = binding.create_pipeline_tuning_options(level)
    tuning.loop_vectorization, tuning.slp_vectorization = vectorize, False
    return binding.create_pass_builder(_target_machine(), tuning)


def _tidy_functions(module: ModuleRef) -> None:
    builder = _pass_builder(_OPTIMIZATION, vectorize=True)
    passes = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def _optimize(module: ModuleRef) -> None:
    builder = _pass_builder(0, vectorize=False)
    tidy = builder.getModulePassManager()
    tidy.add_loop_rotate_pass()  # without this round long prompts take 1.06 of their time
    tidy.add_instruction_combine_pass()
    tidy.add_jump_threading_pass()
    tidy.run(module, builder)
    builder = _pass_builder(_OPTIMIZATION, vectorize=True)
    builder.getModulePassManager().run(module, builder)


def compile_kernel(function: Callable[..., Any], signature: str, options: Options) -> MachineCode:
    """Raises what numba raises for what cannot be compiled."""
    dispatcher = _njit(pipeline_class=Pipeline, no_cfunc_wrapper=True, **options)(function)
    with _unoptimized_code():
        dispatcher.compile(signature)
        (made,) = dispatcher.overloads.values()
        assert not made.environment.consts, "entries run without the constants of an environment"
        symbol = made.fndesc.llvm_cpython_wrapper_name
        return MachineCode(symbol, made.fndesc.env_name, made.library.machine_code(symbol))


@contextmanager
def _unoptimized_code() -> Iterator[None]:
    """Meanwhile numba leaves the code of every function to a `_Library`."""
    codegen = cpu_target.target_context.codegen()
    codegen.create_library = lambda name: _Library(codegen, name)
    codegen.set_env = lambda name, environment: None  # there is no machine code that has one
    try:
        yield
    finally:
        del codegen.create_library, codegen.set_env  # those of its class again


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
