"""Tests of recovery from dumps in the form of the reference, valid and broken."""

import json
from pathlib import Path

import pytest

from select_service.adapters.persistence import index_recovery as keeping_recovery
from tests.builders.in_thread import InThread
from tests.builders.recovery_scenes import ScriptedPeer, ended, head, sends

pytestmark = pytest.mark.process

CASES = json.loads((Path(__file__).parent / "events" / "recovery.json").read_text())
FIELDS = ("worker_id", "dp_rank", "device_blocks", "host_pinned_blocks", "disk_blocks")
RANKS = {  # ranks, block size and scope of the workers of the large dump
    1: (1, 4, ("m", "t")),
    2: (2, 4, ("m", "t")),
    3: (1, 8, ("mod:with:colon", "ten")),
    4: (1, 4, ("m", "ten:colon")),
}


def register(service, worker_id, ranks, block_size, scope):
    body = {
        "worker_id": worker_id,
        "model_name": scope[0],
        "tenant_id": scope[1],
        "endpoint": "http://w",
        "block_size": block_size,
        "data_parallel_size": ranks,
    }
    assert service.call("POST", "/workers", body).body["lifecycle"] == "schedulable"


def rows(service, scope, token_ids):
    body = {"model_name": scope[0], "tenant_id": scope[1], "token_ids": token_ids}
    answer = service.call("POST", "/overlap_scores", body)
    return [[row[field] for field in FIELDS] for row in answer.body["workers"]]


def answer_of(status, body):
    if status == 204:
        return sends(head(b"204 No Content"))
    return sends(head(str(status).encode() + b" OK") + body.encode())


@pytest.fixture(autouse=True)
def disable_retries(monkeypatch):
    """Disable retries: these peers answer the same every time."""
    monkeypatch.setattr(keeping_recovery, "RETRY_S_MAX", 0.0)


@pytest.mark.parametrize("case", CASES["answers"], ids=lambda case: case["name"])
def test_an_answer_recovers_the_expected_blocks(case):
    answer = answer_of(case["status"], case["body"])
    with ScriptedPeer(answer) as peer, InThread("--indexer-peers", peer.url) as service:
        for worker_id in (1, 2):
            register(service, worker_id, 1, 4, ("m", "t"))
        ended(service)
        assert rows(service, ("m", "t"), list(range(1, 21))) == case["rows"]
        assert ("reason" in case) == ("reference_rows" in case)


def test_a_dump_with_branches_tiers_ranks_and_colons_gives_the_overlap_of_its_source():
    answer = answer_of(200, json.dumps(CASES["dump"]))
    with ScriptedPeer(answer) as peer, InThread("--indexer-peers", peer.url) as service:
        ended(service)
        for worker_id, (ranks, block_size, scope) in RANKS.items():
            register(service, worker_id, ranks, block_size, scope)
        for query in CASES["queries"]:
            assert rows(service, query["scope"], query["token_ids"]) == query["rows"]
