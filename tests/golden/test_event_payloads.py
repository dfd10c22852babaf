"""Tests of event payloads, as real engines encode events and broken, over a real socket.

The messages of a file form a single stream, so a message that broke the listener would affect all
following messages. After each message the overlap of an eight-token prompt is compared.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.service_process import ServiceProcess
from tests.golden import deviations
from tests.golden.exchanges import Differences
from tests.golden.kv_publisher import KvPublisher

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parent / "events"
PROMPT_TOKENS = 8


@pytest.mark.parametrize("name", ["payloads", "engine_shapes"])
def test_each_payload_is_indexed_like_in_the_reference_except_where_listed(name, zmq_context):
    cases = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    publisher, found = KvPublisher(zmq_context), Differences()
    with ServiceProcess({}) as service:
        endpoint = f"tcp://127.0.0.1:{publisher.port}"
        _register(service, endpoint)
        for case in cases:
            seq = publisher.send(bytes.fromhex(case["payload"]))
            service.wait_until_read(publisher.port, seq)
            rows = _rows(service, case)
            if rows != case["rows"]:
                found[case["name"]] = (case["rows"], rows)
            if "groups" in service.get("/workers").body[0]["kv_events"]["0"]:
                # A rank has the groups of a single model; the next case is another engine.
                service.call("DELETE", "/workers/1", None, {})
                publisher.wait_for_another_subscriber()
                _register(service, endpoint)
    complaints = deviations.unexpected(name, found)
    assert not complaints, "\n".join(complaints)


def _register(service: ServiceProcess, endpoint: str) -> None:
    worker = {"worker_id": 1, "endpoint": "http://w", "block_size": 4}
    answer = service.post("/workers", {**worker, "kv_events_endpoint": endpoint})
    assert answer.body["lifecycle"] == "schedulable"


def _rows(service: ServiceProcess, case: dict[str, Any]) -> list[list[int]]:
    """Return [dp_rank, blocks on GPU, with CPU, with disk] of every rank."""
    first = case["first_token"]
    prompt = {"token_ids": list(range(first, first + PROMPT_TOKENS)), **case["prompt"]}
    answer = service.post("/overlap_scores", prompt)
    assert answer.status == 200
    fields = ("dp_rank", "device_blocks", "host_pinned_blocks", "disk_blocks")
    return [[row[field] for field in fields] for row in answer.body["workers"]]
