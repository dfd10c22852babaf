"""Rank of a real vLLM with several cache groups, without GPU and model.

Real are the cache manager with its groups and eviction, the names of prefixes, where the scheduler
ends the prefills of models with states, and the events. Simulated are the scheduler's queue, the
choice which request is preempted, and the tokens that a request generates.
"""

import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# Names of prefixes must not differ from one recording to the next; 0.23 draws a seed without it.
os.environ["PYTHONHASHSEED"] = "vllm-none-hash"

import torch
from recording.cache_layouts import GroupOfLayers, RecordedLayout
from recording.wire import call_known
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1 import kv_cache_interface
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

SPECIFICATIONS = {
    "full": "FullAttentionSpec",
    "mla": "MLAAttentionSpec",
    "window": "SlidingWindowSpec",
    "window_mla": "SlidingWindowMLASpec",
    "chunks": "ChunkedLocalAttentionSpec",
    "state": "MambaSpec",
}
TOKENS_PER_STEP = 1024
GENERATED_TOKENS = 30_000


def specification_of(group: GroupOfLayers, layout: RecordedLayout) -> Any:
    return call_known(
        getattr(kv_cache_interface, SPECIFICATIONS[group.kind]),
        block_size=group.size,
        num_kv_heads=group.heads,
        head_size=8,
        dtype=torch.float32,
        dcp_sharded=group.is_sharded,
        sliding_window=group.length,
        attention_chunk_size=group.length,
        shapes=((8 * group.heads,),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
        num_prefill_checkpoint_blocks=1 if layout.checkpoint else 0,
        prefill_checkpoint_alignment=layout.checkpoint or None,
    )


def manager_of(layout: RecordedLayout) -> Any:
    """Return vLLM's cache manager of a layout."""
    groups = [
        call_known(
            kv_cache_interface.KVCacheGroupSpec,
            layer_names=[f"layer.{n}"],
            kv_cache_spec=specification_of(group, layout),
            is_eagle_group=group.is_draft,
        )
        for n, group in enumerate(layout.groups)
    ]
    cache = call_known(
        kv_cache_interface.KVCacheConfig,
        num_blocks=layout.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=layout.retention,
    )
    return call_known(
        KVCacheManager,
        kv_cache_config=cache,
        max_model_len=65_536,
        scheduler_block_size=layout.step_size,
        hash_block_size=layout.unit_size,
        max_in_flight_tokens=8192,
        max_num_batched_tokens=8192,
        enable_caching=True,
        enable_kv_cache_events=True,
        use_eagle=layout.drops,
        num_hash_lookahead_tokens=layout.ahead,
        num_prefill_lookahead=drafted_tokens(layout),
        dcp_world_size=layout.context_parallel,
        pcp_world_size=1,
        log_stats=False,
    )


def drafted_tokens(layout: RecordedLayout) -> int:
    """Return the tokens for which a draft needs room behind a request."""
    return layout.ahead or int(layout.drops)


class GroupedEngineRank:
    """Cache manager of a layout with a queue of requests."""

    def __init__(
        self, layout: RecordedLayout, hash_function: Callable[[Any], bytes], rng: random.Random
    ) -> None:
        kv_cache_utils.init_none_hash(hash_function)
        self._layout, self._rng = layout, rng
        self._manager = manager_of(layout)
        self._hasher = call_known(
            kv_cache_utils.get_request_block_hasher,
            hash_block_size=layout.unit_size,
            block_size=layout.unit_size,
            caching_hash_fn=hash_function,
            num_hash_lookahead_tokens=layout.ahead,
        )
        self._tokens_per_step = max(TOKENS_PER_STEP, layout.step_size)
        self._scheduler = self._scheduler_of_states()
        self._running: list[Any] = []
        self._waiting: list[Any] = []
        self._left_to_generate: dict[str, int] = {}
        self._requests = 0
        self.preemptions = 0

    def _scheduler_of_states(self) -> Any:
        """Return what vLLM's scheduler reads when it ends a prefill; None without states."""
        layout = self._layout
        sizes = [group.size for group in layout.groups if group.kind == "state"]
        if not sizes:
            return None
        is_fine = getattr(self._manager.coordinator, "enable_partial_hash_hits", False)
        return SimpleNamespace(
            cache_config=SimpleNamespace(block_size=sizes[0]),
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
            block_size=layout.step_size,
            hash_block_size=layout.unit_size,
            max_num_scheduled_tokens=self._tokens_per_step,
            mamba_has_prefill_checkpoint_blocks=bool(layout.checkpoint),
            mamba_partial_cache_hit=layout.unit_size < layout.step_size and is_fine,
            mamba_prefill_checkpoint_alignment=layout.checkpoint or None,
            mamba_shared_prefix_checkpoint=False,
            num_hash_lookahead_tokens=layout.ahead,
            use_eagle=layout.drops,
            use_eagle_block_drop=layout.drops,
        )

    def count_reusable(self, prompt: dict[str, Any]) -> int:
        """Return the tokens of a prompt that would come from the cache if it came now."""
        return int(self._manager.get_computed_blocks(self._request_of(prompt))[1])

    def add_request(self, prompt: dict[str, Any], output_tokens: int) -> None:
        request = self._request_of(prompt)
        self._left_to_generate[request.request_id] = output_tokens
        self._waiting.append(request)

    @property
    def is_busy(self) -> bool:
        return bool(self._running or self._waiting)

    def take_events(self) -> list[Any]:
        return list(self._manager.take_events())

    def reset(self) -> None:
        """Clear the cache of an idle rank."""
        assert self._manager.reset_prefix_cache()

    def step(self) -> None:
        """Compute one step: requests that run, then those that wait, then their next tokens."""
        if hasattr(self._manager, "new_step_starts"):
            self._manager.new_step_starts()
        budget = self._continue_running(self._tokens_per_step)
        self._admit_waiting(budget)
        self._release_copies()
        for request in [r for r in self._running if r.num_computed_tokens >= r.num_tokens]:
            self._generate(request)

    def _request_of(self, prompt: dict[str, Any]) -> Any:
        self._requests += 1
        lora = prompt.get("lora")
        return call_known(
            Request,
            request_id=f"request-{self._requests}",
            prompt_token_ids=list(prompt["tokens"]),
            sampling_params=SamplingParams(max_tokens=4096),
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self._hasher,
            lora_request=LoRARequest(lora, 1 + sum(lora.encode()), "/adapters") if lora else None,
            cache_salt=prompt.get("salt"),
        )

    def _continue_running(self, budget: int) -> int:
        for request in list(self._running):
            if request not in self._running:
                continue  # preempted for one before
            missing = request.num_tokens - request.num_computed_tokens
            count = self._clip(request, min(budget, missing), 0)
            if count > 0 and self._make_room(request, count):
                request.num_computed_tokens += count
                budget -= count
        return budget

    def _make_room(self, request: Any, count: int) -> bool:
        """Allocate blocks and preempt the latest requests for them; false: the request itself."""
        while self._allocate(request, count) is None:
            last = self._running.pop()
            self._manager.free(last)
            last.status = RequestStatus.PREEMPTED
            last.num_computed_tokens = 0
            self._waiting.insert(0, last)
            self.preemptions += 1
            if last is request:
                return False
        return True

    def _allocate(self, request: Any, count: int, **cached: Any) -> Any:
        drafted = drafted_tokens(self._layout)
        return self._manager.allocate_slots(request, count, num_lookahead_tokens=drafted, **cached)

    def _admit_waiting(self, budget: int) -> None:
        while self._waiting and len(self._running) < self._layout.running and budget > 0:
            request = self._waiting[0]
            blocks, reused, *junction = self._manager.get_computed_blocks(request)
            if junction:
                request.shared_prefix_boundary = junction[0]
            count = self._clip(request, min(budget, request.num_tokens - reused), reused)
            if count <= 0:
                return
            cached = {"num_new_computed_tokens": reused, "new_computed_blocks": blocks}
            if self._allocate(request, count, **cached) is None:
                assert self._running, f"pool too small for {request.num_tokens} tokens"
                return
            self._waiting.pop(0)
            request.status = RequestStatus.RUNNING
            self._running.append(request)
            request.num_computed_tokens = reused + count
            budget -= count

    def _clip(self, request: Any, count: int, reused: int) -> int:
        """Return how many of `count` tokens a step computes: states are kept where it ends."""
        if self._scheduler is None or count <= 0:
            return count
        split = Scheduler._mamba_block_aligned_split
        return int(split(self._scheduler, request, count, reused, 0))

    def _release_copies(self) -> None:
        """Take what a worker would copy or move between two steps."""
        manager = self._manager
        if hasattr(manager, "take_kv_cache_block_copies"):
            sources = manager.take_kv_cache_block_copies()[1]
            if sources:
                manager.block_pool.free_blocks(sources)
        for name in ("take_boundary_state_offloads", "take_new_block_ids"):
            if hasattr(manager, name):
                getattr(manager, name)()

    def _generate(self, request: Any) -> None:
        if self._left_to_generate[request.request_id] <= 0:
            self._manager.free(request)
            self._running.remove(request)
            return
        self._left_to_generate[request.request_id] -= 1
        request.append_output_token_ids(self._rng.randrange(GENERATED_TOKENS))
