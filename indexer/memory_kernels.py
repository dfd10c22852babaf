"""Memory for kernels, none of which owns an array: on the stack, or taken and given back in one.

The functions of the C library are symbols that are resolved when a kernel is linked, so that its
machine code can be kept.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import InKernels, intrinsic


@intrinsic
def pointer(typingctx, address):
    """An address as `carray` takes it."""
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


def on_stack(dtype: str, length: int) -> InKernels:
    """() -> an array of undefined content, which lasts until the function returns that asked."""

    def array(typingctx):
        from llvmlite import ir
        from numba import types
        from numba.core import cgutils
        from numba.np.arrayobj import make_array, populate_array

        kind = types.Array(getattr(types, dtype), 1, "C")

        def codegen(context, builder, signature, args):
            item, word = context.get_data_type(kind.dtype), context.get_value_type(types.intp)
            place = cgutils.alloca_once(builder, ir.ArrayType(item, length))
            made = make_array(kind)(context, builder)
            size = ir.Constant(word, context.get_abi_sizeof(item))
            populate_array(
                made,
                data=builder.bitcast(place, item.as_pointer()),
                shape=(ir.Constant(word, length),),
                strides=(size,),
                itemsize=size,
                meminfo=None,
            )
            return made._getvalue()

        return kind(), codegen

    return intrinsic(array)


@intrinsic
def take_zeroed(typingctx, n_bytes):
    """The address of as many bytes, all 0; 0 when there are none left.  `give_back` is due."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        kind = ir.FunctionType(cgutils.voidptr_t, (word, word))
        take = cgutils.get_or_insert_function(builder.module, kind, "calloc")
        place = builder.call(take, (args[0], ir.Constant(word, 1)))
        return builder.ptrtoint(place, word)

    return types.int64(types.int64), codegen


@intrinsic
def give_back(typingctx, address):
    """Of `take_zeroed`; nothing is done with 0."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), (cgutils.voidptr_t,))
        free = cgutils.get_or_insert_function(builder.module, kind, "free")
        builder.call(free, (builder.inttoptr(args[0], cgutils.voidptr_t),))
        return context.get_dummy_value()

    return types.void(types.int64), codegen
