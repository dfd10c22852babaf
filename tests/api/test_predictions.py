"""Tests of failed predictions in GET /workers, and their likely causes."""

import pytest

from select_service.api.worker_views import predictions_view
from select_service.core.analysis.accuracy.prediction_accuracy import CHECKS_MIN, PredictionAccuracy
from select_service.core.identity import Rank
from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.metrics.test_metrics import a_status


def one_request(api, number, now):
    tokens = [number * 100 + k for k in range(40)]
    body = {"model_name": "m", "token_ids": tokens, "reservation_id": "r"}
    assert api.post("/select_and_reserve", body).status == 200
    checks = api.service.selector.followers.evaluation.predictions
    checks.run_turn(now)
    assert api.post("/reservations/r/prefill_complete").status == 200
    assert api.delete_worker("/reservations/r").status == 200
    checks.run_turn(now + 1.0)
    checks.run_turn(now + 3.0)


def test_a_rank_without_events_is_shown_with_the_cause():
    with Api("--policy", "work", DYN_USE_KV_EVENTS="true") as api:
        api.post("/workers", worker_body(1, kv_events_endpoint="ipc:///nowhere/trust"))
        assert "predictions" not in api.get("/workers/1").body
        for number in range(CHECKS_MIN):
            one_request(api, number, 10.0 * number)
        shown = api.get("/workers/1").body["predictions"]["0"]
        assert (shown["checks"], shown["trust"]) == (CHECKS_MIN, 0.0)
        assert shown["suspect"].startswith("no KV events arrive")
        (row,) = api.get("/workers").body
        assert row["predictions"] == {"0": shown}


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (None, "no listener for its KV events"),
        (a_status(connected=False, connect_error="refused"), "no KV events arrive: refused"),
        (a_status(), "no KV events received"),
        (a_status(batches=3, degraded="lost batch 7"), "were lost: lost batch 7"),
        (a_status(batches=3), "block size, salt or LoRA name"),
    ],
)
def test_the_likely_cause_follows_from_the_listener(status, cause):
    known = PredictionAccuracy(Rank(1, 0))
    for _ in range(CHECKS_MIN):
        known.add_check(0.0)
    assert cause in predictions_view(known, status).suspect
