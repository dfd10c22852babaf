"""What the paired runs ask and publish: conversations, who holds how much of them, KV events.

Everything follows from fixed seeds, so that both contenders get the same bytes.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import zmq

from indexer.hashing.hashes import block_hashes, sequence_hashes

BLOCK_SIZE = 16
CONVERSATIONS = 64
DEPTH_BLOCKS = 4096
SHARED_BLOCKS = 4
"""Every conversation begins with the same system prompt."""
HOLDERS = 4
EVENT_BLOCKS = 64
ENGINE_SALT = np.uint64(0x9E3779B97F4A7C15)
BODIES = 64
SUBSCRIBERS_S_MAX = 30.0


class Conversation(NamedTuple):
    tokens: np.ndarray  # uint32 [DEPTH_BLOCKS * BLOCK_SIZE]
    blocks: np.ndarray  # uint64 [DEPTH_BLOCKS], what the service indexes
    engine: np.ndarray  # uint64 [DEPTH_BLOCKS], what an engine would call the blocks


class Holding(NamedTuple):
    worker: int  # from 0
    conversation: int
    depth_blocks: int


def conversation(seed: int, n_blocks: int, n_shared: int = 0) -> Conversation:
    """Random tokens, behind `n_shared` blocks that all have in common."""
    shared = np.random.default_rng(99).integers(0, 128_000, n_shared * BLOCK_SIZE, np.uint32)
    generator = np.random.default_rng(seed)
    own = generator.integers(0, 128_000, (n_blocks - n_shared) * BLOCK_SIZE, np.uint32)
    tokens = np.concatenate((shared, own))
    blocks = block_hashes(tokens, BLOCK_SIZE)
    return Conversation(tokens, blocks, sequence_hashes(blocks) ^ ENGINE_SALT)


def conversations() -> list[Conversation]:
    numbers = range(1000, 1000 + CONVERSATIONS)
    return [conversation(number, DEPTH_BLOCKS, SHARED_BLOCKS) for number in numbers]


def holdings(workers: int) -> list[Holding]:
    """HOLDERS workers per conversation, the first with all of it; everybody has its beginning."""
    generator = np.random.default_rng(5)
    held = []
    for number in range(CONVERSATIONS):
        for place, worker in enumerate(generator.permutation(workers)[:HOLDERS]):
            ragged = int(generator.integers(SHARED_BLOCKS, DEPTH_BLOCKS))
            held.append(Holding(int(worker), number, ragged if place else DEPTH_BLOCKS))
    idle = set(range(workers)) - {h.worker for h in held}
    return held + [Holding(worker, 0, SHARED_BLOCKS) for worker in sorted(idle)]


def signed(hashes: np.ndarray) -> list[int]:
    """The form that both contenders read."""
    values: list[int] = hashes.view(np.int64).tolist()
    return values


def select_bodies(
    known: Sequence[Conversation], n_blocks: int, n_bodies: int = BODIES
) -> list[bytes]:
    """Prompts of which three quarters continue a conversation and the rest is new."""
    generator = np.random.default_rng(77)
    bodies = []
    for number in range(n_bodies):
        head = known[number % len(known)].blocks[: max(1, n_blocks * 3 // 4)]
        fresh = generator.integers(0, 2**64, n_blocks - len(head), np.uint64)
        path = np.concatenate((head, fresh))
        prompt = {
            "block_hashes": signed(path),
            "sequence_hashes": signed(sequence_hashes(path)),
            "isl_tokens": n_blocks * BLOCK_SIZE,
        }
        bodies.append(msgspec.json.encode(prompt))
    return bodies


def token_bodies(known: Sequence[Conversation], n_tokens: int, n_bodies: int) -> list[bytes]:
    """The same as token ids; what a conversation has may be less than three quarters."""
    generator = np.random.default_rng(78)
    bodies = []
    for number in range(n_bodies):
        head = known[number % len(known)].tokens[: n_tokens * 3 // 4]
        fresh = generator.integers(0, 128_000, n_tokens - len(head), np.uint32)
        tokens = np.concatenate((head, fresh)).tolist()
        bodies.append(msgspec.json.encode({"token_ids": tokens}))
    return bodies


def stored(source: Conversation, first: int, until: int, parent: int | None = None) -> bytes:
    """The batch in which an engine announces blocks [first, until) of a conversation.

    parent: what block 0 continues; any other block continues the one before it.
    """
    event = [
        "BlockStored",
        source.engine[first:until].tolist(),
        int(source.engine[first - 1]) if first else parent,
        source.tokens[first * BLOCK_SIZE : until * BLOCK_SIZE].tolist(),
        BLOCK_SIZE,
        None,
        "GPU",
        None,
    ]
    return msgspec.msgpack.encode([0.0, [event], 0])


def removed(conversation: Conversation, first: int, until: int) -> bytes:
    hashes = conversation.engine[first:until][::-1].tolist()
    return msgspec.msgpack.encode([0.0, [["BlockRemoved", hashes, "GPU"]], 0])


def announcements(
    known: Sequence[Conversation], held: Sequence[Holding]
) -> Iterator[tuple[int, bytes]]:
    """(worker, payload) for everything that is held, in events of EVENT_BLOCKS."""
    for holding in held:
        conversation = known[holding.conversation]
        for first in range(0, holding.depth_blocks, EVENT_BLOCKS):
            until = min(first + EVENT_BLOCKS, holding.depth_blocks)
            yield holding.worker, stored(conversation, first, until)


class Engines:
    """One publishing socket per worker; sequence numbers only ever rise."""

    def __init__(self, workers: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets = [self._context.socket(zmq.XPUB) for _ in range(workers)]
        self.endpoints = []
        for socket in self._sockets:
            socket.set(zmq.SNDHWM, 0)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.XPUB_VERBOSE, 1)
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            self.endpoints.append(f"tcp://127.0.0.1:{port}")
        self._sequences = [0] * workers

    def wait_for_subscribers(self) -> None:
        """Until one more subscriber has come to every socket."""
        for socket in self._sockets:
            assert socket.poll(int(SUBSCRIBERS_S_MAX * 1000)), "a worker is not listened to"
            while not socket.recv().startswith(b"\x01"):
                pass

    def publish(self, worker: int, payload: bytes) -> None:
        sequence = self._sequences[worker]
        self._sequences[worker] += 1
        self._sockets[worker].send_multipart((b"", sequence.to_bytes(8, "big"), payload))

    def publish_at(
        self, worker: int, payloads: Sequence[bytes], rate: float, seconds: float
    ) -> int:
        """The payloads in turn, `rate` per second; returns how many were sent."""
        started = time.perf_counter()
        sent = 0
        while (elapsed := time.perf_counter() - started) < seconds:
            for _ in range(int(elapsed * rate) - sent):
                self.publish(worker, payloads[sent % len(payloads)])
                sent += 1
            time.sleep(0.0005)
        return sent

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._context.term()
