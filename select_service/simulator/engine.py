"""The cache of one simulated rank: LRU prefix caching with a real block budget.

Pure: no clock, no socket.  Every change is told as KV events of the kind that vLLM publishes, in
order; `publisher` puts them on the wire, `world` decides when things happen.

The rules are those of vLLM's block pool, as far as an outsider can see them:

* a full block is known by its content *and everything before it* (its chain key);
* a prompt reuses its longest cached prefix, the rest is computed and announced when it is admitted;
* blocks of running requests are referenced and cannot be evicted; a finished request's blocks stay
  cached, its last block being the first to go, so that no block outlives the one before it;
* a new block takes an unused place, or evicts the least recently used unreferenced block.

Left out: preemption.  A request is admitted only when its prompt *and* its whole answer fit, and
two requests that compute the same block at once share it instead of keeping a copy each.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import takewhile

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]

U64_MASK = 2**64 - 1
ROOT_KEY = 0


class BlockStored(Struct, tag=True, omit_defaults=True):
    """New blocks in the order of their chain.  Field names and order are vLLM's wire format."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None


class BlockRemoved(Struct, tag=True, omit_defaults=True):
    """Evicted blocks."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(Struct, tag=True, omit_defaults=True):
    """The whole cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared

GPU = "GPU"


def chain_keys(tokens: Tokens, block_size: int) -> list[int]:
    """One 64-bit key per full block of `tokens`: equal keys mean equal content from the start."""
    keys: list[int] = []
    previous = ROOT_KEY
    for start in range(0, len(tokens) - block_size + 1, block_size):
        content = tokens[start : start + block_size].astype("<u4", copy=False).tobytes()
        digest = blake2b(previous.to_bytes(8, "big") + content, digest_size=8).digest()
        previous = int.from_bytes(digest, "big")
        keys.append(previous)
    return keys


@dataclass(frozen=True, slots=True)
class Job:
    """What one request asks of a cache, in blocks.

    `tokens` (uint32) and `keys` may run on past this request: a conversation is one stream of
    tokens and each of its turns is a prefix of it.  Only the first `prompt_blocks + output_blocks`
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
class Running:
    """An admitted job: how many of its blocks are full, how many places it has not filled yet."""

    job: Job
    full_blocks: int
    promised: int


@dataclass(slots=True)
class Engine:
    """The block pool of one rank.  `hash_seed` sets its block names apart from others'."""

    blocks_max: int
    block_size: int
    hash_seed: int = 0
    _references: dict[int, int] = field(default_factory=dict)
    _idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _promised: int = 0
    _events: list[KvEvent] = field(default_factory=list)

    def held(self, keys: Sequence[int]) -> int:
        """How many leading blocks of the chain `keys` are in the cache now."""
        return sum(1 for _ in takewhile(self._holds, keys))

    def has_room(self, job: Job) -> bool:
        """Whether `admit` would succeed now."""
        hits = job.keys[: self.held(job.keys[: job.prompt_blocks])]
        pinned = (
            len(self._references) + self._promised + sum(1 for key in hits if key in self._idle)
        )
        return job.places - len(hits) <= self.blocks_max - pinned

    def admit(self, job: Job) -> tuple[Running, int]:
        """Start a job: returns its handle and how many prompt blocks were found in the cache.

        The caller has asked `has_room`; the new blocks are announced at once, as vLLM does.
        """
        assert self.has_room(job), "admitted without room"
        hits = self.held(job.keys[: job.prompt_blocks])
        for key in job.keys[:hits]:
            self._reference(key)
        promised = job.output_blocks + job.has_tail
        self._promised += promised
        self._make_room(job.prompt_blocks - hits)
        for key in job.keys[hits : job.prompt_blocks]:
            self._references[key] = 1
        self._announce(job, hits, job.prompt_blocks)
        return Running(job, job.prompt_blocks, promised), hits

    def grow(self, running: Running) -> None:
        """One more block of the answer is full; identical content in the cache is shared."""
        key = running.job.keys[running.full_blocks]
        self._promised -= 1
        running.promised -= 1
        if self._holds(key):
            self._reference(key)
        else:
            self._references[key] = 1
            self._announce(running.job, running.full_blocks, running.full_blocks + 1)
        running.full_blocks += 1

    def finish(self, running: Running) -> None:
        """Release the job.  Its full blocks stay cached; the last one will be evicted first."""
        self._promised -= running.promised
        running.promised = 0
        for key in reversed(running.job.keys[: running.full_blocks]):
            self._references[key] -= 1
            if self._references[key] == 0:
                del self._references[key]
                self._idle[key] = None

    def take_events(self) -> list[KvEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def cached_keys(self) -> Iterator[int]:
        """Every cached block, referenced or not."""
        yield from self._references
        yield from self._idle

    def engine_hash(self, key: int) -> int:
        """The name of block `key` in this rank's events, unsigned 64-bit."""
        return key ^ self.hash_seed

    def check_invariants(self) -> None:
        """Recompute what is kept incrementally.  O(blocks), for tests."""
        assert not self._references.keys() & self._idle.keys()
        assert all(count > 0 for count in self._references.values())
        assert self._promised >= 0
        assert len(self._references) + len(self._idle) + self._promised <= self.blocks_max

    def _holds(self, key: int) -> bool:
        return key in self._references or key in self._idle

    def _reference(self, key: int) -> None:
        if key in self._idle:
            del self._idle[key]
        self._references[key] = self._references.get(key, 0) + 1

    def _make_room(self, new_blocks: int) -> None:
        used = len(self._references) + len(self._idle) + self._promised
        excess = used + new_blocks - self.blocks_max
        evicted = [self._idle.popitem(last=False)[0] for _ in range(excess)]
        if evicted:
            self._events.append(BlockRemoved([self.engine_hash(key) for key in evicted], GPU))

    def _announce(self, job: Job, first: int, end: int) -> None:
        if first == end:
            return
        self._events.append(
            BlockStored(
                block_hashes=[self.engine_hash(key) for key in job.keys[first:end]],
                parent_block_hash=self.engine_hash(job.keys[first - 1]) if first else None,
                token_ids=job.tokens[first * self.block_size : end * self.block_size].tolist(),
                block_size=self.block_size,
                medium=GPU,
            )
        )
