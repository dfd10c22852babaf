"""Modules with the names of vLLM's, for the scripts that run its block pool without a GPU.

    python -m tests.bench.stand_in_engine SCRIPT [arguments]

runs a script of ours beside them.  They have what `scripts/recording/living_vllm.py` uses: a pool
of blocks that are evicted in order of their last use, hashes that depend on all tokens before, and
a publisher with a replay server.  What a real engine does, only a real engine shows.
"""

import hashlib
import runpy
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import zmq

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
BUFFERED = 10_000
POLL_MS = 20

Hash = Callable[[Any], bytes]


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class BlockStored(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    block_hashes: list[bytes]
    medium: str | None = None


class ZmqEventPublisher:
    """Publishes from a thread, which also answers what was published before."""

    def __init__(self, rank: int, endpoint: str, replay_endpoint: str) -> None:
        self._ctx: zmq.Context[Any] = zmq.Context.instance()
        self._endpoint, self._replay_endpoint, self._hwm = endpoint, replay_endpoint, 100_000
        self._pub: Any = None
        self._replay: Any = None
        self._rank = rank
        self._batches: deque[bytes] = deque()
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=BUFFERED)
        threading.Thread(target=self._work, daemon=True).start()

    def publish(self, batch: KVEventBatch) -> None:
        batch.data_parallel_rank = self._rank
        self._batches.append(msgspec.msgpack.encode(batch))

    def _socket_setup(self) -> None:
        raise NotImplementedError("the script binds the sockets")

    def _work(self) -> None:
        self._socket_setup()
        number = 0
        while True:
            if self._replay.poll(0 if self._batches else POLL_MS):
                self._answer()
            if self._batches:
                payload = self._batches.popleft()
                self._sent.append((number, payload))
                self._pub.send_multipart((b"", number.to_bytes(8, "big"), payload))
                number += 1

    def _answer(self) -> None:
        client, _, first = self._replay.recv_multipart()
        for number, payload in self._sent:
            if number >= int.from_bytes(first, "big"):
                self._replay.send_multipart((client, b"", number.to_bytes(8, "big"), payload))
        self._replay.send_multipart((client, b"", END_OF_REPLAY, b""))


class Request:
    def __init__(self, prompt_token_ids: list[int], block_hasher: Any) -> None:
        self.tokens = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_computed_tokens = 0
        self.block_hashes: list[bytes] = block_hasher(self)


class FullAttentionSpec(NamedTuple):
    block_size: int


class KVCacheGroupSpec(NamedTuple):
    layers: list[str]
    spec: FullAttentionSpec


class KVCacheConfig(NamedTuple):
    num_blocks: int
    kv_cache_groups: list[KVCacheGroupSpec]


class KVCacheManager:
    """Blocks by their hashes, the one that was used last at the end."""

    def __init__(self, kv_cache_config: KVCacheConfig) -> None:
        self.block_pool = self
        self._size = kv_cache_config.kv_cache_groups[0].spec.block_size
        self._blocks_max = kv_cache_config.num_blocks - 2
        """One stands for nothing, one holds the end of a prompt."""
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        self._events: list[Any] = []

    def get_cached_block(self, block_hash: bytes, groups: list[int]) -> bytes | None:
        return block_hash if block_hash in self._blocks else None

    def get_computed_blocks(self, request: Request) -> tuple[list[bytes], int]:
        hashes = request.block_hashes
        found = next((i for i, h in enumerate(hashes) if h not in self._blocks), len(hashes))
        return hashes[:found], found * self._size

    def allocate_slots(
        self, request: Request, new: int, computed: int, blocks: list[bytes]
    ) -> list[bytes]:
        for block_hash in blocks:
            self._blocks.move_to_end(block_hash)
        first = len(blocks)
        fresh = [each for each in request.block_hashes[first:] if each not in self._blocks]
        for block_hash in request.block_hashes[first:]:
            if block_hash in self._blocks:
                self._blocks.move_to_end(block_hash)
        removed = []
        while len(self._blocks) + len(fresh) > self._blocks_max:
            removed.append(self._blocks.popitem(last=False)[0])
        if removed:
            self._events.append(BlockRemoved(removed, "GPU"))
        for at, block_hash in enumerate(request.block_hashes[first:], first):
            if block_hash not in self._blocks:
                self._store(request, at)
        return fresh

    def _store(self, request: Request, at: int) -> None:
        hashes, size = request.block_hashes, self._size
        self._blocks[hashes[at]] = None
        parent = hashes[at - 1] if at else None
        tokens = request.tokens[at * size : (at + 1) * size]
        self._events.append(BlockStored([hashes[at]], parent, tokens, size, None, "GPU"))

    def free(self, request: Request) -> None:
        """Children go before their parents."""
        for block_hash in reversed(request.block_hashes):
            self._blocks.move_to_end(block_hash)

    def take_events(self) -> list[Any]:
        events, self._events = self._events, []
        return events


def sha256(value: Any) -> bytes:
    return hashlib.sha256(repr(value).encode()).digest()


def get_request_block_hasher(block_size: int, hash_of: Hash) -> Callable[[Request], list[bytes]]:
    def hashes(request: Request) -> list[bytes]:
        found: list[bytes] = []
        for begin in range(0, len(request.tokens) - block_size + 1, block_size):
            tokens = tuple(request.tokens[begin : begin + block_size])
            found.append(hash_of((found[-1] if found else None, tokens)))
        return found

    return hashes


MODULES: dict[str, dict[str, Any]] = {
    "torch": {"float32": "float32"},
    "vllm": {},
    "vllm.distributed": {},
    "vllm.distributed.kv_events": {
        "KVEventBatch": KVEventBatch,
        "ZmqEventPublisher": ZmqEventPublisher,
    },
    "vllm.sampling_params": {"SamplingParams": lambda max_tokens: max_tokens},
    "vllm.utils": {},
    "vllm.utils.hashing": {"sha256": sha256},
    "vllm.v1": {},
    "vllm.v1.core": {},
    "vllm.v1.core.kv_cache_utils": {
        "init_none_hash": lambda hash_of: None,
        "get_request_block_hasher": get_request_block_hasher,
    },
    "vllm.v1.core.kv_cache_manager": {"KVCacheManager": KVCacheManager},
    "vllm.v1.kv_cache_interface": {
        "FullAttentionSpec": FullAttentionSpec,
        "KVCacheConfig": KVCacheConfig,
        "KVCacheGroupSpec": KVCacheGroupSpec,
    },
    "vllm.v1.request": {"Request": Request},
}


def register_modules() -> None:
    """Let imports find the modules."""
    for name, members in MODULES.items():
        module = ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


if __name__ == "__main__":
    register_modules()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
