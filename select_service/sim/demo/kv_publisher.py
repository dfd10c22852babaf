"""Publisher of the KV events of a rank in vLLM's wire format: live on PUB, replays on ROUTER.

This module handles frames, sequence numbers and the replay buffer, not the meaning of events.

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

from select_service.sim.engine.prefix_cache import KvEvent

TOPIC = b"kv-events"
BUFFER_BATCHES_MAX = 10_000
SEND_QUEUE_MESSAGES_MAX = 100_000
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
SUBSCRIBER_POLL_S = 0.01
LOOPBACK_ANY_PORT = "tcp://127.0.0.1:*"


class KvEventBatch(msgspec.Struct, array_like=True):
    """A message: time, events and data-parallel rank."""

    ts: float
    events: Sequence[KvEvent]
    data_parallel_rank: int


class KvPublisherSockets:
    """Sockets of a rank, on free loopback ports.

    `lose` is called once per batch. A batch for which `lose` returns true is numbered and kept for
    replay but not sent, like a message that the network dropped.
    """

    def __init__(
        self, context: zmq.asyncio.Context, dp_rank: int, lose: Callable[[], bool] = lambda: False
    ) -> None:
        self._dp_rank = dp_rank
        self._lose = lose
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=BUFFER_BATCHES_MAX)
        self._encoder = msgspec.msgpack.Encoder()
        # XPUB speaks PUB's protocol and also reports subscriptions.
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        self._live = plain.socket(zmq.XPUB)
        self._live.set(zmq.SNDHWM, SEND_QUEUE_MESSAGES_MAX)
        # No subscriber reads after the end, so closing must not wait.
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
        """Endpoint of live events, `tcp://127.0.0.1:port`."""
        return str(self._live.get_string(zmq.LAST_ENDPOINT))

    @property
    def replay_endpoint(self) -> str:
        """Endpoint of replay requests, `tcp://127.0.0.1:port`."""
        return self._replay.get_string(zmq.LAST_ENDPOINT)

    def publish_batch(self, events: Sequence[KvEvent]) -> None:
        """Send a batch.  Never blocks; an empty batch is not sent."""
        if not events:
            return
        frames = self._number_batch(events)
        # After the numbering: a lost batch leaves a gap in the sequence.
        self._last_was_lost = self._lose()
        if self._last_was_lost:
            self.lost_batches += 1
        else:
            self._live.send_multipart([TOPIC, *frames])

    def expose_trailing_gap(self) -> None:
        """Send an empty batch after a withheld batch: only a later batch makes a gap visible."""
        if self._last_was_lost:
            self._last_was_lost = False
            self._live.send_multipart([TOPIC, *self._number_batch([])])

    async def wait_for_subscriber(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for a subscription and return whether it came.

        Call it once.
        """
        deadline = time.monotonic() + timeout_s
        while not self._live.poll(0):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(SUBSCRIBER_POLL_S)
        # Takes the subscription message, so that a later poll does not see it again.
        self._live.recv()
        return True

    async def serve_replay(self) -> None:
        """Answer replay requests until cancelled.  A malformed request is ignored."""
        while True:
            frames = await self._replay.recv_multipart()
            # Any local process may connect; a malformed request must not end the task.
            if len(frames) == 3 and frames[1] == b"" and len(frames[2]) == 8:
                await self._answer_replay(frames[0], first=int.from_bytes(frames[2], "big"))

    def close(self) -> None:
        """Close both sockets and drop queued messages."""
        self._live.close()
        self._replay.close()

    def _number_batch(self, events: Sequence[KvEvent]) -> tuple[bytes, bytes]:
        batch = KvEventBatch(time.time(), events, self._dp_rank)
        frames = (self.batches.to_bytes(8, "big"), self._encoder.encode(batch))
        self._buffer.append(frames)
        self.batches += 1
        return frames

    async def _answer_replay(self, identity: bytes, first: int) -> None:
        # A copy: publishing may append while a send waits.
        for sequence, payload in list(self._buffer):
            if int.from_bytes(sequence, "big") >= first:
                await self._replay.send_multipart([identity, b"", TOPIC, sequence, payload])
        await self._replay.send_multipart([identity, b"", b"", END_OF_REPLAY, b""])
