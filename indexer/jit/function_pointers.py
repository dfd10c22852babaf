"""Compiled functions that kernels call by address instead of containing a copy.

A function shared by several large kernels is compiled once, in an entry that exports its address;
other kernels read the address at run time from a header and call it.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.jit.decorators import KernelOnly, intrinsic


def export_function(signature: str, helper: KernelOnly) -> tuple[KernelOnly, KernelOnly]:
    """Return (address, call) of a helper, both for kernels; signature: as for `compiled`.

    address: () -> int64; the kernel that evaluates this contains the helper, at a fixed address
    call:    (address, tuple of arguments) -> result of the helper; its errors propagate
    """
    return function_address(signature, helper), function_call(signature)


def function_address(signature: str, helper: KernelOnly) -> KernelOnly:
    """Return the `address` function of `export_function`."""
    return _make_address(signature, helper)


def function_call(signature: str) -> KernelOnly:
    """Return the `call` function of `export_function`, for any helper with this signature."""
    return _make_call(signature)


def _types_of(signature):
    from numba.core.sigutils import normalize_signature

    return normalize_signature(signature)


def _make_address(signature, helper):
    def address(typingctx):
        from llvmlite import ir
        from numba import types

        expected, _ = _types_of(signature)

        def codegen(context, builder, _signature, _args):
            dispatcher = helper._compiled_object
            dispatcher.get_call_template(expected, {})
            made = dispatcher.overloads[expected]
            # Without this link the optimizer would drop the helper, which no code of the entry
            # calls.
            context.active_code_library.add_linking_library(made.library)
            function = context.declare_function(builder.module, made.fndesc)
            return builder.ptrtoint(function, ir.IntType(64))

        return types.int64(), codegen

    return intrinsic(address)


def _make_call(signature):
    def call(typingctx, address, arguments):
        from numba import types
        from numba.core import cgutils

        expected, returned = _types_of(signature)

        def codegen(context, builder, made, args):
            given = zip(cgutils.unpack_tuple(builder, args[1]), made.args[1], expected, strict=True)
            values = [context.cast(builder, *value) for value in given]
            convention = context.call_conv
            kind = convention.get_function_type(returned, expected).as_pointer()
            function = builder.inttoptr(args[0], kind)
            status, value = convention.call_function(builder, function, returned, expected, values)
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return value

        return returned(types.int64, arguments), codegen

    return intrinsic(call)
