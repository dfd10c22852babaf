"""Ranks of a real vLLM: its block pool, block hashing and event publisher with replay server."""

import os
import random
import time
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["PYTHONHASHSEED"] = "0"

from recording.living import BLOCK_SIZE, POOL_BLOCKS, on_loopback, prompts, published
from recording.vllm_pool import block_pool
from recording.wire import call_known
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request

kv_cache_utils.init_none_hash(sha256)

_Publisher = on_loopback(ZmqEventPublisher)


class Rank:
    """One block pool of vLLM; no request runs before `bind`."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._prompts = prompts()
        self._hasher = kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, sha256)
        self._pool = block_pool(POOL_BLOCKS)
        self._publisher: Any = None

    def bind(self, events: int, replay: int) -> None:
        self._publisher = published(_Publisher, events, replay)

    def run_one(self) -> None:
        """One request, from its prompt to its end."""
        request = self._request(self._rng.choice(self._prompts))
        found = self._pool.get_computed_blocks(request)
        n_tokens = request.num_prompt_tokens
        new = n_tokens - found[1]
        assert self._pool.allocate_slots(request, new, found[1], found[0]) is not None
        request.num_computed_tokens = n_tokens
        self._pool.free(request)
        events = self._pool.take_events()
        if events:
            self._publisher.publish(KVEventBatch(ts=time.time(), events=events))

    def held_leading(self) -> list[int]:
        """How many leading blocks of each prompt are in the pool."""
        return [self._leading(self._request(prompt).block_hashes) for prompt in self._prompts]

    def _leading(self, hashes: list[Any]) -> int:
        blocks = self._pool.block_pool
        return next(
            (i for i, each in enumerate(hashes) if blocks.get_cached_block(each, [0]) is None),
            len(hashes),
        )

    def _request(self, tokens: list[int]) -> Any:
        return call_known(
            Request,
            request_id="r",
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=16),
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self._hasher,
        )
