"""Tests of GET /planner/observation, and of the role of a worker."""

from time import monotonic

import msgspec
import pytest

from select_service.planner.core.tick_input import Role
from select_service.planner.runtime.selector_observation import (
    SelectorObservation,
    combine_observations,
)
from tests.builders import worker_body
from tests.builders.in_process import Api

PATH = "/planner/observation"
TOKENS = {"model_name": "m", "token_ids": list(range(10))}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("window_s=0", "window_s: expected a whole number from 1 to 3600, got 0"),
        ("window_s=3601", "window_s: expected a whole number from 1 to 3600, got 3601"),
        ("window_s=-1", "window_s: expected a whole number, got `-1`"),
        ("window_s=1.5", "window_s: expected a whole number, got `1.5`"),
        ("window_s=NaN", "window_s: expected a whole number, got `NaN`"),
        ("window_s=1&window_s=2", "duplicate field `window_s`"),
        ("tenant_id=a&routing_group=b", "routing_group"),
    ],
)
def test_a_wrong_query_is_rejected_with_the_fault(fleet, query, said):
    answer = fleet.get(f"{PATH}?model_name=m&{query}")
    assert (answer.status, said in answer.body["error"]) == (400, True)


def test_an_unknown_model_is_not_found(fleet):
    for query in ("", "?model_name=another", "?model_name=m&tenant_id=b"):
        answer = fleet.get(PATH + query)
        assert (answer.status, answer.body["code"]) == (404, "not_found")


def test_a_model_without_requests_is_observed_as_that(fleet):
    seen = fleet.get(f"{PATH}?model_name=m").body
    assert (seen["model_name"], seen["tenant_id"]) == ("m", "default")
    assert (seen["arrivals"], seen["complete"], seen["kv_hit_rate"]) == (0, False, None)
    assert [(r["worker_id"], r["dp_rank"], r["role"]) for r in seen["ranks"]] == [
        (1, 0, "aggregated"),
        (1, 1, "aggregated"),
    ]
    assert not {"state", "weight", "engine"} & set(seen["ranks"][0])


def test_requests_are_observed_at_once(fleet):
    fleet.get(f"{PATH}?model_name=m&window_s=5")
    fleet.post("/select_and_reserve", {**TOKENS, "reservation_id": "a"})
    fleet.post("/select", TOKENS)
    fleet.post("/reservations/a/prefill_complete", {})
    seen = fleet.get(f"{PATH}?model_name=m&window_s=5").body
    assert (seen["arrivals"], seen["isl"]["sum"], sum(seen["ttft_s"]["counts"])) == (2, 20.0, 1)
    edges = seen["bins"]["tokens"]
    at = seen["isl"]["counts"].index(2)
    assert edges[at] <= 10 < edges[at + 1]
    assert len(edges) == len(seen["isl"]["counts"]) + 1
    assert len(seen["bins"]["seconds"]) == len(seen["ttft_s"]["counts"]) + 1


def test_the_planner_decodes_the_observation(fleet):
    """Check that the planner decodes the selector's observation."""
    fleet.service.selector.followers.traffic.close_slots(monotonic() - 5.0)
    fleet.post("/select_and_reserve", {**TOKENS, "reservation_id": "a"})
    for verb in ("prefill_complete", "output_block", "output_block"):
        fleet.post(f"/reservations/a/{verb}", {})
    answer = fleet.get(f"{PATH}?model_name=m&window_s=5")
    told = combine_observations(
        [msgspec.convert(answer.body, SelectorObservation)], window_s=5.0, ttft_s=60.0, itl_s=60.0
    )
    traffic = told.traffic
    assert (traffic.requests, traffic.isl, traffic.kv_hit_rate) == (1.0, 10.0, 0.0)
    assert (traffic.ttft_met, traffic.itl_met) == (1.0, 1.0)
    assert (len(traffic.prefill_samples), len(traffic.decode_samples)) == (1, 2)
    assert told.workers == {Role.PREFILL: 0, Role.DECODE: 1}
    assert sum(each.decode_kv_tokens for each in told.passes[Role.DECODE]) == 4 * (2 + 2)


def test_state_and_weight_are_shown_with_health_checks():
    with Api("--health-checks", "on") as service:
        service.post("/workers", worker_body(1))
        (rank,) = service.get(f"{PATH}?model_name=m").body["ranks"]
        assert (rank["state"], rank["weight"]) == ("healthy", 1.0)
        assert not {"cause", "out_s", "spare"} & set(rank)


def test_ejected_ranks_have_the_time_and_the_cause():
    with Api("--health-checks", "on", "--degradation", "observe") as service:
        for worker_id in (1, 2, 3):
            service.post("/workers", worker_body(worker_id, spare=worker_id == 3))
        service.post("/workers/1/outcome", {"dp_rank": 0, "outcome": "fatal"})
        service.post("/workers/2/drain", {"migrate": False})
        body = service.get(f"{PATH}?model_name=m").body
        first, second, third = body["ranks"]
        assert (first["state"], first["cause"]) == ("unhealthy", "fatal")
        assert 0 <= first["out_s"] < 60
        assert (second["state"], second["cause"]) == ("draining", "operator")
        assert "out_s" in second
        # The spare has taken the place of the failed rank, which is the spare now.
        assert (first["spare"], "spare" in third, third["weight"]) == (True, False, 1.0)
        health = body["health"]
        assert (health["total"], health["healthy"], health["capacity_lost"]) == (3, 1, 1)
        assert (health["spares"], health["spares_wanted"]) == (1, 0)
        told = combine_observations(
            [msgspec.convert(body, SelectorObservation)], window_s=5.0, ttft_s=1.0, itl_s=1.0
        )
        (lost,) = told.health[Role.DECODE].lost
        assert (lost.worker_id, lost.cause) == (1, "fatal")


def test_a_drain_without_health_checks_is_an_operators():
    with Api() as service:
        service.post("/workers", worker_body(1))
        service.post("/workers/1/drain", {})
        (rank,) = service.get(f"{PATH}?model_name=m").body["ranks"]
        assert (rank["state"], rank["cause"]) == ("draining", "operator")
        assert "health" not in service.get(f"{PATH}?model_name=m").body


def test_a_role_is_registered_changed_and_shown(api):
    body = worker_body(1, role="prefill")
    assert api.post("/workers", body).body["role"] == "prefill"
    assert api.call("PATCH", "/workers/1", {"role": "decode"}).body["role"] == "decode"
    assert api.call("PATCH", "/workers/1", {"spare": False}).body["role"] == "decode"
    assert api.get("/workers").body[0]["role"] == "decode"


def test_a_worker_without_a_role_is_shown_as_before(api):
    assert "role" not in api.post("/workers", worker_body(1)).body


def test_a_role_that_there_is_not_is_refused(api):
    answer = api.post("/workers", worker_body(1, role="Prefill"))
    assert answer.status in (400, 422)
    assert "role" in answer.body["error"]
