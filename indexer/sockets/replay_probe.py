"""EDGE: test of a replay endpoint, independent of any listener."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

import zmq

from indexer.sockets import read_ahead
from indexer.sockets.curve_keypairs import CurveServerKeys
from indexer.sockets.dns_resolver import Resolver
from indexer.sockets.replay_connection import REPLAY_FRAMES, SEQ_BYTES, is_replay
from indexer.sockets.socket_options import reading_socket
from indexer.sockets.zmq_connector import ZmqConnector

NO_BATCH = 1 << 62
"""Number of a batch that no engine has: the answer is the end alone."""
POLL_MS = 20
BYTES_MAX = 8 << 20


class ReplayAnswer(NamedTuple):
    """Result of a test.

    error:   reason of an incomplete answer; None if complete, or as much as requested
    batches: (number, payload) in order of arrival
    """

    error: str | None
    batches: list[tuple[int, bytes]]


class ReplayLimits(NamedTuple):
    """Limits of an answer."""

    batches: int
    seconds: float


def probe_replay(
    resolver: Resolver,
    endpoint: str,
    server: CurveServerKeys | None,
    start: int,
    limits: ReplayLimits,
) -> ReplayAnswer:
    """Request the batches from this number on.  Blocks, for a thread that may wait.

    server: required keys of the engine; None means unencrypted
    """
    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
    with zmq.Context(1) as context:
        try:
            socket = reading_socket(
                context, zmq.DEALER, endpoint, read_ahead.engine_queue_limits(), server
            )
        except zmq.ZMQError as error:
            return ReplayAnswer(str(error), [])
        question = [b"", start.to_bytes(SEQ_BYTES, "big")]
        dial = ZmqConnector(
            socket,
            endpoint,
            resolver,
            calls.put,
            lambda: socket.send_multipart(question, zmq.NOBLOCK),
            purpose="replay",
        )
        try:
            dial.start()
            return _receive_answer(socket, dial, calls, limits)
        except zmq.ZMQError as error:
            return ReplayAnswer(str(error), [])
        finally:
            dial.close()
            socket.close(0)


def _receive_answer(
    socket: "zmq.Socket[bytes]",
    dial: ZmqConnector,
    calls: "SimpleQueue[Callable[[], None]]",
    most: ReplayLimits,
) -> ReplayAnswer:
    """Receive the answer.  Raises zmq.ZMQError."""
    batches: list[tuple[int, bytes]] = []
    until, size = monotonic() + most.seconds, 0
    while monotonic() < until:
        _run_calls(calls)
        if not socket.poll(POLL_MS):
            continue
        frames = socket.recv_multipart(zmq.NOBLOCK)
        if not is_replay(frames):
            shape = [len(frame) for frame in frames[: max(REPLAY_FRAMES) + 1]]
            return ReplayAnswer(f"the answer is not a replay: frames of {shape} bytes", batches)
        if not frames[-1]:
            return ReplayAnswer(None, batches)
        batches.append((int.from_bytes(frames[-2], "big"), frames[-1]))
        size += len(frames[-1])
        if len(batches) >= most.batches or size > BYTES_MAX:
            return ReplayAnswer(None, batches)
    n = f" after {len(batches)} batches" if batches else ""
    return ReplayAnswer(dial.error or f"no answer within {most.seconds:g} s{n}", batches)


def _run_calls(calls: "SimpleQueue[Callable[[], None]]") -> None:
    while True:
        try:
            call = calls.get_nowait()
        except Empty:
            return
        call()
