"""Tests of GET /shadow and of experiments."""

import pytest

from select_service.adapters.service_tasks import make_service_tasks
from tests.builders import worker_body
from tests.builders.in_process import Api

PROMPT = {"model_name": "m", "token_ids": list(range(34))}


@pytest.fixture
def shadowed():
    with Api("--shadow-policy", "reference") as api:
        for worker_id in (1, 2):
            api.post("/workers", worker_body(worker_id))
        yield api


def test_the_shadow_shows_its_own_choice(shadowed):
    assert shadowed.get("/shadow").body == {
        "shadow_policy": "reference",
        "skipped": 0,
        "backlog": 0,
        "policies": [],
    }
    for _ in range(3):
        shadowed.post("/select", PROMPT)
    assert shadowed.get("/shadow").body["backlog"] == 3
    shadowed.service.selector.followers.evaluation.shadow.run_turn(0.0)
    (row,) = shadowed.get("/shadow").body["policies"]
    assert row == {
        "policy": "work",
        "decisions": 3,
        "other": 0,
        "no_choice": 0,
        "partial": 0,
        "regret": 0.0,
        "lowest_cost": 16.5,
        "made": {"wait": 0.0, "prefill": 0.0},
        "shadow": {"wait": 0.0, "prefill": 0.0},
    }
    setting = shadowed.get("/config").body["settings"]["shadow_policy"]
    assert setting["value"] == "reference"


def test_without_a_shadow_policy_there_is_nothing_to_show(fleet):
    answer = fleet.get("/shadow")
    assert (answer.status, answer.body["code"]) == (404, "not_found")
    assert "--shadow-policy" in answer.body["error"]


BOTH = ["reference", "work+strict-tail"]


def begin(api, **fields):
    return api.post("/experiments", {"policies": BOTH, **fields})


def policy_now(api):
    (row,) = api.get("/policy").body["partitions"]
    return "+".join([row["policy"], *row["options"]])


def test_an_experiment_runs_until_it_is_ended(fleet):
    answer = begin(fleet, slot_s=120, scope={"model_name": "m"})
    assert answer.status == 201
    begun = answer.body
    assert (begun["experiment_id"], begun["state"], begun["slot_s"]) == ("1", "running", 120.0)
    assert (begun["model_name"], begun["tenant_id"]) == ("m", None)
    assert begun["current"] in BOTH
    assert begun["current"] == policy_now(fleet)
    assert [arm["policy"] for arm in begun["policies"]] == BOTH
    assert begun["difference"] is None
    (listed,) = fleet.get("/experiments").body["experiments"]
    shown = fleet.get("/experiments/1").body
    assert shown.pop("pairs") == []
    assert {**listed, "seconds": 0} == {**shown, "seconds": 0}
    ended = fleet.delete_worker("/experiments/1").body
    assert (ended["state"], ended["ending"], ended["current"]) == ("ended", "deleted", None)
    assert policy_now(fleet) == "work"
    assert fleet.delete_worker("/experiments/1").body == ended == fleet.get("/experiments/1").body


def test_the_policies_in_force_mark_policies_under_trial(fleet):
    assert fleet.get("/policy").body["tried"] == []
    current = begin(fleet, scope={"model_name": "m"}).body["current"]
    (tried,) = fleet.get("/policy").body["tried"]
    assert "+".join([tried.pop("policy"), *tried.pop("options")]) == current == policy_now(fleet)
    assert tried == {"model_name": "m", "tenant_id": None}
    fleet.delete_worker("/experiments/1")
    assert fleet.get("/policy").body["tried"] == []


def test_measurements_are_shown(fleet):
    experiments = fleet.service.selector.followers.evaluation.experiments
    begin(fleet, slot_s=120)
    experiment = experiments.get_experiment("1")
    for number in range(5):
        times = [(1.0, 2.0 + number), (3.0,)]
        for seconds in times[experiment.slots[-1].arm]:
            experiment.add_measurement(experiment.slots[-1], seconds)
        # A little later: the sum of a time and 120 may be rounded down.
        experiments.run_turn(experiment.slots[-1].began_at + 120.001)
    found = fleet.get("/experiments/1").body
    assert (found["pairs_measured"], found["pairs_left_out"]) == (2, 0)
    first, second = (arm["mean_ttft_s"] for arm in found["policies"])
    assert found["difference"]["mean_s"] == pytest.approx(second - first)
    assert found["difference"]["relative"] == pytest.approx(second / first - 1, abs=1e-5)
    assert found["difference"]["confidence"] == 0.95
    assert [pair["requests"] for pair in found["pairs"]] == [[2, 1], [2, 1]]
    assert [pair["mean_ttft_s"][1] for pair in found["pairs"]] == [3.0, 3.0]


def test_rules_inside_an_experiment_are_rejected_and_wider_ones_are_not(fleet):
    begin(fleet, scope={"model_name": "m"})
    rule = {"model_name": "m", "tenant_id": "default", "policy": "least_work"}
    for answer in (fleet.call("PUT", "/policy", rule), fleet.delete_worker("/policy?model_name=m")):
        assert (answer.status, answer.body["code"]) == (409, "conflict")
        assert "an experiment runs for model `m`, tenant all" in answer.body["error"]
    assert fleet.call("PUT", "/policy", {"policy": "least_work"}).status == 200
    assert policy_now(fleet) in BOTH
    fleet.delete_worker("/experiments/1")
    assert policy_now(fleet) == "least_work"


def test_two_experiments_may_not_switch_the_same_requests(fleet):
    assert begin(fleet, scope={"model_name": "m", "routing_group": "t"}).status == 201
    for scope in ({}, {"model_name": "m"}, {"model_name": "m", "tenant_id": "t"}):
        answer = begin(fleet, scope=scope)
        assert (answer.status, answer.body["code"]) == (409, "conflict")
        assert "experiment 1 runs for model `m`, tenant `t`" in answer.body["error"]
    assert begin(fleet, scope={"model_name": "m", "tenant_id": "u"}).status == 201


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"policies": ["work"]}, 422, "`policies`"),
        ({"policies": ["work", "reference", "least_work"]}, 422, "`policies`"),
        ({"policies": ["work", "work"]}, 422, "two different policies"),
        ({"policies": ["reference", "wrok"]}, 422, "`policies[1]`: the policies are"),
        ({"policies": ["work+strict_tail", "reference"]}, 422, "did you mean `strict-tail`?"),
        ({"policies": ["reference+strict-tail", "work"]}, 422, "`policies[0]`: the policy"),
        ({"slot_s": 60}, 422, "`slot_s`"),
        ({"slot_s": 301}, 422, "`slot_s`"),
        ({"scope": {"tenant_id": "t"}}, 400, "without `model_name`"),
        ({"scope": "m"}, 422, "`scope`"),
    ],
)
def test_bad_experiments_are_refused_and_change_nothing(fleet, fields, status, text):
    answer = begin(fleet, **fields)
    assert answer.status == status
    assert text in answer.body["error"]
    assert fleet.get("/experiments").body == {"experiments": []}
    assert policy_now(fleet) == "work"


def test_an_experiment_that_there_is_not_is_not_found(fleet):
    for answer in (fleet.get("/experiments/7"), fleet.delete_worker("/experiments/7")):
        assert (answer.status, answer.body["code"]) == (404, "not_found")


def test_a_policy_that_is_only_tried_is_not_kept(tmp_path):
    path = tmp_path / "index"
    with Api("--snapshot-path", str(path)) as api:
        api.call("PUT", "/policy", {"policy": "least_work"})
        begin(api)
        api.call("PUT", "/log_level", {"level": "info"})
    with Api("--snapshot-path", str(path)) as api:
        api.post("/workers", worker_body(1))
        assert policy_now(api) == "least_work"


def test_metrics_name_the_measured_policy(fleet):
    assert "select_service_experiment" not in fleet.get("/metrics").body
    begin(fleet, scope={"model_name": "m"})
    labels = 'experiment="1",model_name="m",policy="reference",tenant_id=""'
    assert f"select_service_experiment_measured{{{labels}}} 0.0" in fleet.get("/metrics").body
    assert f"select_service_experiment_ttft_seconds_count{{{labels}}} 0.0" in (
        fleet.get("/metrics").body
    )


def tasks_of(api):
    return make_service_tasks(api.service.selector, api.service.ingest, api.follower, None).counts


def test_the_shadow_has_its_own_task_if_enabled(shadowed, api):
    assert "shadow" in tasks_of(shadowed)
    assert "shadow" not in tasks_of(api)
    assert "experiments" in tasks_of(api)
