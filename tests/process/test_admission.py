"""Tests of rejections over real sockets: busy workers, shed tiers, and switching both."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import worker_body
from tests.builders.running import Answer, Running, request
from tests.builders.waiting_clients import (
    PROMPT,
    QUEUE,
    a_full_worker,
    count_reservations,
    metric,
    pending,
    waiting,
)

pytestmark = pytest.mark.process

CLIENTS = 64
TRIES = 25
BUSY = {
    "message": "Service temporarily unavailable: All workers are busy, please retry later",
    "type": "service_unavailable",
    "code": 503,
}
OUTCOMES = "select_service_admission_requests_total"


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with Running("--threads", "1", *QUEUE) as service:
        yield service
        assert service.stop() == 0
        assert not any("exception" in line for line in service.log())


@pytest.fixture
def service(running: Running) -> Iterator[Running]:
    """Yield the service without workers, thresholds and shed tiers; clean up afterwards."""
    yield running
    running.call("POST", "/admission/shed", {"tier": None})
    set_thresholds(running, "m", decode_blocks=None, prefill_tokens=None)
    for worker in running.call("GET", "/workers").body:
        running.call("DELETE", f"/workers/{worker['worker_id']}")


def set_thresholds(service: Running, model: str, **limits: Any) -> Answer:
    change = {f"active_{name}_threshold": limit for name, limit in limits.items()}
    return service.call("POST", "/busy_threshold", {"model": model, **change})


async def collect_answers(port: int, sent: bytes) -> list[bytes]:
    """Return every answer to one client that keeps its connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for _ in range(TRIES):
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(field(head, b"content-length")))
        found.append(head + body)
    writer.close()
    return found


def field(head: bytes, name: bytes) -> bytes:
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    return lines[name]


async def all_refused(port: int) -> list[bytes]:
    sent = request("POST", "/select_and_reserve", PROMPT)
    answers = await asyncio.gather(*(collect_answers(port, sent) for _ in range(CLIENTS)))
    return [answer for of_one in answers for answer in of_one]


def test_64_clients_are_refused_while_all_workers_are_busy_and_served_after(service):
    for worker_id in (1, 2):
        a_full_worker(service, worker_id)
    assert set_thresholds(service, "m", prefill_tokens=10).status == 200
    answers = asyncio.run(all_refused(service.port))
    expected = b'{"message":"%s","type":"service_unavailable","code":503}'
    for answer in answers:
        head, body = answer.split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert field(head, b"content-type") == b"application/json"
        assert body == expected % BUSY["message"].encode()
        assert int(field(head, b"retry-after")) >= 1
    assert count_reservations(service) == 2
    assert service.call("DELETE", "/reservations/full-2").status == 200
    answer = service.call("POST", "/select_and_reserve", PROMPT)
    assert (answer.status, answer.body["worker_id"]) == (200, 2)
    assert service.call("POST", "/select_and_reserve", PROMPT).body == BUSY


def test_a_request_that_is_pinned_to_a_busy_worker_is_refused_while_another_is_free(service):
    a_full_worker(service)
    service.call("POST", "/workers", worker_body(2, max_num_batched_tokens=16))
    set_thresholds(service, "m", prefill_tokens=10)
    pinned = {**PROMPT, "pinned_worker": {"worker_id": 1, "dp_rank": 0}}
    assert service.call("POST", "/select", pinned).body == BUSY
    assert service.call("POST", "/select", PROMPT).body["worker_id"] == 2


def test_thresholds_are_set_shown_and_cleared_while_the_service_runs(service):
    service.call("POST", "/workers", worker_body(1, total_kv_blocks=100, max_num_batched_tokens=16))
    set_thresholds(service, "m", decode_blocks=0.85, prefill_tokens=10_000)
    both = {
        "model": "m",
        "active_decode_blocks_threshold": 0.85,
        "active_prefill_tokens_threshold": 10_000,
    }
    assert service.call("GET", "/busy_threshold").body == {"thresholds": [both]}
    cleared = both | {"active_decode_blocks_threshold": None}
    assert set_thresholds(service, "m", decode_blocks=None).body == cleared
    assert service.call("GET", "/busy_threshold").body == {"thresholds": [cleared]}
    name = "select_service_busy_threshold_{}"
    assert metric(service, name.format("prefill_tokens"), model_name="m") == 10_000
    assert metric(service, name.format("decode_blocks"), model_name="m") is None


@pytest.mark.parametrize(
    ("model", "limits", "status", "told"),
    [
        ("nobody", {"prefill_tokens": 1}, 404, "`nobody`"),
        ("m", {"decode_blocks": 1.5}, 422, "active_decode_blocks_threshold"),
        ("m", {"decode_blocks": -0.1}, 422, "active_decode_blocks_threshold"),
        ("m", {"prefill_tokens": -1}, 422, "active_prefill_tokens_threshold"),
        ("m", {"prefill_tokens": 1.5}, 422, "active_prefill_tokens_threshold"),
        ("m", {"decode_blocks": "high"}, 422, "active_decode_blocks_threshold"),
    ],
)
def test_thresholds_that_make_no_sense_change_nothing_and_are_explained(
    service, model, limits, status, told
):
    service.call("POST", "/workers", worker_body(1, max_num_batched_tokens=16))
    set_thresholds(service, "m", prefill_tokens=7)
    answer = set_thresholds(service, model, **limits)
    assert answer.status == status
    assert told in answer.body["error"]
    (row,) = service.call("GET", "/busy_threshold").body["thresholds"]
    assert row["active_prefill_tokens_threshold"] == 7
    assert row["active_decode_blocks_threshold"] is None


def test_shedding_refuses_the_tier_and_those_below_until_it_ends(service):
    service.call("POST", "/workers", worker_body(1, max_num_batched_tokens=1024))
    state = service.call("POST", "/admission/shed", {"tier": "standard"}).body
    assert state["shed_tiers"] == ["standard", "best_effort"]
    for tier in ({}, {"priority_tier": "standard"}, {"priority_tier": "best_effort"}):
        answer = service.call("POST", "/select", {**PROMPT, **tier})
        assert (answer.status, answer.body["code"]) == (503, "capacity_shed")
        assert answer.headers["retry-after"] == "30"
    premium = {**PROMPT, "priority_tier": "premium"}
    assert service.call("POST", "/select", premium).status == 200
    seen = service.call("GET", "/admission").body
    assert (seen["shed_tier"], seen["default_tier"]) == ("standard", "standard")
    assert service.call("POST", "/admission/shed", {"tier": None}).body["shed_tiers"] == []
    assert service.call("POST", "/select", PROMPT).status == 200


def test_an_unknown_tier_is_rejected(service):
    service.call("POST", "/workers", worker_body(1, max_num_batched_tokens=1024))
    assert service.call("POST", "/admission/shed", {"tier": "gold"}).status == 400
    assert service.call("GET", "/admission").body["shed_tier"] is None
    answer = service.call("POST", "/select", {**PROMPT, "priority_tier": "gold"})
    assert answer.status == 400
    assert "premium, standard, best_effort" in answer.body["error"]


def test_shedding_rejects_queued_requests_of_the_tier_alone(service):
    a_full_worker(service)
    with (
        waiting(service, priority_tier="premium") as premium,
        waiting(service, priority_tier="best_effort") as best_effort,
    ):
        service.call("POST", "/admission/shed", {"tier": "best_effort"})
        answer = best_effort.answer()
        assert (answer.status, answer.body["code"]) == (503, "capacity_shed")
        assert answer.headers["retry-after"] == "30"
        assert pending(service) == 1
        service.call("DELETE", "/reservations/full-1")
        assert premium.answer().status == 200


def test_metrics_count_the_outcome_of_every_request(service):
    names = ("admitted", "busy", "shed", "queue_timeout")

    def counts() -> dict[str, float]:
        found = {name: metric(service, OUTCOMES, outcome=name) or 0.0 for name in names}
        found["issued"] = metric(service, "dynamo_tasks_issued_total") or 0.0
        found["rejected"] = metric(service, "dynamo_tasks_rejected_total") or 0.0
        found["queued"] = metric(service, "dynamo_queued_requests") or 0.0
        waits = "select_service_queue_wait_seconds_count"
        found["waited"] = metric(service, waits, policy_class="default") or 0.0
        return found

    def change(before: dict[str, float]) -> dict[str, float]:
        after = counts()
        return {name: after[name] - before[name] for name in after if after[name] != before[name]}

    before = counts()
    a_full_worker(service)
    with waiting(service, "/select") as client:
        assert change(before) == {"queued": 1.0, "issued": 1.0}
        assert metric(service, "select_service_queue_requests", policy_class="default") == 1
        assert metric(service, "select_service_queue_isl_tokens", policy_class="default") == 16
        service.call("POST", "/reservations/full-1/prefill_complete")
        assert client.answer().status == 200
    assert change(before) == {"issued": 1.0, "admitted": 1.0, "waited": 1.0}
    a_full_worker(service, 2)
    service.call("DELETE", "/workers/1")
    assert service.call("POST", "/select", {**PROMPT, "timeout_ms": 0}).status == 503
    set_thresholds(service, "m", prefill_tokens=0)
    assert service.call("POST", "/select", PROMPT).status == 503
    assert metric(service, "select_service_busy_ranks", model_name="m") == 1
    assert metric(service, "select_service_busy_workers", model_name="m") == 1
    service.call("POST", "/admission/shed", {"tier": "best_effort"})
    assert metric(service, "select_service_admission_tier_shed", tier="best_effort") == 1
    assert metric(service, "select_service_admission_tier_shed", tier="premium") == 0
    service.call("POST", "/select", {**PROMPT, "priority_tier": "best_effort"})
    expected = {"busy": 1.0, "shed": 1.0, "queue_timeout": 1.0, "rejected": 3.0}
    assert change(before) == expected | {"issued": 4.0, "admitted": 1.0, "waited": 1.0}
