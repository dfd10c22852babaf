"""Receiving of messages by compiled code that calls libzmq itself.

Through pyzmq a frame costs about a microsecond, and checking for the next one two more, as each
call turns names of options and flags into objects and back.  Here a message costs a tenth of that,
and an empty socket raises no exception.

Source: zmq_recv(3), zmq_getsockopt(3).
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import errno

import zmq

from indexer.events.message_batch_layout import (
    END,
    IS_NUMBERED,
    N_FRAMES,
    NUMBER,
    NUMBER_BYTES,
    PAYLOAD,
    STARTS,
)
from indexer.jit.decorators import compiled, intrinsic

# Arguments and results of the kernel.  The first are addresses, three of them of C functions.
(
    RECV,
    GETSOCKOPT,
    ERRNO,
    SELF,  # address of this very array
    BUFFER,
    BUFFER_BYTES,
    SOCKET,
    BESIDE,  # another socket, or 0
    FRAMES_MAX,  # of a longer message this number of frames and one more are kept
    RUN_BYTES,  # size at which a run ends
    SKIPPED_MAX,  # surplus frames skipped per call
    IN_SURPLUS,  # 1 if the next frames are the surplus of a message
    ERROR,  # out: errno that ended the run, unless DRY
    _VALUE,
    _VALUE_SIZE,
) = range(15)
JOB_LENGTH = 15

# Result: a number of messages, and these flags.
DRY = 1 << 16  # the socket is empty
BESIDE_READY = 1 << 17  # the other socket has a message

_EVENTS, _POLLIN, _MORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.RCVMORE)
_DONTWAIT = int(zmq.DONTWAIT)
_AGAIN = int(errno.EAGAIN)


def _c_function(n_arguments):
    """Return the typing of a C function of this many words that returns an int, called by
    address.
    """

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
    return _c_function(0)(typingctx, address)


@intrinsic
def _call_4(typingctx, address, a, b, c, d):
    return _c_function(4)(typingctx, address, a, b, c, d)


@compiled()
def _read_option(job, socket, option):
    """Return an option of type int."""
    job[_VALUE], job[_VALUE_SIZE] = 0, 4
    # zmq_getsockopt writes to memory: the job array itself serves as the place of value and size.
    value = job[SELF] + 8 * _VALUE
    _call_4(job[GETSOCKOPT], socket, option, value, job[SELF] + 8 * _VALUE_SIZE)
    return job[_VALUE]


@compiled()
def _receive_frame(job, at):
    """Return the size of the next frame, -1 if none; the part that fits is stored."""
    left = job[BUFFER_BYTES] - at
    return _call_4(job[RECV], job[SOCKET], job[BUFFER] + at, left, _DONTWAIT)


@compiled()
def _skip_surplus(job):
    """Skip the surplus of a message, or some of it.  Return whether all of it."""
    for _ in range(job[SKIPPED_MAX]):
        if _receive_frame(job, job[BUFFER_BYTES]) < 0:
            job[ERROR] = _call_0(job[ERRNO])
            return False
        if _read_option(job, job[SOCKET], _MORE) == 0:
            job[IN_SURPLUS] = 0
            return True
    return False


@compiled()
def _receive_message(job, message, at):
    """Receive the message at `at`; return its end, -1 without a message.

    A message too long for the buffer is reported as one of too many frames, without content.
    """
    message[STARTS] = at
    frames, more = 0, True
    while more and frames <= job[FRAMES_MAX]:
        size = _receive_frame(job, at)
        if size < 0:
            job[ERROR] = _call_0(job[ERRNO])
            return -1
        more = _read_option(job, job[SOCKET], _MORE) != 0
        # zmq_recv cuts a frame at the end of the buffer and returns its full size.
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
    """Read the number in the frame before the last."""
    frames = message[N_FRAMES]
    first = message[STARTS + frames - 2] if frames > 1 else message[PAYLOAD]
    message[IS_NUMBERED] = message[PAYLOAD] - first == NUMBER_BYTES
    message[NUMBER] = 0
    if message[IS_NUMBERED] == 1:
        for k in range(NUMBER_BYTES):
            message[NUMBER] = message[NUMBER] << 8 | buffer[first + k]


@compiled("int64(int64[::1], uint8[::1], int64[:, ::1])")
def receive_run(job, buffer, messages):
    """Receive the available messages, at most one per row.

    Returns the count, with DRY if the socket is empty, and BESIDE_READY.
    job:      int64 [JOB_LENGTH]
    buffer, messages: out, see `message_batch_layout`
    """
    used, at = 0, 0
    job[ERROR] = 0
    while used < messages.shape[0] and at < job[RUN_BYTES]:
        if job[IN_SURPLUS] != 0 and not _skip_surplus(job):
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
    # Only after a message: the monitor's events matter for the batches that follow them.
    if used > 0 and job[BESIDE] != 0 and _read_option(job, job[BESIDE], _EVENTS) & _POLLIN != 0:
        found |= BESIDE_READY
    return found
