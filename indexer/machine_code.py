"""Machine code of kernels as callables of this process, without numba.

Importing numba and setting its compiler up takes longer than all the rest of a start, and nothing
of it runs once kernels are compiled.  What numba makes of a kernel is an object file; LLVM links it
here against Python and against the C helpers of numba, which are extension modules that need none
of its Python code.  Calls then go straight to the entry that numba generated, which takes a tenth
of the time that numba's dispatcher takes to compare types.  So nothing compares them: an array of
another layout than the signature's is misread (`compiled` says how tests notice).

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
    """A compiled kernel."""

    entry: str
    """symbol of the function that Python calls"""
    environment: str
    """symbol of the pointer to what the entry keeps of Python"""
    object_file: bytes


def load(code: MachineCode, module: str, name: str) -> Callable[..., Any]:
    """A callable; module, name: of the Python function it stands for."""
    engine = _engine()
    engine.add_object_file(binding.ObjectFileRef.from_data(code.object_file))
    engine.finalize_object()
    functions = _extension("_dynfunc")
    environment = functions.Environment({})
    pointer = ctypes.c_void_p.from_address(engine.get_global_value_address(code.environment))
    pointer.value = id(environment)
    address = engine.get_function_address(code.entry)
    kept = (engine, environment)
    made: Callable[..., Any] = functions.make_function(
        sys.modules[module], name, "", address, environment, kept
    )
    return made


def _engine() -> Any:
    """One per kernel: two may have helpers of one name."""
    _prepare()
    target = binding.Target.from_triple(binding.get_process_triple())
    machine = target.create_target_machine(
        jit=True, reloc=relocation_of(target), codemodel="jitdefault"
    )
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


def relocation_of(target: Any) -> str:
    return "static" if target.name.startswith("x86") else "default"


@cache
def _prepare() -> None:
    """Make known to LLVM what the code of kernels refers to."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.add_symbol("_Py_NoneStruct", id(None))
    for name, value in vars(builtins).items():
        if isinstance(value, type) and issubclass(value, BaseException):
            binding.add_symbol(f"PyExc_{name}", id(value))
    for extension in ("_helperlib", "_dynfunc"):
        for name, address in _extension(extension).c_helpers.items():
            binding.add_symbol(f"numba_{name}", address)
    for name, address in _extension("core.runtime._nrt_python").c_helpers.items():
        binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@cache
def _extension(name: str) -> ModuleType:
    """An extension module of numba, without the package around it."""
    assert NUMBA is not None
    assert NUMBA.origin is not None
    path = next(Path(NUMBA.origin).parent.glob(f"{name.replace('.', '/')}.*.so"))
    loader = ExtensionFileLoader(f"numba.{name}", str(path))
    spec = importlib.util.spec_from_file_location(f"numba.{name}", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
