"""Forward-pass metrics published by engines over ZMQ (msgpack, version 1).

Frames: topic, sequence number, payload; the payload is the last frame, whatever precedes.
Other fields are ignored.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import zmq
from msgspec import Struct

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.planner.config import ForwardPassSourceConfig
from select_service.planner.core.tick_input import ForwardPass, Role

VERSION: Final = 1
RANKS_MAX = 16384
"""Maximum ranks of a role kept between two ticks; further ranks are ignored."""
PASSES_MAX = 64
"""Maximum passes of a rank kept between two ticks, the newest."""
MESSAGES_MAX = 512
"""Maximum messages read from the socket of a role in a turn of the loop."""
REST_S = 0.25
MESSAGE_BYTES_MAX = 1 << 16


class _Requests(Struct, frozen=True):
    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0


class _Metrics(Struct, frozen=True):
    version: int = 0
    worker_id: str = ""
    dp_rank: int = 0
    wall_time: float = 0.0
    scheduled_requests: _Requests = _Requests()
    queued_requests: _Requests = _Requests()


_decoder = msgspec.msgpack.Decoder(_Metrics)


def decode_forward_pass(payload: bytes) -> ForwardPass | None:
    """Decode a forward pass; None for another version or impossible numbers."""
    try:
        metrics = _decoder.decode(payload)
    except DECODE_ERRORS:
        return None
    scheduled, queued = metrics.scheduled_requests, metrics.queued_requests
    counts = (*msgspec.structs.astuple(scheduled), *msgspec.structs.astuple(queued))
    # Fields may have another meaning in another version.
    if metrics.version != VERSION or not math.isfinite(metrics.wall_time):
        return None
    if min(counts, default=0) < 0 or metrics.wall_time < 0 or metrics.dp_rank < 0:
        return None
    return ForwardPass(
        worker=metrics.worker_id,
        rank=metrics.dp_rank,
        wall_s=metrics.wall_time,
        prefill_requests=scheduled.num_prefill_requests,
        prefill_tokens=scheduled.sum_prefill_tokens,
        decode_requests=scheduled.num_decode_requests,
        decode_kv_tokens=scheduled.sum_decode_kv_tokens,
        queued_prefill_requests=queued.num_prefill_requests,
        queued_prefill_tokens=queued.sum_prefill_tokens,
        queued_decode_requests=queued.num_decode_requests,
        queued_decode_kv_tokens=queued.sum_decode_kv_tokens,
    )


class ReceivedPasses:
    """Newest passes of each rank, bounded."""

    def __init__(self) -> None:
        self._by_rank: dict[tuple[str, int], deque[ForwardPass]] = {}

    def add_pass(self, forward_pass: ForwardPass) -> bool:
        """Add a pass. False beyond the maximum of ranks."""
        key = forward_pass.worker, forward_pass.rank
        if key not in self._by_rank:
            # Ranks come from the network, so their number is bounded.
            if len(self._by_rank) >= RANKS_MAX:
                return False
            self._by_rank[key] = deque(maxlen=PASSES_MAX)
        self._by_rank[key].append(forward_pass)
        return True

    def take_passes(self) -> tuple[ForwardPass, ...]:
        """Return and clear the passes; of each rank, oldest first."""
        result = tuple(each for passes in self._by_rank.values() for each in passes)
        self._by_rank.clear()
        return result


class ForwardPassReceiver:
    """Receiver of passes, bounded by rank. Belongs to one event loop."""

    def __init__(self, source: ForwardPassSourceConfig) -> None:
        """Connect the sockets. Raises ValueError for an endpoint that ZMQ rejects."""
        self.refused = 0
        """Number of messages that were unreadable, or from too many ranks."""
        self._sockets: dict[Role, zmq.SyncSocket] = {}
        self._received: dict[Role, ReceivedPasses] = {}
        for role, endpoints in ((Role.PREFILL, source.prefill), (Role.DECODE, source.decode)):
            if endpoints:
                self._sockets[role] = _open_subscription(endpoints)
                self._received[role] = ReceivedPasses()

    def close(self) -> None:
        """Close the sockets."""
        for socket in self._sockets.values():
            socket.close(linger=0)
        self._sockets.clear()

    async def run(self) -> None:
        """Receive for ever, `MESSAGES_MAX` a turn, so that the newest passes are available."""
        while True:
            is_more = False
            for role, socket in self._sockets.items():
                is_more |= self._receive_messages(role, socket) == MESSAGES_MAX
            # Sleeps of 0 let other tasks run while a backlog is read.
            await asyncio.sleep(0 if is_more else REST_S)

    def take_passes(self) -> Mapping[Role, tuple[ForwardPass, ...]]:
        """Return the passes since the last reading: of each rank, oldest first."""
        return {role: heard.take_passes() for role, heard in self._received.items()}

    def _receive_messages(self, role: Role, socket: zmq.SyncSocket) -> int:
        """Receive messages of a role and return their number."""
        for taken in range(MESSAGES_MAX):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return taken
            heard = decode_forward_pass(frames[-1])
            if heard is None or not self._received[role].add_pass(heard):
                self.refused += 1
        return MESSAGES_MAX


def _open_subscription(endpoints: Iterable[str]) -> zmq.SyncSocket:
    """Open a socket. Raises ValueError."""
    socket: zmq.SyncSocket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    # A larger message makes ZMQ close the connection; no forward pass is that large.
    socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    for endpoint in endpoints:
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ValueError(f"fpm endpoint `{endpoint}`: {error.strerror}") from None
    return socket
