"""Tests of a dump with several partitions, branches, tiers and ranks, and with colons in names."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.service_process import ServiceProcess
from tests.golden.dump_form import blocks_of, parents_come_first
from tests.golden.kv_publisher import KvPublisher, batch

pytestmark = pytest.mark.process

CASE = json.loads((Path(__file__).parent / "events" / "dump.json").read_text())
FIELDS = ("worker_id", "dp_rank", "device_blocks", "host_pinned_blocks", "disk_blocks")


def test_the_dump_holds_the_same_blocks_as_that_of_the_reference(zmq_context):
    with ServiceProcess({}) as service:
        publishers = {}
        for worker in CASE["workers"]:
            ranks = [KvPublisher(zmq_context) for _ in range(worker["ranks"])]
            assert _register(service, worker, ranks)["lifecycle"] == "schedulable"
            publishers |= {(worker["worker_id"], i): rank for i, rank in enumerate(ranks)}
        for worker_id, dp_rank, events in CASE["publish"]:
            publisher = publishers[worker_id, dp_rank]
            service.wait_until_read(publisher.port, publisher.send(batch(events)))
        dump = service.get("/dump").body
        scores = [_rows(service, query) for query in CASE["overlap_scores"]]
    assert scores == [query["rows"] for query in CASE["overlap_scores"]]
    assert dump.keys() == CASE["dump"].keys()
    for key, partition in dump.items():
        assert partition["block_size"] == CASE["dump"][key]["block_size"]
        assert blocks_of(partition["events"]) == CASE["dump"][key]["blocks"]
        assert parents_come_first(partition["events"])


def _register(
    service: ServiceProcess, worker: dict[str, Any], ranks: list[KvPublisher]
) -> dict[str, Any]:
    model_name, tenant_id = worker["scope"]
    endpoints = {str(i): f"tcp://127.0.0.1:{rank.port}" for i, rank in enumerate(ranks)}
    body = {
        "worker_id": worker["worker_id"],
        "model_name": model_name,
        "tenant_id": tenant_id,
        "endpoint": "http://w",
        "block_size": worker["block_size"],
        "data_parallel_size": worker["ranks"],
        "kv_events_endpoints": endpoints,
    }
    record: dict[str, Any] = service.post("/workers", body).body
    return record


def _rows(service: ServiceProcess, query: dict[str, Any]) -> list[list[int]]:
    model_name, tenant_id = query["scope"]
    body = {"model_name": model_name, "tenant_id": tenant_id, "token_ids": query["token_ids"]}
    answer = service.post("/overlap_scores", body)
    return [[row[field] for field in FIELDS] for row in answer.body["workers"]]
