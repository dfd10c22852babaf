"""System calls of kernels that serve sockets, and received bytes as the kernels' type of requests.

The functions of the C library are symbols resolved when a kernel is linked, so that its machine
code can be cached.  Linux only.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.jit.decorators import intrinsic


@intrinsic
def read_socket(typingctx, file, address, n_bytes):
    """Call read(2): return the number of bytes stored at the address, 0 at the end, or -1."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        kind = ir.FunctionType(word, (ir.IntType(32), cgutils.voidptr_t, word))
        read = cgutils.get_or_insert_function(builder.module, kind, "read")
        begin = builder.inttoptr(args[1], cgutils.voidptr_t)
        return builder.call(read, (builder.trunc(args[0], ir.IntType(32)), begin, args[2]))

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def poll_events(typingctx, epoll, address, events_max):
    """Call epoll_wait(2) without waiting: return the number of events at the address, or -1."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        number = ir.IntType(32)
        kind = ir.FunctionType(number, (number, cgutils.voidptr_t, number, number))
        wait = cgutils.get_or_insert_function(builder.module, kind, "epoll_wait")
        begin = builder.inttoptr(args[1], cgutils.voidptr_t)
        epoll, events_max = (builder.trunc(args[at], number) for at in (0, 2))
        found = builder.call(wait, (epoll, begin, events_max, ir.Constant(number, 0)))
        return builder.sext(found, ir.IntType(64))

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def bytes_view(typingctx, address, length):
    """Return memory in the type of a Python bytes object, without a copy."""
    from numba import types
    from numba.core import cgutils
    from numba.np import arrayobj

    kind = types.Bytes(types.uint8, 1, "C")

    def codegen(context, builder, signature, args):
        size = context.get_constant(types.intp, 1)
        view = arrayobj.make_array(kind)(context, builder)
        begin = builder.inttoptr(args[0], cgutils.voidptr_t)
        arrayobj.populate_array(
            view,
            data=builder.bitcast(begin, view.data.type),
            shape=[args[1]],
            strides=[size],
            itemsize=size,
            meminfo=None,
        )
        return view._getvalue()

    return kind(types.int64, types.int64), codegen
