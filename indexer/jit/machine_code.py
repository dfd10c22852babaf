"""Loader of machine code as Python callables, without importing numba.

Importing numba and setting up the compiler takes longer than the rest of a start, and is left out
once kernels are compiled.  Numba turns a kernel into an object file; LLVM links the file here
against Python and against numba's C helpers, extension modules that need none of numba's Python
code.  Calls go straight to the entry that numba generated, in a tenth of the time that numba's
dispatcher needs to compare types.  So types are not compared: an array with a layout other than the
signature's is misread (`compiled` has a test mode for that).

Source: numba.core.base, numba.core.cpu, numba.core.codegen and numba.core.runtime.nrt of the
versions that pyproject.toml allows.
"""

import builtins
import ctypes
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from llvmlite import binding

NUMBA = importlib.util.find_spec("numba")


class MachineCode(NamedTuple):
    """Machine code of a compiled kernel."""

    entry: str
    """symbol of the function that Python calls"""
    environment: str
    """symbol of the pointer to the Python objects that the entry needs"""
    object_file: bytes


def link_code(code: MachineCode, module: str, name: str) -> Callable[..., Any]:
    """Link machine code and return a callable; module, name: those of the Python function it
    replaces.
    """
    engine = _new_engine()
    engine.add_object_file(binding.ObjectFileRef.from_data(code.object_file))
    # The first look-up links the object file.  `finalize_object` would do more: it runs the code
    # generator for the engine's empty module, which takes longer than all the rest.
    address = engine.get_function_address(code.entry)
    functions = _load_extension("_dynfunc")
    environment = functions.Environment({})
    pointer = ctypes.c_void_p.from_address(engine.get_global_value_address(code.environment))
    pointer.value = id(environment)
    # The callable owns engine and environment: freeing the engine would unmap its code.
    kept = (engine, environment)
    made: Callable[..., Any] = functions.make_function(
        sys.modules[module], name, "", address, environment, kept
    )
    return made


def _new_engine() -> Any:
    """Return a new LLVM engine.  Each kernel has its own, as two kernels may have helpers of one
    name.
    """
    _register_symbols()
    target = binding.Target.from_triple(binding.get_process_triple())
    machine = target.create_target_machine(
        jit=True, reloc=relocation_model(target), codemodel="jitdefault"
    )
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


def relocation_model(target: Any) -> str:
    return "static" if target.name.startswith("x86") else "default"


@cache
def _register_symbols() -> None:
    """Register the symbols that the code of kernels refers to with LLVM."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.add_symbol("_Py_NoneStruct", id(None))
    for name, value in vars(builtins).items():
        if isinstance(value, type) and issubclass(value, BaseException):
            binding.add_symbol(f"PyExc_{name}", id(value))
    for extension in ("_helperlib", "_dynfunc"):
        for name, address in _load_extension(extension).c_helpers.items():
            binding.add_symbol(f"numba_{name}", address)
    for name, address in _load_extension("core.runtime._nrt_python").c_helpers.items():
        binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@cache
def _load_extension(name: str) -> ModuleType:
    """Load an extension module of numba without the package around it."""
    assert NUMBA is not None
    assert NUMBA.origin is not None
    path = next(Path(NUMBA.origin).parent.glob(f"{name.replace('.', '/')}.*.so"))
    loader = ExtensionFileLoader(f"numba.{name}", str(path))
    spec = importlib.util.spec_from_file_location(f"numba.{name}", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
