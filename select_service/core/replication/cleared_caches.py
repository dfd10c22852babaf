"""Cleared caches between replicas.

A caller reports a cleared cache to a replica (POST /workers/{worker_id}/cache_cleared).  Each
message of the replica has all clears of the last CLEARS_KEPT_S with ages: at once after a new
clear, then once a second.  The next message thus makes up for a lost message, and a repeated clear
changes nothing, since only blocks used before the clear are forgotten.  A replica that is cut off
for longer assumes the blocks until eviction.

Bytes: a msgpack map with named fields, unknown fields ignored; on a topic that other
implementations do not read.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from select_service.core.identity import PartitionKey
from select_service.core.replication.load_events import DETAIL_CHARS_MAX, PeerFrameError
from select_service.schemas.common import NAME_CHARS_MAX, U32

CLEARED_TOPIC = b"select-service.cache-cleared.v1"
CLEARS_KEPT_S = 120.0
"""Seconds for which a clear is repeated."""
CLEARS_MAX = 256
"""Clears of a message, the newest."""
REPEAT_S = 1.0
"""Seconds between two messages with the same clears."""
CLEARS_PER_TURN = 8
"""Clears of peers applied per turn, some 0.2 ms each with a full table of sessions."""
RECEIVED_MAX = 4096
"""Clears of peers that wait for a turn; further clears wait for the next message."""
SENDERS_MAX = 1024
"""Number of processes with a remembered last clear; the oldest goes first."""
CLEARED_BYTES_MAX = 1024 * 1024

_Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_Unsigned = Annotated[int, Meta(ge=0)]  # msgpack has no wider integers than 64 bits

IgnoredClears: TypeAlias = Literal["own"]
ForgetCache: TypeAlias = Callable[[PartitionKey, int, int | None, float], None]
"""Function of scope, worker, rank and the time of the clear; None means all ranks."""


class CacheClear(NamedTuple):
    """Clear of the cache of a worker or a rank."""

    key: PartitionKey
    worker_id: int
    dp_rank: int | None
    at: float


class ClearedRow(Struct, array_like=True, frozen=True):
    """Clear in a message."""

    model_name: _Name
    tenant_id: _Name
    worker_id: _Unsigned
    dp_rank: U32 | None
    age_s: Annotated[float, Meta(ge=0.0, le=2 * CLEARS_KEPT_S)]


class ClearedMessage(Struct, kw_only=True, frozen=True):
    """Clears of a replica, in order.

    first: number of the first clear; the numbers of a process rise by 1
    """

    router_id: _Unsigned
    first: _Unsigned
    rows: Annotated[list[ClearedRow], Meta(max_length=CLEARS_MAX)]


_encode = msgspec.msgpack.Encoder().encode
_message_of = msgspec.msgpack.Decoder(ClearedMessage).decode


def decode_clears(payload: bytes) -> ClearedMessage:
    """Decode a message.  Raises PeerFrameError."""
    if len(payload) > CLEARED_BYTES_MAX:
        raise PeerFrameError(f"{len(payload)} bytes, at most {CLEARED_BYTES_MAX} expected")
    try:
        return _message_of(payload)
    except (ValueError, RecursionError) as error:
        raise PeerFrameError(str(error)[:DETAIL_CHARS_MAX]) from None


class ClearedCaches:
    """Sender and receiver of cleared caches."""

    def __init__(self, router_id: int) -> None:
        self.router_id = router_id
        self.forget: ForgetCache = lambda key, worker_id, dp_rank, at: None
        """Receiver of the clears of peers."""
        self._sent: deque[CacheClear] = deque(maxlen=CLEARS_MAX)
        self._n_recorded = 0
        self._sends_at = 0.0
        self._received: deque[CacheClear] = deque()
        self._next_of: OrderedDict[int, int] = OrderedDict()
        """Number of the next clear, by the router id of the process."""

    def record_clear(self, clear: CacheClear) -> None:
        """Send a clear that was reported here, with the next message."""
        self._sent.append(clear)
        self._n_recorded += 1
        self._sends_at = clear.at

    def make_message(self, now: float) -> bytes | None:
        """Return the next message, encoded; None if none is due."""
        while self._sent and self._sent[0].at + CLEARS_KEPT_S <= now:
            self._sent.popleft()
        if not self._sent or now < self._sends_at:
            return None
        self._sends_at = now + REPEAT_S
        rows = [
            ClearedRow(*each.key, each.worker_id, each.dp_rank, max(0.0, now - each.at))
            for each in self._sent
        ]
        first = self._n_recorded - len(rows)
        return _encode(ClearedMessage(router_id=self.router_id, first=first, rows=rows))

    def receive(self, message: ClearedMessage, now: float) -> IgnoredClears | None:
        """Take the new clears of a peer, which are applied in the next turns."""
        if message.router_id == self.router_id:
            return "own"
        following = self._next_of.pop(message.router_id, 0)
        for number, row in enumerate(message.rows, message.first):
            if number >= following and len(self._received) < RECEIVED_MAX:
                key = PartitionKey(row.model_name, row.tenant_id)
                # Ages instead of times: the monotonic clocks of two processes have different zeros.
                clear = CacheClear(key, row.worker_id, row.dp_rank, now - row.age_s)
                self._received.append(clear)
                following = number + 1
        self._next_of[message.router_id] = following
        if len(self._next_of) > SENDERS_MAX:
            self._next_of.popitem(last=False)
        return None

    def run_turn(self, now: float) -> int:
        """Apply some clears of peers; return how many."""
        n = min(CLEARS_PER_TURN, len(self._received))
        for _ in range(n):
            self.forget(*self._received.popleft())
        return n
