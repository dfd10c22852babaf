"""Data of paired runs: conversations, their holders, KV events.

Fixed seeds determine everything, so that both contenders receive the same bytes.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import zmq

from indexer.hashing.block_hashing import compute_block_hashes, compute_sequence_hashes

BLOCK_SIZE = 16
CONVERSATIONS = 64
DEPTH_BLOCKS = 4096
SHARED_BLOCKS = 4
"""Blocks of the system prompt that begins every conversation."""
HOLDERS = 4
EVENT_BLOCKS = 64
ENGINE_SALT = np.uint64(0x9E3779B97F4A7C15)
BODIES = 64
SUBSCRIBERS_S_MAX = 30.0


class Conversation(NamedTuple):
    tokens: np.ndarray  # uint32 [DEPTH_BLOCKS * BLOCK_SIZE]
    blocks: np.ndarray  # uint64 [DEPTH_BLOCKS], hashes in the index of the service
    engine: np.ndarray  # uint64 [DEPTH_BLOCKS], block names of an engine


class ConversationHolding(NamedTuple):
    worker: int  # from 0
    conversation: int
    depth_blocks: int


def make_conversation(seed: int, n_blocks: int, n_shared: int = 0) -> Conversation:
    """Return random tokens behind `n_shared` common blocks."""
    shared = np.random.default_rng(99).integers(0, 128_000, n_shared * BLOCK_SIZE, np.uint32)
    generator = np.random.default_rng(seed)
    own = generator.integers(0, 128_000, (n_blocks - n_shared) * BLOCK_SIZE, np.uint32)
    tokens = np.concatenate((shared, own))
    blocks = compute_block_hashes(tokens, BLOCK_SIZE)
    # Engines have hashes of their own; the salt keeps both kinds apart.
    return Conversation(tokens, blocks, compute_sequence_hashes(blocks) ^ ENGINE_SALT)


def make_conversations() -> list[Conversation]:
    numbers = range(1000, 1000 + CONVERSATIONS)
    return [make_conversation(number, DEPTH_BLOCKS, SHARED_BLOCKS) for number in numbers]


def make_holdings(workers: int) -> list[ConversationHolding]:
    """Return HOLDERS workers per conversation; the first has all blocks, all have the first."""
    generator = np.random.default_rng(5)
    held = []
    for number in range(CONVERSATIONS):
        for place, worker in enumerate(generator.permutation(workers)[:HOLDERS]):
            ragged = int(generator.integers(SHARED_BLOCKS, DEPTH_BLOCKS))
            held.append(ConversationHolding(int(worker), number, ragged if place else DEPTH_BLOCKS))
    # Every worker holds something, so that its event stream can be checked.
    idle = set(range(workers)) - {h.worker for h in held}
    return held + [ConversationHolding(worker, 0, SHARED_BLOCKS) for worker in sorted(idle)]


def as_signed(hashes: np.ndarray) -> list[int]:
    """Return the form that both contenders read."""
    values: list[int] = hashes.view(np.int64).tolist()
    return values


def select_bodies(
    known: Sequence[Conversation], n_blocks: int, n_bodies: int = BODIES
) -> list[bytes]:
    """Return prompts of which three quarters continue a conversation and the rest is new."""
    generator = np.random.default_rng(77)
    bodies = []
    for number in range(n_bodies):
        head = known[number % len(known)].blocks[: max(1, n_blocks * 3 // 4)]
        fresh = generator.integers(0, 2**64, n_blocks - len(head), np.uint64)
        path = np.concatenate((head, fresh))
        prompt = {
            "block_hashes": as_signed(path),
            "sequence_hashes": as_signed(compute_sequence_hashes(path)),
            "isl_tokens": n_blocks * BLOCK_SIZE,
        }
        bodies.append(msgspec.json.encode(prompt))
    return bodies


def token_bodies(known: Sequence[Conversation], n_tokens: int, n_bodies: int) -> list[bytes]:
    """Return the same prompts as token ids; the share of the conversation may be smaller."""
    generator = np.random.default_rng(78)
    bodies = []
    for number in range(n_bodies):
        head = known[number % len(known)].tokens[: n_tokens * 3 // 4]
        fresh = generator.integers(0, 128_000, n_tokens - len(head), np.uint32)
        tokens = np.concatenate((head, fresh)).tolist()
        bodies.append(msgspec.json.encode({"token_ids": tokens}))
    return bodies


def stored_batch(source: Conversation, first: int, until: int, parent: int | None = None) -> bytes:
    """Return the batch that announces blocks [first, until) of a conversation.

    parent: predecessor of block 0; any other block continues the one before
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


def removed_batch(conversation: Conversation, first: int, until: int) -> bytes:
    hashes = conversation.engine[first:until][::-1].tolist()
    return msgspec.msgpack.encode([0.0, [["BlockRemoved", hashes, "GPU"]], 0])


def make_announcements(
    known: Sequence[Conversation], held: Sequence[ConversationHolding]
) -> Iterator[tuple[int, bytes]]:
    """Yield (worker, payload) of all holdings, in events of EVENT_BLOCKS."""
    for holding in held:
        conversation = known[holding.conversation]
        for first in range(0, holding.depth_blocks, EVENT_BLOCKS):
            until = min(first + EVENT_BLOCKS, holding.depth_blocks)
            yield holding.worker, stored_batch(conversation, first, until)


class EventPublishers:
    """One publishing socket per worker; sequence numbers only increase."""

    def __init__(self, workers: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets = [self._context.socket(zmq.XPUB) for _ in range(workers)]
        self.endpoints = []
        for socket in self._sockets:
            # No limit, so that a slow service loses no events.
            socket.set(zmq.SNDHWM, 0)
            socket.set(zmq.LINGER, 0)
            # Every subscription is reported, also a second one to the same topic.
            socket.set(zmq.XPUB_VERBOSE, 1)
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            self.endpoints.append(f"tcp://127.0.0.1:{port}")
        self._sequences = [0] * workers

    def wait_for_subscribers(self) -> None:
        """Wait for one more subscriber at every socket."""
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
        """Publish the payloads in turn at `rate` per second and return the number sent."""
        started = time.perf_counter()
        sent = 0
        while (elapsed := time.perf_counter() - started) < seconds:
            # Catches up after a late wake-up, so the mean rate is exact.
            for _ in range(int(elapsed * rate) - sent):
                self.publish(worker, payloads[sent % len(payloads)])
                sent += 1
            time.sleep(0.0005)
        return sent

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._context.term()
