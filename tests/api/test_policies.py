"""PUT, GET and DELETE /policy."""

import pytest

from tests.builders import worker_body

WORK = {"policy": "work", "options": []}
STRICT = {"policy": "work", "options": ["strict-tail"]}
REFERENCE = {"policy": "reference", "options": []}
EVERYTHING = {"model_name": None, "tenant_id": None}
PARTITION = {"model_name": "m", "tenant_id": "default"}
PROMPT = {"model_name": "m", "token_ids": list(range(34))}


def put(api, **body):
    return api.call("PUT", "/policy", body)


def test_at_first_all_is_as_the_process_was_started(fleet):
    answer = fleet.get("/policy")
    assert answer.status == 200
    assert answer.body == {"default": WORK, "rules": [], "partitions": [{**PARTITION, **WORK}]}
    assert fleet.get("/config").body["policy_rules"] == []


def test_the_most_specific_rule_counts_until_it_is_taken_back(fleet):
    assert put(fleet, policy="reference").status == 200
    answer = put(fleet, model_name="m", **STRICT)
    assert answer.body == fleet.get("/policy").body
    rules = [{**EVERYTHING, **REFERENCE}, {**EVERYTHING, "model_name": "m", **STRICT}]
    assert answer.body["rules"] == rules == fleet.get("/config").body["policy_rules"]
    assert answer.body["partitions"] == [{**PARTITION, **STRICT}]
    exact = put(fleet, model_name="m", routing_group="default", policy="least_work")
    assert exact.body["partitions"][0]["policy"] == "least_work"
    fleet.delete("/policy?model_name=m&tenant_id=default")
    left = fleet.delete("/policy?model_name=m").body
    assert left["partitions"] == [{**PARTITION, **REFERENCE}]
    assert fleet.delete("/policy").body == {
        "default": WORK,
        "rules": [],
        "partitions": [{**PARTITION, **WORK}],
    }


def test_a_decision_names_the_policy_that_counted(fleet):
    for policy in ("reference", "least_work", "work"):
        put(fleet, model_name="m", policy=policy)
        assert fleet.post("/explain", PROMPT).body["policy"] == policy
        given = {**PROMPT, "router_config_override": {"overlap_score_credit": 0.5}}
        assert fleet.post("/explain", given).body["policy"] == policy


def test_partitions_that_come_later_follow_the_rules(api):
    put(api, model_name="m", **REFERENCE)
    api.post("/workers", worker_body(1))
    assert api.get("/policy").body["partitions"] == [{**PARTITION, **REFERENCE}]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"policy": "wrok"}, "did you mean `work`?"),
        ({"policy": "work", "options": ["strict_tail"]}, "did you mean `strict-tail`?"),
        ({"policy": "reference", "options": ["strict-tail"]}, "the policy `reference` has none"),
        ({"policy": 3}, "`policy`: expected a text, got 3"),
        ({"policy": "work", "options": "no-memory"}, "`options`: expected a list"),
        ({"policy": "work", "options": [True]}, "`options[0]`: expected a text"),
        ({"policy": "work", "options": ["no-memory"] * 17}, "at most 16 items"),
        ({"model_name": "m"}, "`policy`"),
    ],
)
def test_bad_bodies_are_refused_and_change_nothing(fleet, body, text):
    answer = fleet.call("PUT", "/policy", body)
    assert (answer.status, answer.body["code"]) == (422, "invalid_body")
    assert text in answer.body["error"]
    assert fleet.get("/policy").body["rules"] == []


def test_a_scope_that_makes_no_sense_is_refused(fleet):
    assert put(fleet, tenant_id="t", **WORK).status == 400
    assert put(fleet, model_name="m", tenant_id="t", routing_group="u", **WORK).status == 400
    assert fleet.delete("/policy?tenant_id=t").status == 400
    assert fleet.get("/policy").body["rules"] == []


def test_what_was_not_set_cannot_be_taken_back(fleet):
    put(fleet, model_name="m", **REFERENCE)
    answer = fleet.delete("/policy?model_name=m&tenant_id=default")
    assert (answer.status, answer.body["code"]) == (404, "not_found")
    assert "model `m`, tenant `default`" in answer.body["error"]
