"""Messages of a socket taken by compiled code that calls libzmq itself.

Through pyzmq a frame costs about a microsecond and the question whether there is one two more, as
each turns names of options and flags into objects and back.  Here a message costs a tenth of that,
and the end of those that are there is no exception.

Source: zmq_recv(3), zmq_getsockopt(3).
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import errno

import zmq

from indexer.compiled import compiled, intrinsic
from indexer.events.run_layout import (
    END,
    IS_NUMBERED,
    N_FRAMES,
    NUMBER,
    NUMBER_BYTES,
    PAYLOAD,
    STARTS,
)

# What the kernel is told, and tells.  The first are addresses, two of them of C functions.
(
    RECV,
    GETSOCKOPT,
    ERRNO,
    SELF,  # of this very array
    BUFFER,
    BUFFER_BYTES,
    SOCKET,
    BESIDE,  # another socket, or 0
    FRAMES_MAX,  # of a longer message so many and one more are kept
    RUN_BYTES,  # no other message is taken once there are so many
    SKIPPED_MAX,  # frames of a message that has too many, at once
    IN_SURPLUS,  # what comes next are frames of a message that has too many
    ERROR,  # out: errno of what ended the run other than DRY
    _VALUE,
    _VALUE_SIZE,
) = range(15)
JOB_LENGTH = 15

# What the kernel returns: a number of messages, and
DRY = 1 << 16  # nothing was left in the socket
BESIDE_READY = 1 << 17  # the other socket has a message

_EVENTS, _POLLIN, _MORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.RCVMORE)
_DONTWAIT = int(zmq.DONTWAIT)
_AGAIN = int(errno.EAGAIN)


def _caller(n_arguments):
    """A C function of so many words that returns an int, called by its address."""

    def typed(typingctx, address, *given):
        from llvmlite import ir
        from numba import types

        def codegen(context, builder, signature, args):
            word = ir.IntType(64)
            kind = ir.FunctionType(ir.IntType(32), [word] * n_arguments).as_pointer()
            function = builder.inttoptr(args[0], kind)
            return builder.sext(builder.call(function, args[1:]), word)

        return types.int64(*[types.int64] * (1 + n_arguments)), codegen

    return typed


@intrinsic
def _call_0(typingctx, address):
    return _caller(0)(typingctx, address)


@intrinsic
def _call_4(typingctx, address, a, b, c, d):
    return _caller(4)(typingctx, address, a, b, c, d)


@compiled()
def _option(job, socket, option):
    """An option that is an int."""
    job[_VALUE], job[_VALUE_SIZE] = 0, 4
    value = job[SELF] + 8 * _VALUE
    _call_4(job[GETSOCKOPT], socket, option, value, job[SELF] + 8 * _VALUE_SIZE)
    return job[_VALUE]


@compiled()
def _receive_frame(job, at):
    """Bytes of the next frame, of which those are kept that there is room for; -1: none."""
    left = job[BUFFER_BYTES] - at
    return _call_4(job[RECV], job[SOCKET], job[BUFFER] + at, left, _DONTWAIT)


@compiled()
def _skip(job):
    """Past the surplus of a message, or some of it.  Returns whether it was all."""
    for _ in range(job[SKIPPED_MAX]):
        if _receive_frame(job, job[BUFFER_BYTES]) < 0:
            job[ERROR] = _call_0(job[ERRNO])
            return False
        if _option(job, job[SOCKET], _MORE) == 0:
            job[IN_SURPLUS] = 0
            return True
    return False


@compiled()
def _receive_message(job, message, at):
    """Where the message ends that begins at `at`; -1: none.  One too long for the buffer is told
    as one of too many frames, and nothing of it is kept.
    """
    message[STARTS] = at
    frames, more = 0, True
    while more and frames <= job[FRAMES_MAX]:
        size = _receive_frame(job, at)
        if size < 0:
            job[ERROR] = _call_0(job[ERRNO])
            return -1
        more = _option(job, job[SOCKET], _MORE) != 0
        if size > job[BUFFER_BYTES] - at:
            at, size, frames = message[STARTS], 0, job[FRAMES_MAX]
            message[STARTS : STARTS + frames] = at
        message[STARTS + frames] = at
        at += size
        frames += 1
    message[N_FRAMES] = frames
    message[PAYLOAD] = message[STARTS + frames - 1]
    message[END] = at
    job[IN_SURPLUS] = more
    return at


@compiled()
def _number_message(buffer, message):
    """Read what the frame before the last says."""
    frames = message[N_FRAMES]
    first = message[STARTS + frames - 2] if frames > 1 else message[PAYLOAD]
    message[IS_NUMBERED] = message[PAYLOAD] - first == NUMBER_BYTES
    message[NUMBER] = 0
    if message[IS_NUMBERED] == 1:
        for k in range(NUMBER_BYTES):
            message[NUMBER] = message[NUMBER] << 8 | buffer[first + k]


@compiled("int64(int64[::1], uint8[::1], int64[:, ::1])")
def receive_run(job, buffer, messages):
    """Take the messages that wait, as many as there are rows.  Returns how many, with DRY if
    nothing was left, and BESIDE_READY.

    job:      int64 [JOB_LENGTH]
    buffer, messages: out, see `run_layout`
    """
    used, at = 0, 0
    job[ERROR] = 0
    while used < messages.shape[0] and at < job[RUN_BYTES]:
        if job[IN_SURPLUS] != 0 and not _skip(job):
            break
        at = _receive_message(job, messages[used], at)
        if at < 0:
            break
        _number_message(buffer, messages[used])
        used += 1
    found = used
    if job[ERROR] == _AGAIN:
        job[ERROR] = 0
        found |= DRY
    if used > 0 and job[BESIDE] != 0 and _option(job, job[BESIDE], _EVENTS) & _POLLIN != 0:
        found |= BESIDE_READY
    return found
