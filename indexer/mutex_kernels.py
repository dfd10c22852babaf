"""A pthread mutex by its address: helpers for kernels, and the entries behind `mutex.Mutex`.

The functions of the C library are symbols that are resolved when a kernel is linked, so that its
machine code can be kept.  The address 0 is no mutex: taking and giving it back costs one branch.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled, intrinsic

OURS = -1
"""Of `enter`, instead of a thread: the mutex was ours before, and stays."""


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


@intrinsic
def _has_interpreter(typingctx):
    """1: this thread has the interpreter lock."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(32), ())
        check = cgutils.get_or_insert_function(builder.module, kind, "PyGILState_Check")
        return builder.sext(builder.call(check, ()), ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def _leave_interpreter(typingctx):
    """Give the interpreter lock back.  Returns what brings this thread back to it."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(cgutils.voidptr_t, ())
        leave = cgutils.get_or_insert_function(builder.module, kind, "PyEval_SaveThread")
        return builder.ptrtoint(builder.call(leave, ()), ir.IntType(64))

    return types.int64(), codegen


@intrinsic
def _return_to_interpreter(typingctx, thread):
    """Wait for the interpreter lock."""
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
def acquire(address):
    """Take it, and wait for that.  For kernels without the interpreter lock, and for no other."""
    if address != 0:
        _lock(address)


@compiled()
def release(address):
    """Give back what `acquire` took."""
    if address != 0:
        _unlock(address)


@compiled()
def enter(address):
    """Take it, in whatever kernel.  What it returns is for `leave`.

    The interpreter lock, if it is held, is let go only where we have to wait, until `leave`.
    """
    if address == 0 or _try_lock(address) == 0:
        return 0
    thread = _leave_interpreter() if _has_interpreter() != 0 else 0
    if _lock(address) == 0:
        return thread
    if thread != 0:
        _return_to_interpreter(thread)
    return OURS


@compiled()
def leave(address, thread):
    """Give back what `enter` took, then come back to the interpreter."""
    if address != 0 and thread != OURS:
        _unlock(address)
        if thread != 0:
            _return_to_interpreter(thread)


@compiled()
def stay(thread):
    """Instead of `leave`: come back to the interpreter, and keep what `enter` took."""
    if thread != 0 and thread != OURS:
        _return_to_interpreter(thread)


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
