"""Tests of the engine's KV cache facts, which become `kv_cache` of the record if certain."""

import json

import pytest

from select_service.core.registry.discovery.engine_facts import (
    INFO,
    METRICS,
    MODEL_INFO,
    extract_facts,
)
from select_service.core.registry.discovery.worker_records import validate_record
from tests.builders.engine_answers import production, recorded

VLLM, SGLANG = "vllm-0.33.0-1", "sglang-0.5.23-1"
URL = "http://10.0.0.7:8000"
CONNECTOR = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
SPECULATION = (
    b"# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.\n"
    b"# TYPE vllm:spec_decode_num_drafts_total counter\n"
    b'vllm:spec_decode_num_drafts_total{engine="0",model_name="qwen"} 0.0\n'
)


def facts_of(answers):
    fields = extract_facts(URL, answers).fields
    assert validate_record({**fields, "worker_id": 1}).worker_id == 1
    return fields


def vllm(**changes):
    """Return the recorded engine's answers with a changed configuration."""
    answers = recorded(VLLM)
    info = json.loads(answers[INFO])
    for name, change in changes.items():
        old = info["vllm_config"][name]
        info["vllm_config"][name] = {**old, **change} if isinstance(old, dict) else change
    return {**answers, INFO: json.dumps(info).encode()}


@pytest.mark.parametrize("answers", [recorded(VLLM), production(VLLM), recorded(SGLANG)])
def test_usual_engines_need_no_facts(answers):
    assert "kv_cache" not in facts_of(answers)


def test_speculation_of_vllm_shows_in_its_metrics():
    answers = production(VLLM)
    answers[METRICS] += SPECULATION
    assert facts_of(answers)["kv_cache"] == {"speculates": True}


@pytest.mark.parametrize(
    ("algorithm", "facts"),
    [
        (b"sha256_cbor", None),
        (b"xxhash", {"hash": {"algorithm": "xxhash"}}),
        (b"xxhash_cbor", {"hash": {"algorithm": "xxhash_cbor"}}),
    ],
)
def test_a_hash_that_cannot_be_computed_is_named(algorithm, facts):
    answers = production(VLLM)
    old = b'prefix_caching_hash_algo="sha256"'
    answers[METRICS] = answers[METRICS].replace(
        old, b'prefix_caching_hash_algo="' + algorithm + b'"'
    )
    assert facts_of(answers).get("kv_cache") == facts


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"speculative_config": {"method": "eagle3"}}, {"speculates": True}),
        (
            {"speculative_config": {"method": "mtp"}, "kv_transfer_config": CONNECTOR},
            {"speculates": True, "eagle_drop": True},
        ),
        (
            {
                "speculative_config": {"method": "mtp"},
                "kv_transfer_config": CONNECTOR,
                "cache_config": {"sliding_window": 128},
            },
            {"speculates": True},
        ),
        (
            {
                "speculative_config": {"method": "mtp"},
                "kv_transfer_config": CONNECTOR,
                "cache_config": {"mamba_cache_mode": "align"},
            },
            {"speculates": True},
        ),
        (
            {"speculative_config": {"method": "ngram"}, "kv_transfer_config": CONNECTOR},
            {"speculates": True, "eagle_drop": False},
        ),
        ({"speculative_config": {"method": "deepseek_mtp"}}, {"speculates": True}),
        ({"speculative_config": {"method": 7}}, {"speculates": True}),
        ({"kv_transfer_config": CONNECTOR}, None),
    ],
)
def test_only_certain_drops_are_reported(changes, facts):
    assert facts_of(vllm(**changes)).get("kv_cache") == facts


def test_context_parallel_ranks_share_a_larger_block():
    fields = facts_of(vllm(parallel_config={"decode_context_parallel_size": 4}))
    assert (fields["block_size"], fields["kv_cache"]) == (64, {"context_parallel": True})


@pytest.mark.parametrize(
    ("changes", "architectures", "is_bound"),
    [
        ({}, None, False),
        ({}, ["Qwen3ForCausalLM"], False),
        ({"uses_mamba_radix_cache": True}, None, True),
        ({}, ["GptOssForCausalLM"], True),
        ({}, ["Gemma4ForConditionalGeneration"], True),
        ({"disable_hybrid_swa_memory": True}, ["GptOssForCausalLM"], False),
        ({}, "GptOssForCausalLM", False),
        # All layers have windows: engines announce blocks of such models as stored.
        ({}, ["MistralForCausalLM"], False),
    ],
)
def test_hybrid_models_of_sglang_are_bounds(changes, architectures, is_bound):
    answers = recorded(SGLANG)
    info = json.loads(answers[INFO]) | changes
    answers[INFO] = json.dumps(info).encode()
    if architectures is not None:
        answers[MODEL_INFO] = json.dumps({"architectures": architectures}).encode()
    found = facts_of(answers).get("kv_cache")
    assert found == ({"certainty": "at_most"} if is_bound else None)
