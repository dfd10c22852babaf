"""Tests of engines' facts as a record; each missing fact has a name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.registry.discovery import engine_facts
from select_service.core.registry.discovery.engine_candidates import (
    EngineCandidate,
    complete_record,
)
from select_service.core.registry.discovery.engine_facts import (
    INFO,
    METRICS,
    MODELS,
    OLD_INFO,
    extract_facts,
)
from select_service.core.registry.discovery.worker_records import validate_record
from tests.builders.engine_answers import production, recorded

VLLM, SGLANG = "vllm-0.33.0", "sglang-0.5.23"
URL = "http://10.0.0.7:8000"


def test_vllm_in_development_mode_has_all_facts():
    facts = extract_facts(URL, recorded(f"{VLLM}-1"))
    assert facts.engine == "vllm"
    assert facts.fields == {
        "endpoint": URL,
        "model_name": "qwen",
        "block_size": 16,
        "total_kv_blocks": 4096,
        "max_num_batched_tokens": 8192,
        "kv_events_endpoint": "tcp://10.0.0.7:5557",
        "replay_endpoint": "tcp://10.0.0.7:6557",
        "metrics_endpoint": f"{URL}/metrics",
    }
    assert (facts.missing, facts.aliases, facts.adapters) == ({}, ["qwen-latest"], ["sql", "chat"])


def test_vllm_in_production_mode_lacks_the_streams_by_name():
    facts = extract_facts(URL, production(f"{VLLM}-1"))
    assert facts.fields["block_size"] == 16
    assert facts.fields["total_kv_blocks"] == 4096
    assert set(facts.missing) == {"max_num_batched_tokens", "kv_events_endpoint"}
    assert all("VLLM_SERVER_DEV_MODE=1" in why for why in facts.missing.values())


def test_ranks_of_vllm_are_its_engine_cores():
    fields = extract_facts(URL, recorded(f"{VLLM}-2")).fields
    assert fields["data_parallel_size"] == 2
    assert fields["total_kv_blocks"] == 4096  # blocks of one engine; the label has the sum of all
    assert fields["kv_events_endpoints"] == {0: "tcp://10.0.0.7:5557", 1: "tcp://10.0.0.7:5558"}
    assert fields["replay_endpoint"] == "tcp://10.0.0.7:6557"
    assert validate_record({**fields, "worker_id": 1}).data_parallel_size == 2


def test_a_single_rank_of_vllm_keeps_its_number():
    answers = recorded(f"{VLLM}-1")
    answers[METRICS] = answers[METRICS].replace(b'engine="0"', b'engine="3"')
    fields = extract_facts(URL, answers).fields
    assert (fields["data_parallel_start_rank"], fields["data_parallel_size"]) == (3, 1)
    assert fields["kv_events_endpoint"] == "tcp://10.0.0.7:5560"
    assert fields["replay_endpoint"] == "tcp://10.0.0.7:6560"


@pytest.mark.parametrize("path", [INFO, OLD_INFO])
def test_sglang_has_all_facts_under_either_name(path):
    other = INFO if path == OLD_INFO else OLD_INFO
    facts = extract_facts(URL, recorded(f"{SGLANG}-1", without=(other,)))
    assert facts.engine == "sglang"
    assert facts.fields == {
        "endpoint": URL,
        "model_name": "qwen",
        "block_size": 64,
        "total_kv_blocks": 4096,
        "max_num_batched_tokens": 8192,
        "kv_events_endpoint": "tcp://10.0.0.7:5557",
        "replay_endpoint": "tcp://10.0.0.7:6557",
    }
    assert facts.adapters == ["sql", "chat"]
    assert list(facts.missing) == ["metrics_endpoint"]


def test_ranks_of_sglang_publish_at_ports_of_their_own():
    fields = extract_facts(URL, recorded(f"{SGLANG}-2")).fields
    assert fields["data_parallel_size"] == 2
    assert fields["kv_events_endpoints"] == {0: "tcp://10.0.0.7:5557", 1: "tcp://10.0.0.7:5558"}


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"speculative_algorithm": "EAGLE3"}, "is_eagle", True),
        ({"disaggregation_mode": "prefill"}, "role", "prefill"),
        (
            {"chunked_prefill_size": -1, "max_prefill_tokens": 16384},
            "max_num_batched_tokens",
            16384,
        ),
        ({"kv_events": None}, "kv_events_endpoint", None),
        ({"page_size": 1, "kv_events": None}, "block_size", 1),
        ({"max_total_num_tokens": True}, "total_kv_blocks", None),
    ],
)
def test_other_facts_of_sglang_count(change, field, value):
    info = json.loads(recorded(f"{SGLANG}-1")[INFO]) | change
    answers = {MODELS: recorded(f"{SGLANG}-1")[MODELS], INFO: json.dumps(info).encode()}
    assert extract_facts(URL, answers).fields.get(field) == value


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://vllm-0:8000/", "vllm-0"), ("http://[fd00::7]:8000", "[fd00::7]"), ("http://e", "e")],
)
def test_streams_are_at_the_host_of_the_engine(url, host):
    assert (
        extract_facts(url, recorded(f"{VLLM}-1")).fields["kv_events_endpoint"]
        == f"tcp://{host}:5557"
    )


def test_every_fact_is_missing_from_other_servers():
    facts = extract_facts(URL, {MODELS: b'{"data": [{"id": "m"}]}', METRICS: b"up 1\n"})
    assert facts.engine is None
    assert facts.fields == {"endpoint": URL, "model_name": "m"}
    assert set(facts.missing) == {"block_size", "kv_events_endpoint"}


NAMES = (
    *("data", "id", "parent", "owned_by", "vllm_config", "kv_events_config", "page_size"),
    *("kv_events", "dp_size", "endpoint", "endpoint_host", "endpoint_port_base", "publisher"),
    *("enable_kv_cache_events", "scheduler_config", "cache_config"),
)
VALUES = ("zmq", "vllm", "sglang", "tcp://*:5557", "tcp://*:x", "*", 5557)
CACHE = b"vllm:cache_config_info"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES), inner | st.sampled_from(VALUES), max_size=4)
    ),
    max_leaves=12,
)


@given(st.fixed_dictionaries({}, optional={MODELS: JSON, INFO: JSON, OLD_INFO: JSON}), st.binary())
def test_no_answer_raises_an_error(documents, text):
    answers = {path: json.dumps(each).encode() for path, each in documents.items()}
    for metrics in (text, CACHE + text, CACHE + b'{engine="0"} 1'):
        facts = extract_facts(URL, {**answers, METRICS: metrics})
        assert facts.fields["endpoint"] == URL


def test_a_template_comes_before_the_engine_and_spreads_its_ports_over_ranks():
    said = extract_facts(URL, production(f"{VLLM}-2")).fields
    fields = {"endpoint": URL, "model_name": "other", "kv_events_endpoint": "tcp://10.0.0.7:7000"}
    record = complete_record(EngineCandidate(URL, fields), said)
    assert (record.model_name, record.block_size) == ("other", 16)
    assert record.kv_events_endpoints == {0: "tcp://10.0.0.7:7000", 1: "tcp://10.0.0.7:7001"}
    assert record.kv_events_endpoint is None
    for first, replay in ((0, 8000), (8, 8008)):
        more = {"replay_endpoint": "tcp://10.0.0.7:8000", "data_parallel_start_rank": first}
        wide = complete_record(EngineCandidate(URL, fields | more), said)
        ports = {rank: f"tcp://10.0.0.7:{7000 + rank}" for rank in (first, first + 1)}
        assert wide.kv_events_endpoints == ports
        assert wide.replay_endpoint == f"tcp://10.0.0.7:{replay}"
        single = complete_record(
            EngineCandidate(URL, fields | more | {"data_parallel_size": 1}), said
        )
        assert single.kv_events_endpoint == ports[first]
        assert single.replay_endpoint == wide.replay_endpoint
    with pytest.raises(ValueError, match="replay_endpoint"):
        complete_record(EngineCandidate(URL, fields | {"replay_endpoint": 8000}), said)
    one = complete_record(
        EngineCandidate(URL, fields), extract_facts(URL, production(f"{VLLM}-1")).fields
    )
    assert one.kv_events_endpoint == "tcp://10.0.0.7:7000"


def test_a_document_of_more_values_than_an_engine_has_counts_as_not_given():
    card, count = b'{"id": "m%d", "owned_by": "vllm"}', engine_facts.VALUES_MAX
    cards = b",".join(card % n for n in range(count))
    few = b'{"data": [{"id": "m", "owned_by": "vllm"}]}'
    assert extract_facts(URL, {MODELS: few}).fields["model_name"] == "m"
    assert extract_facts(URL, {MODELS: b'{"data": [' + cards + b"]}"}).engine is None
    nested = b'{"data": [' + b"[" * 40_000 + b"]" * 40_000 + b"]}"
    assert extract_facts(URL, {MODELS: nested}).engine is None


def test_lines_of_the_cache_are_found_among_all_others_and_bounded():
    line = b'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="100"} 1.0\n'
    others = b"\n# vllm:cache_config_info\n" * 10_000
    fields = extract_facts(URL, {METRICS: line % 0 + others + line % 1}).fields
    assert (fields["total_kv_blocks"], fields["data_parallel_size"]) == (50, 2)
    many = b"".join(line % n for n in range(10_000))
    found = extract_facts(URL, {METRICS: many}).fields["data_parallel_size"]
    assert found <= engine_facts.CACHE_BYTES_MAX // len(line) + 1
