"""Prefetching of cache lines, so that memory latency overlaps with other work."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.jit.decorators import intrinsic


@intrinsic
def prefetch(typingctx, array, at):
    """Prefetch the cache line of array[at].  No other effect, for any value of `at`."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        where = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number]),
            "llvm.prefetch.p0i8",
        )
        # Arguments: write access, highest temporal locality, data cache.
        builder.call(function, [where, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, at), codegen
