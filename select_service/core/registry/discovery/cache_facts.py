"""Facts about the KV cache that an engine reports, as `kv_cache` of a POST /workers record.

Only what differs from the defaults and is certain is returned: a wrong fact makes overlaps wrong.

Sources: vLLM 0.33 `config/speculative.py`, `v1/spec_decode/metrics.py` (families that exist only
with speculation) and `vllm:cache_config_info`; SGLang 0.5.23 `arg_groups/overrides.py`
(`uses_mamba_radix_cache`), `configs/model_config.py` (`is_hybrid_swa_model`) and `/model_info`.
"""

from collections.abc import Mapping
from typing import Any

from indexer.hashing.engine_names import ALGORITHMS
from select_service.core.registry.discovery.record_template import Fields

_SPECULATION = b"\nvllm:spec_decode_"
_EAGLE_METHODS = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods of speculation for which vLLM drops a block, unless the hash covers the tokens behind."""
_HYBRID_WINDOW_MODELS = (
    "Llama4",
    "GptOss",
    "MiMoV2",
    "Step3p5",
    "Gemma4",
    "DeepseekV4",
)
"""Beginnings of architectures for which SGLang keeps windows beside full attention."""


def read_vllm_cache_facts(
    config: Mapping[str, Any], labels: Mapping[str, str], metrics: bytes
) -> Fields | None:
    """Return the facts of a vLLM engine; None without any.

    config: configuration of the engine, empty if unavailable
    labels: labels of its cache configuration
    """
    facts: Fields = {}
    algorithm = labels.get("prefix_caching_hash_algo")
    # Engines with the usual algorithms prove theirs by their first events.
    if algorithm and algorithm not in ALGORITHMS:
        facts["hash"] = {"algorithm": algorithm}
    if context_parallel_size(config) > 1:
        facts["context_parallel"] = True
    speculation = config.get("speculative_config")
    if isinstance(speculation, dict) or _SPECULATION in b"\n" + metrics:
        facts["speculates"] = True
    drops = _drops_blocks(config)
    if drops is not None:
        facts["eagle_drop"] = drops
    return facts or None


def context_parallel_size(config: Mapping[str, Any]) -> int:
    """Return the number of ranks over which vLLM spreads the tokens of a block; 1 if unknown."""
    parallel = config.get("parallel_config")
    size = parallel.get("decode_context_parallel_size") if isinstance(parallel, dict) else None
    return size if type(size) is int and 1 <= size <= 1024 else 1


def _drops_blocks(config: Mapping[str, Any]) -> bool | None:
    """Return whether vLLM drops the last matched block of a draft; None if uncertain."""
    speculation, transfer = config.get("speculative_config"), config.get("kv_transfer_config")
    method = speculation.get("method") if isinstance(speculation, dict) else None
    if not isinstance(method, str):
        return None
    if method not in _EAGLE_METHODS:
        return None if method.endswith("mtp") else False
    # A connector cannot load blocks by hashes of more than their own tokens. Without a connector,
    # versions differ, and events show the lookahead.
    has_connector = isinstance(transfer, dict) and bool(transfer.get("kv_connector"))
    return True if has_connector and _has_one_kind(config.get("cache_config")) else None


def _has_one_kind(cache: object) -> bool:
    """Return whether vLLM keeps no windows and no states, so that all groups drop a block."""
    if not isinstance(cache, dict):
        return False
    return cache.get("sliding_window") is None and cache.get("mamba_cache_mode") in (None, "none")


def read_sglang_cache_facts(info: Mapping[str, Any], model: Mapping[str, Any]) -> Fields | None:
    """Return the facts of an SGLang engine; None without any.

    SGLang announces blocks of full attention only, so the events of models with states or windows
    beside it show an upper bound.
    info, model: answers of /server_info and /model_info
    """
    has_states = info.get("uses_mamba_radix_cache") is True
    names = model.get("architectures")
    architectures = [str(name) for name in names] if isinstance(names, list) else []
    has_windows = info.get("disable_hybrid_swa_memory") is not True and any(
        name.startswith(_HYBRID_WINDOW_MODELS) for name in architectures
    )
    return {"certainty": "at_most"} if has_states or has_windows else None
