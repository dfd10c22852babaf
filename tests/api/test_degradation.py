"""Tests, over the interface, of models without the ranks for the promised load."""

from time import monotonic

import pytest

from tests.builders import worker_body
from tests.builders.in_process import Api

SELECT = {"model_name": "m", "token_ids": [1, 2, 3]}


def fail_workers(api, *worker_ids):
    """Let these workers fail; the level follows after its hold."""
    for worker_id in worker_ids:
        body = {"model_name": "m", "token_ids": [1], "reservation_id": f"on-{worker_id}"}
        assert api.post("/reservations", {**body, "worker_id": worker_id}).status == 201
        fatal = {"outcome": "fatal", "reservation_id": f"on-{worker_id}"}
        assert api.post(f"/workers/{worker_id}/outcome", fatal).status == 204
    selector, begin = api.service.selector, monotonic()
    for second in range(7):
        selector.run_pending(begin + second)
        selector.health.advance_timers(begin + second)


def a_fleet(*flags):
    api = Api("--health-checks=on", *flags)
    for worker_id in range(1, 6):
        assert api.post("/workers", worker_body(worker_id)).status == 201
    return api


def test_new_requests_are_rejected_when_hardly_any_rank_is_left():
    with a_fleet("--degradation=auto") as api:
        fail_workers(api, 1, 2, 3, 4)
        (partition,) = api.get("/health/fleet").body["partitions"]
        assert partition["capacity"]["level"] == 4
        answer = api.post("/select", SELECT)
        assert (answer.status, answer.body["code"]) == (503, "degraded")
        assert answer.headers["retry-after"] == "30"
        assert api.post("/reservations/on-1/renew").status == 200
        (row,) = api.get("/admission").body["degraded"]
        assert row == {
            "model_name": "m",
            "level": 4,
            "shed_tier": api.get("/admission").body["tiers"][0],
            "refuses_new": True,
            "batch_multiplier": 0.5,
            "latency_multiplier": 2.0,
        }
        assert api.get("/admission").body["shed_tier"] is None


@pytest.mark.parametrize("degradation", ["off", "observe"])
def test_levels_are_only_shown_or_not_even_that(degradation):
    with a_fleet(f"--degradation={degradation}") as api:
        fail_workers(api, 1, 2, 3, 4)
        assert api.post("/select", SELECT).status == 200
        (partition,) = api.get("/health/fleet").body["partitions"]
        shown = partition["capacity"]
        assert shown == (None if degradation == "off" else {"level": 4, "ratio": 0.2})
        assert "degraded" not in api.get("/admission").body
