"""How numba's representation of a kernel becomes that of LLVM.

Numba counts the references to every array, so that what a function allocates goes when nobody has
it any more.  No kernel owns memory: its arrays are its caller's, parts of what the index owns, or
on its stack (`memory_kernels`).  So nothing is counted here, and nothing is needed to know when a
variable ends.  What is assigned in one place is LLVM's own name and needs no place on the stack,
which LLVM would have to take away again.  Both together make half as much code for LLVM.
"""

from collections import Counter
from typing import Any

from numba.core import cgutils, compiler_machinery, ir, lowering, typed_passes, types
from numba.np import arrayobj

# None of these has annotations.
_arrays: Any = arrayobj
_register_pass: Any = compiler_machinery.register_pass
_OfNumba: Any = lowering.Lower
_PassOfNumba: Any = typed_passes.NativeLowering
_unpacked: Any = cgutils.unpack_tuple


class _Lower(_OfNumba):  # type: ignore[misc]
    """Of one function."""

    def _find_singly_assigned_variable(self) -> None:
        """Those whose only assignment comes before all that uses them, also as they are lowered.

        After SSA reconstruction it is on every way to what uses them.
        """
        times: Counter[str] = Counter()
        early = set()
        for _, block in sorted(self.blocks.items()):
            for statement in block.body:
                target = statement.target.name if isinstance(statement, ir.Assign) else None
                for variable in statement.list_vars():
                    if variable.name not in times and variable.name != target:
                        early.add(variable.name)
                if target is not None:
                    times[target] += 1
        self._singly_assigned_vars = {name for name in times if times[name] == 1} - early
        self._blk_local_varmap: dict[str, Any] = {}

    def pre_block(self, block: Any) -> None:
        """No kernel catches exceptions, which is what numba looks for here."""

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def lower_inst(self, inst: Any) -> None:
        if isinstance(inst, ir.StaticSetItem) and self._is_array(inst.target):
            signature = self.fndesc.calltypes[inst]
            self.lower_setitem(inst.target, inst.index_var, inst.value, signature)
        else:
            super().lower_inst(inst)

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        if expr.op == "static_getitem" and self._is_array(expr.value) and expr.index_var:
            signature = self.fndesc.calltypes[expr]
            return self.lower_getitem(resty, expr, expr.value, expr.index_var, signature)
        return super().lower_expr(resty, expr)

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        place = self._place_of(value, index)
        if place is None:
            return super().lower_getitem(resty, expr, value, index, signature)
        array = self.typeof(value.name)
        item = _arrays.load_item(self.context, self.builder, array, place)
        return self.context.cast(self.builder, item, array.dtype, resty)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        place = self._place_of(target_var, index_var)
        if place is None:
            return super().lower_setitem(target_var, index_var, value_var, signature)
        array, given = self.typeof(target_var.name), self.typeof(value_var.name)
        value = self.loadvar(value_var.name)
        for kind in (signature.args[2], array.dtype):
            value, given = self.context.cast(self.builder, value, given, kind), kind
        return _arrays.store_item(self.context, self.builder, array, value, place)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        if not expr.static_lhs is expr.static_rhs is ir.UNDEFINED:
            return super().lower_binop(resty, expr, op)
        types_of_context = self.context.typing_context
        function, expected = types_of_context.resolve_value_type(op), self.fndesc.calltypes[expr]
        operands = [
            self.context.cast(self.builder, self.loadvar(each.name), self.typeof(each.name), kind)
            for each, kind in zip((expr.lhs, expr.rhs), expected.args, strict=True)
        ]
        signature = types_of_context.resolve_function_type(function, expected.args, {})
        result = self.context.get_function(function, signature)(self.builder, operands)
        return self.context.cast(self.builder, result, expected.return_type, resty)

    def _is_array(self, variable: Any) -> bool:
        return isinstance(self.typeof(variable.name), types.Array)

    def _place_of(self, array: Any, index: Any) -> Any:
        """Pointer to a number in a contiguous array; None if that is not what is indexed."""
        kind, kinds = self.typeof(array.name), self.typeof(index.name)
        is_tuple = isinstance(kinds, types.BaseTuple)
        if not (
            isinstance(kind, types.Array)
            and kind.layout == "C"
            and isinstance(kind.dtype, types.Number | types.Boolean)
            and not self.context.enable_boundscheck
        ):
            return None
        kinds = tuple(kinds) if is_tuple else (kinds,)
        if len(kinds) != kind.ndim or not all(isinstance(each, types.Integer) for each in kinds):
            return None
        builder, given = self.builder, self.loadvar(index.name)
        indices = _unpacked(builder, given) if is_tuple else [given]
        shape = self._field(array, kind, "shape")
        place = None
        for axis, (of, index) in enumerate(zip(kinds, indices, strict=True)):
            length = builder.extract_value(shape, axis)
            at = _arrays.fix_integer_index(self.context, builder, of, index, length)
            place = at if place is None else builder.add(builder.mul(place, length), at)
        return builder.gep(self._field(array, kind, "data"), [place])

    def _field(self, array: Any, kind: Any, name: str) -> Any:
        place = self.context.data_model_manager[kind].get_field_position(name)
        return self.builder.extract_value(self.loadvar(array.name), place)


@_register_pass(mutates_CFG=True, analysis_only=False)
class Lowering(_PassOfNumba):  # type: ignore[misc]
    """The pass."""

    _name = "kernel_lowering"

    @property
    def lowering_class(self) -> type[_Lower]:
        return _Lower

    def run_pass(self, state: Any) -> bool:
        """Only here, because numba lets no function that counts nothing return an array."""
        of_numba = state.targetctx
        state.targetctx = of_numba.subtarget(enable_nrt=False)
        try:
            return bool(super().run_pass(state))
        finally:
            state.targetctx = of_numba
