"""A pthread mutex by its address: helpers for kernels, and the entries of `mutex.Mutex`.

The functions of the C library are symbols resolved when a kernel is linked, so that its machine
code can be cached.  The address 0 means no mutex: taking and releasing it cost one branch.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.jit.decorators import compiled, intrinsic

ALREADY_LOCKED = -1
"""Result of `lock_mutex` if this thread held the mutex before; `leave` then does nothing."""


def _pthread_function(name):
    """Return an intrinsic int64 -> int64 that calls a pthread function with the mutex address."""

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


_lock = _pthread_function("pthread_mutex_lock")
_try_lock = _pthread_function("pthread_mutex_trylock")
_unlock = _pthread_function("pthread_mutex_unlock")


@intrinsic
def _has_gil(typingctx):
    """Return 1 if this thread holds the interpreter lock."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(32), ())
        check = cgutils.get_or_insert_function(builder.module, kind, "PyGILState_Check")
        return builder.sext(builder.call(check, ()), ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def _release_gil(typingctx):
    """Release the interpreter lock; return the thread state for `_take_gil`."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(cgutils.voidptr_t, ())
        leave = cgutils.get_or_insert_function(builder.module, kind, "PyEval_SaveThread")
        return builder.ptrtoint(builder.call(leave, ()), ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def _take_gil(typingctx, thread):
    """Wait for the interpreter lock and restore the thread state."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), (cgutils.voidptr_t,))
        back = cgutils.get_or_insert_function(builder.module, kind, "PyEval_RestoreThread")
        builder.call(back, (builder.inttoptr(args[0], cgutils.voidptr_t),))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@compiled()
def lock_mutex(address):
    """Lock the mutex from any kernel; the result is for `unlock_mutex`.

    The interpreter lock is released only if the thread must wait, and then until `unlock_mutex`.
    """
    if address == 0 or _try_lock(address) == 0:
        return 0
    # A holder may need the interpreter lock to finish: waiting with it would be a deadlock.
    thread = _release_gil() if _has_gil() != 0 else 0
    if _lock(address) == 0:
        return thread
    # EDEADLK: this thread locked the mutex in Python already and must not unlock it in
    # `unlock_mutex`.
    if thread != 0:
        _take_gil(thread)
    return ALREADY_LOCKED


@compiled()
def unlock_mutex(address, thread):
    """Unlock a mutex locked by `lock_mutex`, then take a released interpreter lock again."""
    if address != 0 and thread != ALREADY_LOCKED:
        _unlock(address)
        if thread != 0:
            _take_gil(thread)


@compiled()
def keep_mutex(thread):
    """Take the interpreter lock again as `unlock_mutex` does, but keep the mutex for the caller."""
    if thread != 0 and thread != ALREADY_LOCKED:
        _take_gil(thread)


@compiled("int64(int64)")
def try_lock(address):
    """Return 0 if the mutex is locked now; else another thread, or this thread, holds it."""
    return _try_lock(address)


@compiled("int64(int64)", nogil=True)
def lock(address):
    """Wait for the mutex without the interpreter lock.  Return 0, or an error if this thread
    holds it.
    """
    return _lock(address)


@compiled("int64(int64)")
def unlock(address):
    """Unlock the mutex.  Return 0, or an error if this thread does not hold it."""
    return _unlock(address)
