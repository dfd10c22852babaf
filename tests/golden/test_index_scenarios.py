"""Tests of stores, removals and clears of several ranks and tiers: scores, selections and dumps.

All scenarios share a process, each in a separate tenant.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.builders.service_process import ServiceProcess
from tests.golden import deviations
from tests.golden.dump_form import blocks_of, parents_come_first
from tests.golden.exchanges import Differences
from tests.golden.kv_publisher import KvPublisher

pytestmark = pytest.mark.process

FILE = Path(__file__).parent / "events" / "index_scenarios.jsonl"
SCENARIOS = {
    case["scenario"]: case["steps"] for case in map(json.loads, FILE.read_text().splitlines())
}
ROW = (
    "worker_id",
    "dp_rank",
    "device_blocks",
    "host_pinned_blocks",
    "disk_blocks",
    "router_credit_blocks",
)


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess({}) as running:
        yield running


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_the_index_answers_like_the_reference_except_where_listed(scenario, service, zmq_context):
    publishers: dict[tuple[int, int], KvPublisher] = {}
    scope = {"model_name": "m", "tenant_id": scenario}
    found: Differences = {}
    for step in SCENARIOS[scenario]:
        if "register" in step:
            publishers = _register(service, scope, step["register"], zmq_context)
        elif "publish" in step:
            worker_id, dp_rank, seq = step["publish"]
            publisher = publishers[worker_id, dp_rank]
            publisher.send(bytes.fromhex(step["payload"]), seq)
            service.wait_until_read(publisher.port, seq)
        else:
            expected, ours = _answers_of(service, scope, step)
            if ours != expected:
                found[str(step["step"])] = (expected, ours)
    for worker_id in {worker_id for worker_id, _ in publishers}:
        assert service.call("DELETE", f"/workers/{worker_id}", None, {}).status == 200
    complaints = deviations.unexpected(scenario, found)
    assert not complaints, "\n".join(complaints)


def _register(
    service: ServiceProcess,
    scope: dict[str, str],
    workers: list[Any],
    zmq_context: zmq.Context[Any],
) -> dict[tuple[int, int], KvPublisher]:
    publishers = {}
    for worker_id, dp_ranks in workers:
        mine = {dp_rank: KvPublisher(zmq_context) for dp_rank in dp_ranks}
        worker = {
            **scope,
            "worker_id": worker_id,
            "endpoint": f"http://w{worker_id}:1",
            "block_size": 4,
            "data_parallel_size": len(dp_ranks),
            "kv_events_endpoints": {
                str(dp_rank): f"tcp://127.0.0.1:{publisher.port}"
                for dp_rank, publisher in mine.items()
            },
        }
        assert service.post("/workers", worker).body["lifecycle"] == "schedulable"
        publishers |= {(worker_id, dp_rank): p for dp_rank, p in mine.items()}
    return publishers


def _answers_of(
    service: ServiceProcess, scope: dict[str, str], step: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the answer of the reference and the answer of this service."""
    if "overlap_scores" in step:
        answer = service.post("/overlap_scores", {**scope, "token_ids": step["overlap_scores"]})
        return step["rows"], [[row[field] for field in ROW] for row in answer.body["workers"]]
    if "select" in step:
        answer = service.post("/select", {**scope, "token_ids": step["select"]})
        expected = step["answer"]
        return expected, {name: answer.body[name] for name in expected}
    dump = service.get("/dump").body[":".join(scope.values())]
    assert dump["block_size"] == 4
    assert parents_come_first(dump["events"])
    return step["dump"], blocks_of(dump["events"])
