"""Puts the KV events of one rank on the wire the way vLLM does: live on PUB, again on request on
ROUTER.

Knows frames, sequence numbers and the replay buffer; what the events mean is `engine`'s business.

Source of the framing: vLLM's `vllm.distributed.kv_events.ZmqEventPublisher` (0.26 and later)
  live     PUB     [topic, sequence u64 big-endian, msgpack([ts, events, data_parallel_rank])]
  request  ROUTER  [identity, "", first sequence wanted u64 big-endian]
  answer   ROUTER  [identity, "", topic, sequence, payload] for each batch still in the buffer,
                   then [identity, "", "", -1 as i64, ""]
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import zmq
import zmq.asyncio

from select_service.simulator.engine import KvEvent

TOPIC = b"kv-events"
BUFFER_BATCHES_MAX = 10_000
SEND_QUEUE_MESSAGES_MAX = 100_000
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
SUBSCRIBER_POLL_S = 0.01
LOOPBACK_ANY_PORT = "tcp://127.0.0.1:*"


class EventBatch(msgspec.Struct, array_like=True):
    """One message: when, what, and which data-parallel rank it happened on."""

    ts: float
    events: Sequence[KvEvent]
    data_parallel_rank: int


def never() -> bool:
    """The default of `lose`: every batch goes out."""
    return False


class Publisher:
    """The sockets of one rank, on loopback ports that the system chooses.

    `lose` is asked once per batch; when it says yes the batch is numbered and kept for replay but
    not sent, like a message that the network dropped.
    """

    def __init__(
        self, context: zmq.asyncio.Context, dp_rank: int, lose: Callable[[], bool] = never
    ) -> None:
        self._dp_rank = dp_rank
        self._lose = lose
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=BUFFER_BATCHES_MAX)
        self._encoder = msgspec.msgpack.Encoder()
        # XPUB speaks PUB's protocol and also tells when somebody has subscribed.
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        self._live = plain.socket(zmq.XPUB)
        self._live.set(zmq.SNDHWM, SEND_QUEUE_MESSAGES_MAX)
        self._live.set(zmq.LINGER, 0)
        self._live.bind(LOOPBACK_ANY_PORT)
        self._replay = context.socket(zmq.ROUTER)
        self._replay.set(zmq.LINGER, 0)
        self._replay.bind(LOOPBACK_ANY_PORT)
        self._last_was_lost = False
        self.batches = 0
        self.lost_batches = 0

    @property
    def endpoint(self) -> str:
        """Where the live events are, `tcp://127.0.0.1:port`."""
        return str(self._live.get_string(zmq.LAST_ENDPOINT))

    @property
    def replay_endpoint(self) -> str:
        """Where missed events are asked for, `tcp://127.0.0.1:port`."""
        return self._replay.get_string(zmq.LAST_ENDPOINT)

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send one batch.  Never blocks; nothing is sent for no events."""
        if not events:
            return
        frames = self._numbered(events)
        self._last_was_lost = self._lose()
        if self._last_was_lost:
            self.lost_batches += 1
        else:
            self._live.send_multipart([TOPIC, *frames])

    def reveal_last_loss(self) -> None:
        """If the last batch was withheld, send an empty one: a gap shows only with what follows."""
        if self._last_was_lost:
            self._last_was_lost = False
            self._live.send_multipart([TOPIC, *self._numbered([])])

    async def wait_for_subscriber(self, timeout_s: float) -> bool:
        """Whether somebody has subscribed, waiting at most `timeout_s`.  Call it once."""
        deadline = time.monotonic() + timeout_s
        while not self._live.poll(0):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(SUBSCRIBER_POLL_S)
        self._live.recv()
        return True

    async def serve_replay(self) -> None:
        """Answer replay requests until cancelled.  A malformed request is ignored."""
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) == 3 and frames[1] == b"" and len(frames[2]) == 8:
                await self._answer(frames[0], first=int.from_bytes(frames[2], "big"))

    def close(self) -> None:
        """Close both sockets; what is still queued is dropped."""
        self._live.close()
        self._replay.close()

    def _numbered(self, events: Sequence[KvEvent]) -> tuple[bytes, bytes]:
        batch = EventBatch(time.time(), events, self._dp_rank)
        frames = (self.batches.to_bytes(8, "big"), self._encoder.encode(batch))
        self._buffer.append(frames)
        self.batches += 1
        return frames

    async def _answer(self, identity: bytes, first: int) -> None:
        for sequence, payload in list(self._buffer):
            if int.from_bytes(sequence, "big") >= first:
                await self._replay.send_multipart([identity, b"", TOPIC, sequence, payload])
        await self._replay.send_multipart([identity, b"", b"", END_OF_REPLAY, b""])
