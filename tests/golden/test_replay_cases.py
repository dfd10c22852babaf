"""Tests of gaps and answers of the replay socket: complete, short, with holes, newer framing.

All cases run at the same time in a single process, each with a separate engine.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.builders.polling import PATIENCE_S
from tests.builders.service_process import ServiceProcess
from tests.golden import deviations
from tests.golden.exchanges import Differences
from tests.golden.kv_publisher import KvPublisher, batch

pytestmark = pytest.mark.process

FILE = Path(__file__).parent / "events" / "replays.jsonl"
CASES = {case["name"]: case for case in map(json.loads, FILE.read_text().splitlines())}
REPLAYED_PROMPT = list(range(1, 13))
LIVE_PROMPT = list(range(37, 45))
NEXT_LIVE = batch([["stored", [51], 50, [41, 42, 43, 44], 4, "GPU"]])


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess({}) as running:
        yield running


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_gap_is_closed_as_far_as_the_replay_goes(name, service, zmq_context):
    case = CASES[name]
    publisher, replay = KvPublisher(zmq_context), zmq_context.socket(zmq.ROUTER)
    replay_port = replay.bind_to_random_port("tcp://127.0.0.1")
    worker = {
        "worker_id": 1 + sorted(CASES).index(name),
        "model_name": name,
        "endpoint": "http://w",
        "block_size": 4,
        "kv_events_endpoint": f"tcp://127.0.0.1:{publisher.port}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay_port}",
    }
    assert service.post("/workers", worker).body["lifecycle"] == "schedulable"
    _answer_that_nothing_was_published(replay)
    seq, payload = case["live"]
    publisher.send(bytes.fromhex(payload), seq)
    while _last_sequence(service, worker["worker_id"]) != seq:
        _answer(replay, case)
    found: Differences = {}
    for field, prompt in (("replayed_blocks", REPLAYED_PROMPT), ("live_blocks", LIVE_PROMPT)):
        blocks = _blocks(service, name, prompt)
        if blocks != case[field]:
            found[f"{name}/{field}"] = (case[field], blocks)
    service.wait_until_read(publisher.port, publisher.send(NEXT_LIVE))
    assert _blocks(service, name, LIVE_PROMPT) == 2
    complaints = deviations.unexpected(name, found)
    assert not complaints, "\n".join(complaints)


def _answer_that_nothing_was_published(replay: zmq.Socket[Any]) -> None:
    """Answer the first request of a reader, which comes at the connection."""
    assert replay.poll(PATIENCE_S * 1000)
    identity, *_ = replay.recv_multipart()
    replay.send_multipart([identity, b"", b"\xff" * 8, b""])


def _answer(replay: zmq.Socket[Any], case: dict[str, Any]) -> None:
    """Answer a request, if any, always in the same way."""
    if replay.poll(20):
        identity, *request = replay.recv_multipart()
        assert len(request) == 2
        assert request[0] == b""
        for frames in case["reply"]:
            replay.send_multipart([identity, *map(bytes.fromhex, frames)])


def _last_sequence(service: ServiceProcess, worker_id: int) -> int | None:
    records = service.get("/workers").body
    [status] = [r["kv_events"]["0"] for r in records if r["worker_id"] == worker_id]
    return None if status["state"] == "catching_up" else status["last_sequence"]


def _blocks(service: ServiceProcess, model_name: str, token_ids: list[int]) -> int:
    answer = service.post("/overlap_scores", {"model_name": model_name, "token_ids": token_ids})
    [row] = answer.body["workers"]
    return int(row["device_blocks"])
