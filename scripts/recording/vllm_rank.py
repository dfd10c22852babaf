"""Rank of a real vLLM without GPU and model: block pool, CPU tier and event publisher.

Real are the block pool (allocation, LRU eviction, duplicate blocks), block hashing, the policy of
the CPU tier, and the event publisher with its replay server. Simulated is the scheduler that moves
a request through the pool. Works with vLLM 0.23 to 0.33.

Source of the shapes of CPU tier events: vLLM's offloading connector.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["PYTHONHASHSEED"] = "0"

from recording.vllm_pool import block_pool
from recording.wire import BLOCK_SIZE, RNG, TOKENS, Prompt, Stream, call_known, count_while
from vllm.distributed.kv_events import (
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    ZmqEventPublisher,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import ReqContext, get_offload_block_hash, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.request import Request

kv_cache_utils.init_none_hash(sha256)
HASHER = kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, sha256)


class CpuTier:
    """vLLM's CPU offloading manager without the copies, and the events of its connector."""

    def __init__(self, n_blocks: int, with_tokens: bool) -> None:
        self._manager = call_known(
            CPUOffloadingManager, num_blocks=n_blocks, num_chunks=n_blocks, enable_events=True
        )
        self._n_blocks = n_blocks
        self._with_tokens = with_tokens
        self._origin: dict[bytes, tuple[bytes | None, list[int]]] = {}

    def holds(self, block_hash: bytes) -> bool:
        return self._manager._policy.get(make_offload_key(block_hash, 0)) is not None

    def store(self, request: Request) -> list[Any]:
        """Offload the computed full blocks of a request and return the events."""
        context = call_known(ReqContext, req_id=request.request_id)
        hashes = request.block_hashes[: request.num_computed_tokens // BLOCK_SIZE]
        for i, block_hash in enumerate(hashes):
            tokens = list(request.all_token_ids[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE])
            self._origin[block_hash] = (hashes[i - 1] if i else None, tokens)
        self._manager.touch([make_offload_key(h, 0) for h in hashes], context)
        missing = [make_offload_key(h, 0) for h in hashes if not self.holds(h)]
        missing = missing[: self._n_blocks]
        if missing and self._manager.prepare_store(missing, context) is not None:
            self._manager.complete_store(missing, context)
        return [event for change in self._manager.take_events() for event in self._events(change)]

    def _events(self, change: Any) -> Iterator[Any]:
        hashes = [get_offload_block_hash(key) for key in change.keys]
        if change.removed:
            yield call_known(
                BlockRemoved, block_hashes=self._names(hashes), medium="CPU", group_idx=self._group
            )
        elif self._with_tokens:
            for block_hash in hashes:
                parent, tokens = self._origin[block_hash]
                yield self._stored([block_hash], parent, tokens)
        elif self._is_old:
            yield self._stored(hashes, None, [])
        else:
            for block_hash in hashes:
                yield self._stored([block_hash], None, [])

    def _stored(self, hashes: list[bytes], parent: bytes | None, tokens: list[int]) -> Any:
        return call_known(
            BlockStored,
            block_hashes=self._names(hashes),
            parent_block_hash=None if parent is None else self._names([parent])[0],
            token_ids=tokens,
            block_size=BLOCK_SIZE if tokens else 0,
            lora_id=None,
            medium="CPU",
            lora_name=None,
            group_idx=self._group,
        )

    @property
    def _is_old(self) -> bool:
        """Whether the connector is that of 0.23, which sends raw hashes without tokens."""
        return "num_blocks" in inspect.signature(CPUOffloadingManager).parameters

    @property
    def _group(self) -> int | None:
        return None if self._is_old else 0

    def _names(self, hashes: list[bytes]) -> list[Any]:
        raw = self._is_old and not self._with_tokens
        return hashes if raw else [kv_cache_utils.maybe_convert_block_hash(h) for h in hashes]


class VllmEngineRank:
    """Data-parallel rank: a block pool and its publisher."""

    def __init__(
        self, worker: int, rank: int, options: SimpleNamespace, record: Callable[..., None]
    ) -> None:
        self._options = options
        self.stream = Stream(ZmqEventPublisher, worker, rank, record)
        self._start()

    def _start(self) -> None:
        self._pool = block_pool(self._options.num_blocks)
        self._cpu: CpuTier | None = None
        if self._options.cpu_blocks:
            self._cpu = CpuTier(self._options.cpu_blocks, self._options.cpu_tokens)

    def restart(self) -> None:
        """Restart the engine: empty pool, sequence numbers from 0."""
        self.stream.close()
        self.stream.open()
        self._start()

    def reset(self) -> None:
        """Drop all cached blocks (AllBlocksCleared)."""
        assert self._pool.reset_prefix_cache()
        self._publish([])

    def run(self, prompt: Prompt, output_tokens: int = 0) -> None:
        """Run a request from prompt to end."""
        request = request_of(prompt)
        found = self._pool.get_computed_blocks(request)
        blocks, cached = found[0], found[1]
        n_tokens = len(prompt["token_ids"])
        assert self._pool.allocate_slots(request, n_tokens - cached, cached, blocks) is not None
        request.num_computed_tokens = n_tokens
        self._publish([])
        for _ in range(output_tokens):
            request.append_output_token_ids(RNG.randrange(TOKENS))
            assert self._pool.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        self._pool.free(request)
        self._publish([] if self._cpu is None else self._cpu.store(request))

    def count_cached(self, prompt: Prompt) -> tuple[int, int]:
        """Return the leading blocks of the prompt on GPU, and on GPU continued by the CPU tier."""
        hashes = request_of(prompt).block_hashes
        gpu = count_while(lambda h: self._pool.block_pool.get_cached_block(h, [0]), hashes)
        tier = self._cpu
        more = count_while(tier.holds, hashes[gpu:]) if tier is not None else 0
        return gpu, gpu + more

    def close(self) -> None:
        self.stream.close()

    def _publish(self, more: list[Any]) -> None:
        events = [*self._pool.take_events(), *more]
        if events:
            self.stream.publish(lambda ts: KVEventBatch(ts=ts, events=events))


def request_of(prompt: Prompt) -> Request:
    lora = prompt.get("lora_name")
    return call_known(
        Request,
        request_id="r",
        prompt_token_ids=list(prompt["token_ids"]),
        sampling_params=SamplingParams(max_tokens=4096),
        pooling_params=None,
        arrival_time=0.0,
        block_hasher=HASHER,
        lora_request=LoRARequest(lora, 1 + sum(lora.encode()), "/adapters") if lora else None,
        cache_salt=prompt.get("cache_salt"),
        mm_features=mm_features_of(prompt),
    )


def mm_features_of(prompt: Prompt) -> list[MultiModalFeatureSpec]:
    """Return one image for each block with an image, with a hash of 64 digits."""
    infos = prompt.get("block_mm_infos") or []
    return [
        call_known(
            MultiModalFeatureSpec,
            data=None,
            modality="image",
            identifier=f"{item['mm_hash']:016x}" * 4,
            mm_position=PlaceholderRange(offset=block * BLOCK_SIZE, length=BLOCK_SIZE),
        )
        for block, info in enumerate(infos)
        if info is not None
        for item in info["mm_objects"]
    ]
