"""Common parts of recorded engines: seeds, prompts, sockets of the publisher."""

import base64
import inspect
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import zmq

BLOCK_SIZE = 16
TOKENS = 150_000
"""Vocabulary; most token ids take three or five bytes in msgpack, as in real streams."""
RECEIVE_S_MAX = 5.0
SUBSCRIPTION_S = 0.3
END_OF_REPLAY = b"\xff" * 8
RNG = random.Random()

Prompt = dict[str, Any]
"""Fields of the API: `token_ids` and, if any, `lora_name`, `cache_salt`, `block_mm_infos`."""


def call_known(function: Callable[..., Any], **values: Any) -> Any:
    """Call with those `values` for which this version of the engine has parameters."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in values.items() if name in known})


def tokens(n: int) -> list[int]:
    return [RNG.randrange(TOKENS) for _ in range(n)]


def count_while(test: Callable[[Any], Any], items: Iterable[Any]) -> int:
    count = 0
    for item in items:
        if not test(item):
            break
        count += 1
    return count


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Wire:
    """Client of a publisher's two sockets."""

    lives = 0

    def __init__(self, publisher_class: Any, rank: int) -> None:
        Wire.lives += 1
        live, replay = f"inproc://live-{Wire.lives}", f"inproc://replay-{Wire.lives}"
        self.publisher = publisher_class(rank, endpoint=live, replay_endpoint=replay)
        context: zmq.Context[Any] = zmq.Context.instance()
        self._live = context.socket(zmq.SUB)
        self._live.set(zmq.RCVHWM, 0)
        self._live.subscribe(b"")
        self._live.connect(publisher_class.offset_endpoint_port(live, rank))
        self._replay_endpoint = publisher_class.offset_endpoint_port(replay, rank)
        time.sleep(SUBSCRIPTION_S)

    def receive(self, expected: int) -> list[bytes]:
        """Return the frames of the next live message; its sequence number must be `expected`."""
        assert self._live.poll(1000 * RECEIVE_S_MAX), f"batch {expected} was not published"
        frames: list[bytes] = self._live.recv_multipart()
        assert int.from_bytes(frames[1], "big") == expected
        return frames

    def replay(self, first: int) -> list[list[bytes]]:
        """Return the replay server's answer to a request for `first`, without identity."""
        context: zmq.Context[Any] = zmq.Context.instance()
        socket = context.socket(zmq.DEALER)
        socket.connect(self._replay_endpoint)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        answer: list[list[bytes]] = []
        while not answer or answer[-1][-2:] != [END_OF_REPLAY, b""]:
            # A bound: an engine with a dead publisher would hang the recorder forever.
            assert socket.poll(1000 * RECEIVE_S_MAX), "the replay server does not answer"
            answer.append(socket.recv_multipart())
        socket.close(linger=0)
        return answer

    def close(self) -> None:
        self.publisher.shutdown()
        self._live.close(linger=0)


class Stream:
    """Messages of a rank and those of them that arrive."""

    def __init__(
        self, publisher_class: Any, worker: int, rank: int, record: Callable[..., None]
    ) -> None:
        """record: receives the steps of a recording at once"""
        self._publisher_class, self._record = publisher_class, record
        self.worker, self.rank = worker, rank
        self.lose = 0
        """Number of next batches that do not arrive."""
        self.open()

    def open(self) -> None:
        """Start a new life of the engine: sequence numbers from 0."""
        self._wire = Wire(self._publisher_class, self.rank)
        self._batches = 0
        self._lost_from: int | None = None

    def close(self) -> None:
        self._wire.close()

    def publish(self, batch_at: Callable[[float], Any]) -> None:
        """Send a batch, stamped with the given time, and record its arrival."""
        sequence = self._batches
        self._batches += 1
        self._wire.publisher.publish(batch_at(float(sequence)))
        topic, _, payload = self._wire.receive(sequence)
        if self.lose:
            self.lose -= 1
            self._lost_from = sequence if self._lost_from is None else self._lost_from
            return
        where = (self.worker, self.rank)
        if self._lost_from is not None:
            answer = [[text_of(f) for f in frames] for frames in self._wire.replay(self._lost_from)]
            self._record("replay", *where, self._lost_from, answer)
            self._lost_from = None
        self._record("live", *where, sequence, topic.decode(), text_of(payload))
