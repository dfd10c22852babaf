"""Block pool of vLLM without GPU and model."""

from typing import Any

import torch
from recording.wire import BLOCK_SIZE, call_known
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec


def block_pool(n_blocks: int) -> Any:
    """Return a KVCacheManager that records its events."""
    spec = call_known(
        FullAttentionSpec,
        block_size=BLOCK_SIZE,
        num_kv_heads=1,
        head_size=8,
        dtype=torch.float32,
    )
    cache = call_known(
        KVCacheConfig,
        num_blocks=n_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return call_known(
        KVCacheManager,
        kv_cache_config=cache,
        max_model_len=65_536,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        enable_caching=True,
        enable_kv_cache_events=True,
        use_eagle=False,
        log_stats=False,
    )
