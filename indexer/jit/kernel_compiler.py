"""Compiler of kernels, built on numba; imported only where something is compiled.

Every source of the project that shapes machine code, including this module, is part of the
checksum under which the code is cached (`kernel_sources`).
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
from numba.core.types import Array, BaseTuple
from numba.core.typing.typeof import typeof

from indexer.jit.kernel_sources import is_for_another_machine, target_machine
from indexer.jit.machine_code import MachineCode, relocation_model

Options = Mapping[str, Any]

# These parts of numba have no annotations, or wrong annotations.
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
"""Names of the functions with which numba allocates."""
_OPTIMIZATION = 3


@_register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(_Lowering):  # type: ignore[misc]
    """Numba's lowering pass without reference counting.

    Numba counts the references to every array to free unused arrays.  Kernels own no memory: their
    arrays belong to the caller or to the index, or are on the stack (`memory_kernels`).
    """

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Run this pass only without counting: numba requires counting in functions that return
        arrays.
        """
        of_numba = state.targetctx
        state.targetctx = of_numba.subtarget(enable_nrt=False)
        try:
            return bool(super().run_pass(state))
        finally:
            state.targetctx = of_numba


class KernelPipeline(CompilerBase):
    """Compiler passes of numba with the other lowering."""

    def define_pipelines(self) -> list[Any]:
        passes = _PassManager("kernel")
        for part in (_PassBuilder.define_untyped_pipeline, _PassBuilder.define_typed_pipeline):
            passes.passes.extend(part(self.state).passes)
        for each in (IRLegalization, KernelLowering, NoPythonBackend):
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


class _Library(CodeLibrary):
    """Code of a function, to be linked into the entry that calls it.

    Numba would optimize each helper together with everything it calls, level by level up to the
    entry, and emit machine code for each, which took most of the compile time.  Here a helper is
    its own code alone, tidied once; all helpers are linked into the entry and optimized there.
    Everything but the wrapper that Python calls is private there: LLVM then knows every caller,
    makes better code and drops inlined functions.  LLVM may also change the calling convention of a
    private function, so no other code may call such a function by name.
    """

    _with_callees: ModuleRef | None = None

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self._callees: list[CodeLibrary] = []
        self._module = _parse_module(self.create_ir_module(name))  # type: ignore[no-untyped-call]

    def add_ir_module(self, ir_module: Any) -> None:
        module = _parse_module(ir_module)
        _tidy_functions(module)
        self._module.link_in(module)

    def add_linking_library(self, library: CodeLibrary) -> None:
        # Unfinished code could be linked only once, but numba's code may reach it on several ways.
        library._ensure_finalized()  # type: ignore[no-untyped-call]
        self._callees.append(library)

    def finalize(self) -> None:
        """Finish the code of this function; linking happens when the entry is complete."""
        _allow_duplicates(self._module)
        self._finalized = True

    def emit_machine_code(self, entry: str) -> bytes:
        """Return the object file of the function named `entry` and of all that it calls."""
        module = self._link_callees()
        for function in module.functions:
            if not function.is_declaration:
                function.linkage = "external" if function.name == entry else "private"
        _optimize_module(module)
        module.verify()
        # Without reference counting nothing would ever free such an array.
        if any(_ALLOCATE.match(each.name) for each in module.functions):
            raise TypeError("the kernel allocates arrays, which would never be freed")
        return bytes(_target_machine().emit_object(module))

    def _link_callees(self) -> ModuleRef:
        """Return a copy with all callees, each once and after all of its callers.

        The order matters: LLVM leaves out functions that nothing has called until then.
        """
        module = self._module.clone()
        for library in reversed(self._all_callees({})):
            if isinstance(library, _Library):
                # A library takes part in several entries, so its module must survive the linking.
                module.link_in(library._module, preserve=True)
            else:
                of_numba: Any = library
                other = binding.parse_assembly(of_numba.get_llvm_str())
                _allow_duplicates(other)
                module.link_in(other)
        return module

    def _all_callees(self, found: dict[CodeLibrary, None]) -> dict[CodeLibrary, None]:
        """Collect the direct and indirect callees, each after its own callees."""
        for library in self._callees:
            if library not in found:
                if isinstance(library, _Library):
                    library._all_callees(found)
                found[library] = None
        return found

    def _get_module_for_linking(self) -> ModuleRef:
        """Return the linked code; called by numba."""
        if self._with_callees is None:
            self._with_callees = self._link_callees()
        return self._with_callees

    def get_function(self, name: str) -> Any:
        return self._module.get_function(name)

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0, since there is no machine code that numba could call."""
        return 0

    def get_llvm_str(self) -> str:
        return str(self._module)

    def get_asm_str(self) -> str:
        return str(_target_machine().emit_assembly(self._module))


def _parse_module(module: Any) -> ModuleRef:
    parsed = binding.parse_assembly(str(module))
    parsed.name = module.name
    if is_for_another_machine():  # data layouts are equal on all supported target machines
        machine = _target_machine()
        parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
    return parsed


def _allow_duplicates(module: ModuleRef) -> None:
    for function in module.functions:
        if not function.is_declaration:
            function.linkage = "linkonce_odr"


@cache
def _target_machine() -> Any:
    """Return LLVM's description of the target processor, possibly of another architecture."""
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
        reloc=relocation_model(target),
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


def _optimize_module(module: ModuleRef) -> None:
    builder = _pass_builder(0, vectorize=False)
    tidy = builder.getModulePassManager()
    tidy.add_loop_rotate_pass()  # without this round, long prompts take 1.06 times as long
    tidy.add_instruction_combine_pass()
    tidy.add_jump_threading_pass()
    tidy.run(module, builder)
    builder = _pass_builder(_OPTIMIZATION, vectorize=True)
    builder.getModulePassManager().run(module, builder)


def compile_kernel(function: Callable[..., Any], signature: str, options: Options) -> MachineCode:
    """Compile a function for a signature.  Raises the errors of numba for code that cannot
    compile.
    """
    dispatcher = _njit(pipeline_class=KernelPipeline, no_cfunc_wrapper=True, **options)(function)
    with _unoptimized_code():
        dispatcher.compile(signature)
        (made,) = dispatcher.overloads.values()
        assert not made.environment.consts, "entries run without the constants of an environment"
        symbol = made.fndesc.llvm_cpython_wrapper_name
        return MachineCode(symbol, made.fndesc.env_name, made.library.emit_machine_code(symbol))


@contextmanager
def _unoptimized_code() -> Iterator[None]:
    """Make numba pass the code of every function to a `_Library`, within the block."""
    codegen = cpu_target.target_context.codegen()
    codegen.create_library = lambda name: _Library(codegen, name)
    codegen.set_env = lambda name, environment: (
        None
    )  # no machine code exists that could have an environment
    try:
        yield
    finally:
        del codegen.create_library, codegen.set_env  # restores the methods of the class


def make_helper(function: Callable[..., Any], options: Options) -> Any:
    """Return a function that becomes part of the kernels that call it.

    The function is compiled once per types of its arguments; numba would compile once per constant.
    """
    without = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    made = _njit(pipeline_class=KernelPipeline, **without, **options)(function)
    template_of = made.get_call_template

    def template(args: Iterable[Any], kws: Mapping[str, Any]) -> Any:
        return template_of([*map(_unliteral, args)], {k: _unliteral(v) for k, v in kws.items()})

    made.get_call_template = template
    return made


def numba_type_of(thing: object) -> Any:
    """Return the type of one of numba's objects inside a kernel."""
    _typing.refresh()  # the object may have been registered a moment ago
    return _typing.resolve_value_type(thing)


def register_entry(entry: Callable[..., Any], helper: object) -> None:
    """Let kernels call `helper` wherever their source calls `entry`."""
    _typing.insert_global(entry, numba_type_of(helper))


def _flatten(values: Iterable[Any], tuples: Any) -> list[Any]:
    """Return the values, with the members of those that are tuples in their place."""
    return [each for value in values for each in (value if isinstance(value, tuples) else [value])]


def with_argument_checks(entry: Callable[..., Any], signature: str) -> Callable[..., Any]:
    """Return `entry` with a check of its arguments against the signature.  It raises TypeError."""
    expected, _ = _normalize_signature(signature)
    arrays = [
        each for each in enumerate(_flatten(expected, BaseTuple)) if isinstance(each[1], Array)
    ]
    # Comparing types is slow, so each layout of an argument is compared once.
    fits: set[tuple[object, ...]] = set()

    def checked(*given: object) -> Any:
        if len(given) != len(expected):
            raise TypeError(f"{len(given)} arguments given, {len(expected)} expected")
        values = _flatten(given, tuple)
        for place, type_ in arrays:
            array = values[place]
            if not isinstance(array, np.ndarray):
                raise TypeError(f"argument {place} is not an array: {array!r}")
            layout = (place, array.dtype, array.ndim, array.flags.num)
            if layout not in fits:
                if _typing.can_convert(_typeof(array), type_) is None:
                    raise TypeError(f"argument {place} is {_typeof(array)}, expected {type_}")
                fits.add(layout)
        return entry(*given)

    return checked
