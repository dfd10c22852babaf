"""Tests of the display of ranks with a weight other than 1."""

from select_service.core.identity import Rank
from tests.builders import worker_body

PROMPT = {"model_name": "m", "token_ids": list(range(34))}


def weigh(api, weight, dp_rank=0, state="unhealthy"):
    api.service.selector.fleet.set_weight(Rank(1, dp_rank), weight, state)


def test_a_refusal_names_the_state_of_the_rank(fleet):
    weigh(fleet, 0.0)
    pinned = {**PROMPT, "pinned_worker": {"worker_id": 1, "dp_rank": 0}}
    for path in ("/select", "/select_and_reserve", "/explain"):
        answer = fleet.post(path, pinned)
        assert (answer.status, answer.body["code"]) == (503, "no_eligible_rank")
        assert answer.body["details"] == {
            "weight": 0,
            "ranks": 1,
            "states": {"unhealthy": 1},
            "state": "unhealthy",
        }
        assert fleet.post(path, PROMPT).status == 200
    named = {**PROMPT, "reservation_id": "r", "worker_id": 1}
    refused = fleet.post("/reservations", named)
    assert (refused.status, refused.body["details"]) == (503, answer.body["details"])
    assert refused.body["error"].endswith("worker 1 dp_rank 0 is unhealthy, out of rotation")
    assert fleet.post("/reservations", {**named, "dp_rank": 1}).status == 201


def test_without_any_rank_in_rotation_nothing_is_served(fleet):
    for dp_rank, state in enumerate(("unhealthy", "draining")):
        weigh(fleet, 0.0, dp_rank, state)
    answer = fleet.post("/select", PROMPT)
    assert (answer.status, answer.body["code"]) == (503, "no_eligible_rank")
    assert answer.body["details"]["states"] == {"unhealthy": 1, "draining": 1}
    assert len(fleet.post("/potential_loads", PROMPT).body) == 2
    assert len(fleet.post("/overlap_scores", PROMPT).body["workers"]) == 2


def test_decisions_and_explanations_show_weights(fleet):
    weigh(fleet, 0.5)
    fleet.post("/select_and_reserve", {**PROMPT, "reservation_id": "r"})
    for body in (fleet.get("/decisions/r").body, fleet.post("/explain", PROMPT).body):
        weights = {each["dp_rank"]: each["weight"] for each in body["candidates"]}
        assert weights == {0: 0.5, 1: 1.0}


def test_a_worker_is_busy_if_all_of_its_ranks_in_rotation_are(api):
    api.post("/workers", worker_body(1, data_parallel_size=2, total_kv_blocks=100))
    api.post("/busy_threshold", {"model": "m", "active_prefill_tokens_threshold": 4})
    weigh(api, 0.0)

    def busy():
        admission = api.get("/workers/1").body["admission"]
        return admission["busy"], [rank["busy"] for rank in admission["ranks"].values()]

    assert busy() == (False, [False, False])
    api.post("/select_and_reserve", PROMPT)
    assert busy() == (True, [False, True])
    weigh(api, 0.0, 1)
    assert busy() == (False, [False, False])
