"""What numba does to a kernel before LLVM has it, and nothing besides.

Three quarters of compiling were numba's own work in Python, and half of that does nothing to a
kernel.  Inside `only_what_kernels_need`

*   a function goes through the passes of `Pipeline` only,
*   what a call of a certain function with arguments of certain types returns is found out once, and
    not in every function and every round of type inference again,
*   nobody is told of every lock that is taken.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numba.core import event, ir_utils, ssa, transforms, types
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.registry import cpu_target
from numba.core.typed_passes import (
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    FixupArgs,
    GenericRewrites,
    ReconstructSSA,
    TranslateByteCode,
)

from indexer.kernel_lowering import Lowering

_typing: Any = cpu_target.typing_context
_events: Any = event
_register_pass: Any = register_pass
_loops_of_one_way_back: Any = transforms.canonicalize_cfg
_with_one_assignment_each: Any = ssa.reconstruct_ssa
_definitions: Any = ir_utils.build_definitions
_Resolve = Callable[[Any, Any, Any], Any]


class _Passes(PassManager):
    _ENFORCING = False
    """No analysis of lifetimes after each pass: those that need it make it."""


@_register_pass(mutates_CFG=True, analysis_only=False)
class OneWayBack(FunctionPass):
    """What the analysis of lifetimes does besides: a loop goes back to its begin in one place."""

    _name = "kernel_loops"

    def __init__(self) -> None:
        """Numba wants every pass to have one."""

    def run_pass(self, state: Any) -> bool:
        state.func_ir.blocks = _loops_of_one_way_back(state.func_ir.blocks)
        return True


@_register_pass(mutates_CFG=False, analysis_only=False)
class AssignedOnce(ReconstructSSA):
    """Without an analysis of lifetimes, for which lowering has no use."""

    _name = "kernel_ssa"

    def run_pass(self, state: Any) -> bool:
        state.func_ir = _with_one_assignment_each(state.func_ir)
        state.func_ir._definitions = _definitions(state.func_ir.blocks)
        return True


@_register_pass(mutates_CFG=False, analysis_only=False)
class WithoutPhis(PreLowerStripPhis):
    """Without it, too."""

    _name = "kernel_phis"

    def run_pass(self, state: Any) -> bool:
        state.func_ir = self._strip_phi_nodes(state.func_ir)  # type: ignore[no-untyped-call]
        return True


class Pipeline(CompilerBase):
    """The passes without which a kernel does not compile.

    Left out: lifetimes of variables, closures, comprehensions, `with`, `try`, unrolling over tuples
    of several types, branches that types decide, exceptions with values that are not constant,
    fused expressions of arrays.  A kernel that needs one of them does not compile, but for the
    first and the last.
    """

    PASSES = (
        TranslateByteCode,
        FixupArgs,
        OneWayBack,
        GenericRewrites,
        AssignedOnce,
        NopythonTypeInference,
        WithoutPhis,
        Lowering,
        NoPythonBackend,
    )

    def define_pipelines(self) -> list[Any]:
        passes: Any = _Passes("kernel")  # type: ignore[no-untyped-call]
        for each in self.PASSES:
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


class Remembered:
    """Types of calls, as `resolve_function_type` of the typing context finds them."""

    def __init__(self, resolve: _Resolve) -> None:
        self._resolve = resolve
        self._found: dict[tuple[Any, tuple[Any, ...]], Any] = {}

    def __call__(self, function: Any, args: tuple[Any, ...], kws: Mapping[str, Any]) -> Any:
        """The signature; None where there is none.  Raises TypingError."""
        ours = isinstance(function, types.Dispatcher)  # compiles it, maybe within itself
        if ours or kws or not all(isinstance(each, types.Type) for each in args):
            return self._resolve(function, args, kws)
        key = function, tuple(args)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._resolve(function, args, kws)
        return found


_remembered = Remembered(_typing.resolve_function_type)


def _tell_nobody(*_: object, **__: object) -> None: ...


@contextmanager
def only_what_kernels_need() -> Iterator[None]:
    started, ended = _events.start_event, _events.end_event
    _events.start_event = _events.end_event = _tell_nobody
    _typing.resolve_function_type = _remembered
    try:
        yield
    finally:
        del _typing.resolve_function_type  # that of its class again
        _events.start_event, _events.end_event = started, ended
