"""Memory for kernels, which own no arrays: stack arrays, blocks allocated and freed in one kernel,
and words of bytes.

The functions of the C library are symbols resolved when a kernel is linked, so that its machine
code can be cached.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import KernelOnly, compiled, intrinsic

U = np.uint64


@intrinsic
def as_pointer(typingctx, address):
    """Return an address in the form that `carray` takes."""
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


def pointer_to(context, builder, kind, array, at, target):
    """Return a pointer to the element `at` bytes after the beginning of an array."""
    from numba.core import cgutils

    begin = context.make_array(kind)(context, builder, array).data
    return cgutils.pointer_add(builder, begin, at, target.as_pointer())


def emit_load(context, builder, kind, array, at, target):
    """Emit an unaligned load."""
    value = builder.load(pointer_to(context, builder, kind, array, at, target))
    value.align = 1
    return value


def emit_store(context, builder, kind, array, at, value):
    """Emit an unaligned store."""
    builder.store(value, pointer_to(context, builder, kind, array, at, value.type)).align = 1


@intrinsic
def _word(typingctx, data, at):
    from llvmlite import ir
    from numba import types

    def codegen(context, builder, signature, args):
        return emit_load(context, builder, signature.args[0], *args, ir.IntType(64))

    return types.uint64(data, types.int64), codegen


@compiled(forceinline=True)
def word_at(data, at):
    """Return eight bytes as a number, the first byte lowest."""
    _first, _last = data[U(at)], data[U(at + 7)]
    return _word(data, at)


def stack_array(dtype: str, length: int) -> KernelOnly:
    """Return a helper that makes a stack array of undefined content, valid in the calling
    function.
    """

    def array(typingctx):
        from llvmlite import ir
        from numba import types
        from numba.core import cgutils
        from numba.np.arrayobj import make_array, populate_array

        kind = types.Array(getattr(types, dtype), 1, "C")

        def codegen(context, builder, signature, args):
            item, word = context.get_data_type(kind.dtype), context.get_value_type(types.intp)
            # alloca_once puts the array into the entry block, so that a loop does not grow the
            # stack.
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
def calloc(typingctx, n_bytes):
    """Allocate zeroed bytes; return the address, or 0 without memory.  Requires a later
    `free`.
    """
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
def free(typingctx, address):
    """Free memory of `calloc`; the address 0 is ignored."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), (cgutils.voidptr_t,))
        free = cgutils.get_or_insert_function(builder.module, kind, "free")
        builder.call(free, (builder.inttoptr(args[0], cgutils.voidptr_t),))
        return context.get_dummy_value()

    return types.void(types.int64), codegen
