"""Tests of engines' transfer facts, which become `role` and `kv_transfer` of the record."""

import json

import pytest

from select_service.core.registry.discovery.engine_candidates import (
    EngineCandidate,
    complete_record,
)
from select_service.core.registry.discovery.engine_facts import INFO, extract_facts
from select_service.core.registry.discovery.worker_records import validate_record
from tests.builders.engine_answers import production, recorded

VLLM, SGLANG = "vllm-0.33.0-1", "sglang-0.5.23-1"
URL = "http://10.0.0.7:8000"


def facts_of(answers):
    fields = extract_facts(URL, answers).fields
    assert validate_record({**fields, "worker_id": 1}).worker_id == 1
    return fields.get("role"), fields.get("kv_transfer")


def vllm(transfer, **env):
    answers = recorded(VLLM)
    info = json.loads(answers[INFO])
    info["vllm_config"]["kv_transfer_config"] = transfer
    info["vllm_env"] = {**info.get("vllm_env", {}), **env}
    return {**answers, INFO: json.dumps(info).encode()}


def sglang(**changes):
    answers = recorded(SGLANG)
    return {**answers, INFO: json.dumps({**json.loads(answers[INFO]), **changes}).encode()}


@pytest.mark.parametrize("answers", [recorded(VLLM), production(VLLM), recorded(SGLANG)])
def test_engines_of_both_roles_have_no_role(answers):
    assert facts_of(answers) == (None, None)


@pytest.mark.parametrize(
    ("transfer", "role", "facts"),
    [
        ({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, None, {"kind": "nixl"}),
        (
            {"kv_connector": "NixlConnector", "kv_role": "kv_producer"},
            "prefill",
            {"kind": "nixl"},
        ),
        (
            {"kv_connector": "MoRIIOConnector", "kv_role": "kv_consumer"},
            "decode",
            {"kind": "moriio"},
        ),
        ({"kv_connector": "LMCacheConnectorV1", "kv_role": 7}, None, {"kind": "lmcache"}),
        ({"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}, None, None),
        ({"kv_connector": ["NixlConnector"]}, None, None),
        (None, None, None),
        ("NixlConnector", None, None),
    ],
)
def test_the_connector_of_vllm(transfer, role, facts):
    assert facts_of(vllm(transfer)) == (role, facts)


def test_mooncake_of_vllm_has_a_bootstrap_port_and_an_engine():
    transfer = {"kv_connector": "MooncakeConnector", "kv_role": "kv_producer", "engine_id": "e"}
    assert facts_of(vllm(transfer, VLLM_MOONCAKE_BOOTSTRAP_PORT=9000)) == (
        "prefill",
        {"kind": "mooncake", "bootstrap_port": 9000, "engine_ids": {0: "e"}},
    )
    for port in (None, "9000", 0, 70000, True):
        _, facts = facts_of(vllm(transfer, VLLM_MOONCAKE_BOOTSTRAP_PORT=port))
        assert "bootstrap_port" not in facts


@pytest.mark.parametrize(
    ("changes", "role", "facts"),
    [
        (
            {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998},
            "prefill",
            {"kind": "sglang", "bootstrap_port": 8998},
        ),
        (
            {"disaggregation_mode": "decode", "disaggregation_bootstrap_port": 8998},
            "decode",
            {"kind": "sglang"},
        ),
        ({"disaggregation_mode": "null"}, None, None),
        (
            {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": "x"},
            "prefill",
            {"kind": "sglang"},
        ),
    ],
)
def test_the_mode_of_sglang(changes, role, facts):
    assert facts_of(sglang(**changes)) == (role, facts)


def test_a_template_completes_the_engines_facts():
    candidate = EngineCandidate(
        endpoint=URL,
        fields={
            "endpoint": URL,
            "model_name": "m",
            "worker_id": 1,
            "kv_transfer": {"link_gbps": 100.0, "bootstrap_port": 9},
        },
    )
    facts = extract_facts(URL, sglang(disaggregation_mode="prefill")).fields
    record = complete_record(candidate, {**facts, "block_size": 16})
    given = record.kv_transfer
    assert (given.kind, given.link_gbps, given.bootstrap_port) == ("sglang", 100.0, 9)
    assert record.role == "prefill"
