"""The functions of the C library that a thread needs which serves sockets.  Linux.

They are symbols that are resolved when a kernel is linked, so that its machine code can be kept.
All take and return int64: descriptors, sizes, flags and addresses alike.

Sources: epoll_ctl(2), accept(2), send(2), eventfd(2); include/uapi/linux/eventpoll.h.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import platform

from indexer.compiled import intrinsic

INT, LONG, ADDRESS, NOTHING = range(4)

EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP = 1, 4, 8, 16
CTL_ADD, CTL_DEL, CTL_MOD = 1, 2, 3
EVENT_WORDS = 3 if platform.machine() == "x86_64" else 4
"""int32 of a struct epoll_event, which has no gap on x86_64 alone."""
EVENT_MARK = EVENT_WORDS - 2
"""Which of them is `data.u32`; the first is `events`."""

EINTR, EAGAIN, ENOMEM, ENFILE, EMFILE, ENOBUFS = 4, 11, 12, 23, 24, 105
MSG_NOSIGNAL = 0x4000
SOCK_NONBLOCK_CLOEXEC = 0o2004000
IPPROTO_TCP, TCP_NODELAY = 6, 1


def _of_llvm(kind):
    from llvmlite import ir
    from numba.core import cgutils

    return (ir.IntType(32), ir.IntType(64), cgutils.voidptr_t, ir.VoidType())[kind]


def _given(builder, word, kind):
    """A word as an argument."""
    if kind == ADDRESS:
        return builder.inttoptr(word, _of_llvm(kind))
    return builder.trunc(word, _of_llvm(kind)) if kind == INT else word


def _said(builder, result, kind):
    """A result as a word."""
    from llvmlite import ir

    word = ir.IntType(64)
    if kind == ADDRESS:
        return builder.ptrtoint(result, word)
    if kind == INT:
        return builder.sext(result, word)
    return ir.Constant(word, 0) if kind == NOTHING else result


def _external(name, result, *kinds):
    """A function of the C library, for kernels: as many int64 as it has arguments -> int64."""

    def typed():
        from llvmlite import ir
        from numba import types
        from numba.core import cgutils

        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(_of_llvm(result), [_of_llvm(each) for each in kinds])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            given = [_given(builder, *each) for each in zip(args, kinds, strict=True)]
            return _said(builder, builder.call(function, given), result)

        return types.int64(*[types.int64 for _ in kinds]), codegen

    # The compiler counts the parameters.
    calls = (
        lambda typingctx: typed(),
        lambda typingctx, a: typed(),
        lambda typingctx, a, b: typed(),
        lambda typingctx, a, b, c: typed(),
        lambda typingctx, a, b, c, d: typed(),
        lambda typingctx, a, b, c, d, e: typed(),
    )
    call = calls[len(kinds)]
    call.__name__ = name
    return intrinsic(call)


epoll_wait = _external("epoll_wait", INT, INT, ADDRESS, INT, INT)
epoll_ctl = _external("epoll_ctl", INT, INT, INT, INT, ADDRESS)
accept4 = _external("accept4", INT, INT, ADDRESS, ADDRESS, INT)
setsockopt = _external("setsockopt", INT, INT, INT, INT, ADDRESS, INT)
recv = _external("recv", LONG, INT, ADDRESS, LONG, INT)
send = _external("send", LONG, INT, ADDRESS, LONG, INT)
read = _external("read", LONG, INT, ADDRESS, LONG)
write = _external("write", LONG, INT, ADDRESS, LONG)
close = _external("close", INT, INT)
realloc = _external("realloc", ADDRESS, ADDRESS, LONG)
free = _external("free", NOTHING, ADDRESS)
memmove = _external("memmove", ADDRESS, ADDRESS, ADDRESS, LONG)


@intrinsic
def errno(typingctx):
    """The error of the last call that failed on this thread."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def codegen(context, builder, signature, args):
        number = ir.IntType(32)
        kind = ir.FunctionType(number.as_pointer(), ())
        place = cgutils.get_or_insert_function(builder.module, kind, "__errno_location")
        return builder.sext(builder.load(builder.call(place, ())), ir.IntType(64))

    return types.int64(), codegen
