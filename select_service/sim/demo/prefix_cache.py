"""Cache of a simulated rank: LRU prefix caching with a limited number of blocks.

Pure: no clock and no socket. Every change produces KV events as vLLM publishes them, in order;
`kv_publisher` sends the events, and `virtual_world` decides the times.

The rules are those of vLLM's block pool, as visible from outside:

* the identity of a full block is its content *and everything before the block* (chain key);
* a prompt reuses its longest cached prefix; the rest is computed and announced at admission;
* blocks of running requests are referenced and never evicted; blocks of a finished request stay
  cached, and the last block is evicted first, so that no block outlives its predecessor;
* a new block takes an unused place, or evicts the least recently used unreferenced block.

Left out: preemption. A request is admitted only if its prompt *and* its whole answer fit. Two
requests that compute the same block at once share the block instead of two copies.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]

U64_MASK = 2**64 - 1
ROOT_KEY = 0


class VllmBlockStored(Struct, tag="BlockStored", omit_defaults=True):
    """New blocks in chain order. Field names and order are vLLM's wire format."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None


class VllmBlockRemoved(Struct, tag="BlockRemoved", omit_defaults=True):
    """Evicted blocks."""

    block_hashes: list[int]
    medium: str | None = None


class VllmAllBlocksCleared(Struct, tag="AllBlocksCleared", omit_defaults=True):
    """Reset of the whole cache."""


KvEvent = VllmBlockStored | VllmBlockRemoved | VllmAllBlocksCleared

GPU = "GPU"


def chain_keys(tokens: Tokens, block_size: int) -> list[int]:
    """Return a 64-bit key per full block; equal keys mean equal content from the start."""
    keys: list[int] = []
    previous = ROOT_KEY
    for start in range(0, len(tokens) - block_size + 1, block_size):
        content = tokens[start : start + block_size].astype("<u4", copy=False).tobytes()
        digest = blake2b(previous.to_bytes(8, "big") + content, digest_size=8).digest()
        # Each key includes the previous key, so equal keys mean equal prefixes.
        previous = int.from_bytes(digest, "big")
        keys.append(previous)
    return keys


@dataclass(frozen=True, slots=True)
class CacheJob:
    """Blocks of a request in a cache.

    `tokens` (uint32) and `keys` may continue behind the request: a conversation is a stream of
    tokens, and each turn is a prefix of the stream. Only the first `prompt_blocks + output_blocks`
    keys are used.
    """

    keys: Sequence[int]
    tokens: Tokens
    prompt_blocks: int
    output_blocks: int
    has_tail: bool

    def __post_init__(self) -> None:
        assert len(self.keys) >= self.prompt_blocks + self.output_blocks

    @property
    def places(self) -> int:
        """Blocks of memory that the request needs from start to end."""
        return self.prompt_blocks + self.output_blocks + self.has_tail


@dataclass(slots=True)
class RunningJob:
    """An admitted job.

    full_blocks: blocks that are full;  promised: places that are reserved and not yet filled
    """

    job: CacheJob
    full_blocks: int
    promised: int


@dataclass(slots=True)
class PrefixCache:
    """Block pool of a rank. `hash_seed` makes the block names differ from those of other ranks."""

    blocks_max: int
    block_size: int
    hash_seed: int = 0
    _references: dict[int, int] = field(default_factory=dict)
    _idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _promised: int = 0
    _events: list[KvEvent] = field(default_factory=list)

    def count_cached(self, keys: Sequence[int]) -> int:
        """Return how many leading blocks of the chain `keys` are cached now."""
        return sum(1 for _ in takewhile(self._is_cached, keys))

    def has_room(self, job: CacheJob) -> bool:
        """Return whether `admit_job` would succeed now."""
        hits = job.keys[: self.count_cached(job.keys[: job.prompt_blocks])]
        pinned = (
            len(self._references) + self._promised + sum(1 for key in hits if key in self._idle)
        )
        # Hits that are idle become pinned as well, so they are no longer available for eviction.
        return job.places - len(hits) <= self.blocks_max - pinned

    def admit_job(self, job: CacheJob) -> tuple[RunningJob, int]:
        """Start a job; returns its handle and the number of cached prompt blocks.

        `has_room` must be true. The new blocks are announced at once, as in vLLM.
        """
        assert self.has_room(job), "admitted without room"
        hits = self.count_cached(job.keys[: job.prompt_blocks])
        for key in job.keys[:hits]:
            self._add_reference(key)
        # Reserved at once: without preemption an admitted job must be able to finish.
        promised = job.output_blocks + job.has_tail
        self._promised += promised
        self._make_room(job.prompt_blocks - hits)
        for key in job.keys[hits : job.prompt_blocks]:
            self._references[key] = 1
        self._record_stored(job, hits, job.prompt_blocks)
        return RunningJob(job, job.prompt_blocks, promised), hits

    def fill_output_block(self, running: RunningJob) -> None:
        """Fill another output block; identical cached content is shared."""
        key = running.job.keys[running.full_blocks]
        self._promised -= 1
        running.promised -= 1
        if self._is_cached(key):
            self._add_reference(key)
        else:
            self._references[key] = 1
            self._record_stored(running.job, running.full_blocks, running.full_blocks + 1)
        running.full_blocks += 1

    def release_job(self, running: RunningJob) -> None:
        """Release a job. Its full blocks stay cached; the last block will be evicted first."""
        self._promised -= running.promised
        running.promised = 0
        # In reverse, so that a block becomes idle before its predecessor and is evicted first.
        for key in reversed(running.job.keys[: running.full_blocks]):
            self._references[key] -= 1
            if self._references[key] == 0:
                del self._references[key]
                self._idle[key] = None

    def take_events(self) -> list[KvEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def engine_hash(self, key: int) -> int:
        """Return the name of a block in the events of this rank, unsigned 64-bit."""
        # Engines name equal content differently; only tokens identify a block across ranks.
        return key ^ self.hash_seed

    def check_invariants(self) -> None:
        """Recompute all incremental state.  O(blocks), for tests."""
        assert not self._references.keys() & self._idle.keys()
        assert all(count > 0 for count in self._references.values())
        assert self._promised >= 0
        assert len(self._references) + len(self._idle) + self._promised <= self.blocks_max

    def _is_cached(self, key: int) -> bool:
        return key in self._references or key in self._idle

    def _add_reference(self, key: int) -> None:
        if key in self._idle:
            del self._idle[key]
        self._references[key] = self._references.get(key, 0) + 1

    def _make_room(self, new_blocks: int) -> None:
        used = len(self._references) + len(self._idle) + self._promised
        excess = used + new_blocks - self.blocks_max
        # The front of the ordered dictionary is the least recently used.
        evicted = [self._idle.popitem(last=False)[0] for _ in range(excess)]
        if evicted:
            self._events.append(VllmBlockRemoved([self.engine_hash(key) for key in evicted], GPU))

    def _record_stored(self, job: CacheJob, first: int, end: int) -> None:
        if first == end:
            return
        self._events.append(
            VllmBlockStored(
                block_hashes=[self.engine_hash(key) for key in job.keys[first:end]],
                parent_block_hash=self.engine_hash(job.keys[first - 1]) if first else None,
                token_ids=job.tokens[first * self.block_size : end * self.block_size].tolist(),
                block_size=self.block_size,
                medium=GPU,
            )
        )
