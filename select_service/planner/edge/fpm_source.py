"""EDGE: forward-pass metrics that engines publish over ZMQ (msgpack, version 1).

Frames: topic, sequence number, payload; the payload is the last frame whatever stands before it.
Fields that are not read here may be there or not.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import zmq
from msgspec import Struct

from select_service.planner.config import FpmSource
from select_service.planner.core.inputs import ForwardPass, Role
from select_service.unreadable_json import UNREADABLE

VERSION: Final = 1
RANKS_MAX = 16384
"""Ranks of one role that are remembered between two ticks; further ones are not heard."""
PASSES_MAX = 64
"""Of one rank between two ticks: the newest ones."""
MESSAGES_MAX = 512
"""Read from the socket of a role in one turn of the loop."""
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


def decoded(payload: bytes) -> ForwardPass | None:
    """None: no forward pass of this version, or numbers that no engine can mean."""
    try:
        metrics = _decoder.decode(payload)
    except UNREADABLE:
        return None
    scheduled, queued = metrics.scheduled_requests, metrics.queued_requests
    counts = (*msgspec.structs.astuple(scheduled), *msgspec.structs.astuple(queued))
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


class Heard:
    """The newest passes of each rank, bounded."""

    def __init__(self) -> None:
        self._by_rank: dict[tuple[str, int], deque[ForwardPass]] = {}

    def add(self, heard: ForwardPass) -> bool:
        """False: it is of one rank too many."""
        key = heard.worker, heard.rank
        if key not in self._by_rank:
            if len(self._by_rank) >= RANKS_MAX:
                return False
            self._by_rank[key] = deque(maxlen=PASSES_MAX)
        self._by_rank[key].append(heard)
        return True

    def take(self) -> tuple[ForwardPass, ...]:
        """All since the last taking; of each rank, oldest first."""
        result = tuple(each for passes in self._by_rank.values() for each in passes)
        self._by_rank.clear()
        return result


class FpmPasses:
    """What was heard since the last reading, bounded by rank. Belongs to one event loop."""

    def __init__(self, source: FpmSource) -> None:
        """Raises ValueError for an endpoint that ZMQ does not take."""
        self.refused = 0
        """Messages that could not be read, or of too many ranks."""
        self._sockets: dict[Role, zmq.SyncSocket] = {}
        self._heard: dict[Role, Heard] = {}
        for role, endpoints in ((Role.PREFILL, source.prefill), (Role.DECODE, source.decode)):
            if endpoints:
                self._sockets[role] = _subscribed(endpoints)
                self._heard[role] = Heard()

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close(linger=0)
        self._sockets.clear()

    async def run(self) -> None:
        """Take what comes, `MESSAGES_MAX` a turn, so that what is read is the newest."""
        while True:
            is_more = False
            for role, socket in self._sockets.items():
                is_more |= self._taken(role, socket) == MESSAGES_MAX
            await asyncio.sleep(0 if is_more else REST_S)

    def read(self) -> Mapping[Role, tuple[ForwardPass, ...]]:
        """All that was heard since the last reading: of each rank, oldest first."""
        return {role: heard.take() for role, heard in self._heard.items()}

    def _taken(self, role: Role, socket: zmq.SyncSocket) -> int:
        for taken in range(MESSAGES_MAX):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return taken
            heard = decoded(frames[-1])
            if heard is None or not self._heard[role].add(heard):
                self.refused += 1
        return MESSAGES_MAX


def _subscribed(endpoints: Iterable[str]) -> zmq.SyncSocket:
    socket: zmq.SyncSocket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    for endpoint in endpoints:
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ValueError(f"fpm endpoint `{endpoint}`: {error.strerror}") from None
    return socket
