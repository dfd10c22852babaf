"""A pthread mutex by its address: helpers for kernels, and the entries behind `mutex.Mutex`.

The functions of the C library are symbols that are resolved when a kernel is linked, so that its
machine code can be kept.  The address 0 is no mutex: taking and giving it back costs one branch.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled, intrinsic


def _pthread(name):
    """int64 -> int64, what the function says of the mutex with this address."""

    def call(typingctx, address):
        from llvmlite import ir
        from numba import types
        from numba.core import cgutils

        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(ir.IntType(32), (cgutils.voidptr_t,))
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            said = builder.call(function, (builder.inttoptr(args[0], cgutils.voidptr_t),))
            return builder.sext(said, ir.IntType(64))

        return types.int64(types.int64), codegen

    call.__name__ = name
    return intrinsic(call)


_lock = _pthread("pthread_mutex_lock")
_try_lock = _pthread("pthread_mutex_trylock")
_unlock = _pthread("pthread_mutex_unlock")


@compiled()
def try_acquire(address):
    """Take it, if nobody has it.  Is it ours now?  For kernels that hold the interpreter lock."""
    return address == 0 or _try_lock(address) == 0


@compiled()
def acquire(address):
    """Take it, and wait for that.  For code without the interpreter lock, and for no other."""
    if address != 0:
        _lock(address)


@compiled()
def release(address):
    """Give it back.  It is ours."""
    if address != 0:
        _unlock(address)


@compiled("int64(int64)")
def try_lock(address):
    """0: it is ours now.  Otherwise somebody has it, perhaps this thread."""
    return _try_lock(address)


@compiled("int64(int64)", nogil=True)
def lock(address):
    """Wait for it, without the interpreter lock.  0, or what is wrong: this thread has it."""
    return _lock(address)


@compiled("int64(int64)")
def unlock(address):
    """Give it back.  0, or what is wrong: this thread does not have it."""
    return _unlock(address)
