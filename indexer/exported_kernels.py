"""Compiled functions that other kernels call by their address instead of containing a copy.

What several large kernels need is compiled once, in an entry that says its address; others get the
address at run time, from a header, and call it there.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import InKernels, intrinsic


def exported(signature: str, helper: InKernels) -> tuple[InKernels, InKernels]:
    """(address, call) of a helper, for kernels; its signature in the words of `compiled`.

    address: () -> int64; the helper becomes part of the kernel that asks, and stays where it is.
    call:    (address, tuple of arguments) -> what the helper returns, errors too.
    """
    return address_of(signature, helper), call_of(signature)


def address_of(signature: str, helper: InKernels) -> InKernels:
    """The first of `exported`."""
    return _address_of(signature, helper)


def call_of(signature: str) -> InKernels:
    """The second of `exported`, for whatever has such a signature."""
    return _call_of(signature)


def _types_of(signature):
    from numba.core.sigutils import normalize_signature

    return normalize_signature(signature)


def _address_of(signature, helper):
    def address(typingctx):
        from llvmlite import ir
        from numba import types

        expected, _ = _types_of(signature)

        def codegen(context, builder, _signature, _args):
            dispatcher = helper._made
            dispatcher.get_call_template(expected, {})
            made = dispatcher.overloads[expected]
            context.active_code_library.add_linking_library(made.library)
            function = context.declare_function(builder.module, made.fndesc)
            return builder.ptrtoint(function, ir.IntType(64))

        return types.int64(), codegen

    return intrinsic(address)


def _call_of(signature):
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
