"""EDGE: a replay that is asked for to see whether there is an answer, apart from any listener."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

import zmq

from indexer.sockets import arrivals
from indexer.sockets.curve import CurveServer
from indexer.sockets.dial import Dial
from indexer.sockets.names import Names
from indexer.sockets.options import reading_socket
from indexer.sockets.replay_connection import REPLAY_FRAMES, SEQ_BYTES, is_replay

NO_BATCH = 1 << 62
"""The number of a batch that no engine has: the answer is the end alone."""
POLL_MS = 20
BYTES_MAX = 8 << 20


class ReplayAnswer(NamedTuple):
    """error: why there was no answer to its end; None: there was one, or as much as was wanted
    batches: by number, in the order in which they came
    """

    error: str | None
    batches: list[tuple[int, bytes]]


class Bounds(NamedTuple):
    """Of one answer."""

    batches: int
    seconds: float


def ask_replay(
    names: Names, endpoint: str, server: CurveServer | None, start: int, most: Bounds
) -> ReplayAnswer:
    """For the batches from this number on.  Blocks, for a thread that may wait.

    server: with which keys the engine is talked to; None: with none
    """
    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
    with zmq.Context(1) as context:
        try:
            socket = reading_socket(context, zmq.DEALER, endpoint, arrivals.bounds(), server)
        except zmq.ZMQError as error:
            return ReplayAnswer(str(error), [])
        question = [b"", start.to_bytes(SEQ_BYTES, "big")]
        dial = Dial(
            socket,
            endpoint,
            names,
            calls.put,
            lambda: socket.send_multipart(question, zmq.NOBLOCK),
            purpose="replay",
        )
        try:
            dial.begin()
            return _answer(socket, dial, calls, most)
        except zmq.ZMQError as error:
            return ReplayAnswer(str(error), [])
        finally:
            dial.close()
            socket.close(0)


def _answer(
    socket: "zmq.Socket[bytes]",
    dial: Dial,
    calls: "SimpleQueue[Callable[[], None]]",
    most: Bounds,
) -> ReplayAnswer:
    """Raises zmq.ZMQError."""
    batches: list[tuple[int, bytes]] = []
    until, size = monotonic() + most.seconds, 0
    while monotonic() < until:
        _make(calls)
        if not socket.poll(POLL_MS):
            continue
        frames = socket.recv_multipart(zmq.NOBLOCK)
        if not is_replay(frames):
            shape = [len(frame) for frame in frames[: max(REPLAY_FRAMES) + 1]]
            return ReplayAnswer(f"the answer is no replay: frames of {shape} bytes", batches)
        if not frames[-1]:
            return ReplayAnswer(None, batches)
        batches.append((int.from_bytes(frames[-2], "big"), frames[-1]))
        size += len(frames[-1])
        if len(batches) >= most.batches or size > BYTES_MAX:
            return ReplayAnswer(None, batches)
    n = f" after {len(batches)} batches" if batches else ""
    return ReplayAnswer(dial.error or f"no answer within {most.seconds:g} s{n}", batches)


def _make(calls: "SimpleQueue[Callable[[], None]]") -> None:
    while True:
        try:
            call = calls.get_nowait()
        except Empty:
            return
        call()
