"""Tests of PUT, GET and DELETE /policy."""

import json
from random import Random

import msgspec
import pytest

from select_service.adapters.persistence.policies_file import PoliciesFile
from select_service.core.placement.policies.policy_registry import parse_policy_choice
from select_service.core.registry.fleet import scoped_policies
from select_service.core.registry.fleet.scoped_policies import ScopedPolicies
from select_service.core.views.policy_views import policy_rules
from tests.builders import worker_body
from tests.builders.in_process import Api

WORK = {"policy": "work", "options": []}
STRICT = {"policy": "work", "options": ["strict-tail"]}
REFERENCE = {"policy": "reference", "options": []}
EVERYTHING = {"model_name": None, "tenant_id": None}
PARTITION = {"model_name": "m", "tenant_id": "default"}
PROMPT = {"model_name": "m", "token_ids": list(range(34))}


def put(api, **body):
    return api.call("PUT", "/policy", body)


def test_without_rules_the_flags_of_the_process_apply(fleet):
    answer = fleet.get("/policy")
    assert answer.status == 200
    assert answer.body == {
        "default": WORK,
        "rules": [],
        "tried": [],
        "partitions": [{**PARTITION, **WORK}],
        "kept": False,
    }
    assert fleet.get("/config").body["policy_rules"] == []


def test_the_most_specific_rule_applies_until_it_is_removed(fleet):
    assert put(fleet, policy="reference").status == 200
    answer = put(fleet, model_name="m", **STRICT)
    assert answer.body == fleet.get("/policy").body
    rules = [{**EVERYTHING, **REFERENCE}, {**EVERYTHING, "model_name": "m", **STRICT}]
    assert answer.body["rules"] == rules == fleet.get("/config").body["policy_rules"]
    assert answer.body["partitions"] == [{**PARTITION, **STRICT}]
    exact = put(fleet, model_name="m", routing_group="default", policy="least_work")
    assert exact.body["partitions"][0]["policy"] == "least_work"
    fleet.delete_worker("/policy?model_name=m&tenant_id=default")
    left = fleet.delete_worker("/policy?model_name=m").body
    assert left["partitions"] == [{**PARTITION, **REFERENCE}]
    assert fleet.delete_worker("/policy").body == {
        "default": WORK,
        "rules": [],
        "tried": [],
        "partitions": [{**PARTITION, **WORK}],
        "kept": False,
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
        ({"policy": "reference", "options": ["strict-tail"]}, "`reference` has no options"),
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
    assert fleet.delete_worker("/policy?tenant_id=t").status == 400
    assert fleet.get("/policy").body["rules"] == []


def test_a_misspelt_scope_is_rejected_since_its_rest_is_wider(fleet):
    put(fleet, **REFERENCE)
    for answer in (
        put(fleet, modle_name="m", **WORK),
        fleet.delete_worker("/policy?modle_name=m"),
        fleet.post("/experiments", {"policies": ["work", "reference"], "scope": {"model": "m"}}),
    ):
        assert (answer.status, answer.body["code"]) == (422, "unknown_field")
        assert "did you mean `model_name`?" in answer.body["error"]
    assert fleet.get("/policy").body["rules"] == [{**EVERYTHING, **REFERENCE}]
    assert fleet.get("/experiments").body == {"experiments": []}


def test_only_set_rules_can_be_removed(fleet):
    put(fleet, model_name="m", **REFERENCE)
    answer = fleet.delete_worker("/policy?model_name=m&tenant_id=default")
    assert (answer.status, answer.body["code"]) == (404, "not_found")
    assert "model `m`, tenant `default`" in answer.body["error"]


# After a restart


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index"


def a_service(path):
    return Api("--snapshot-path", str(path))


def test_rules_count_again_after_a_restart(path):
    with a_service(path) as api:
        assert put(api, **REFERENCE).body["kept"]
        put(api, model_name="m", tenant_id="\u00e4/1", **STRICT)
        put(api, model_name="gone", **WORK)
        before = api.delete_worker("/policy?model_name=gone").body
    with a_service(path) as api:
        assert api.get("/policy").body == before
        api.post("/workers", worker_body(1))
        assert api.get("/policy").body["partitions"] == [{**PARTITION, **REFERENCE}]
        api.post("/workers", worker_body(2, tenant_id="\u00e4/1"))
        assert api.get("/policy").body["partitions"][1]["options"] == ["strict-tail"]
    assert [each.name for each in path.parent.iterdir()] == ["index.policies"]


def rule(**fields):
    return {"model_name": "m", "tenant_id": None, **WORK, **fields}


def test_a_flipped_bit_is_found_at_any_position(path):
    beside = path.with_name("index.policies")
    with a_service(path) as api:
        put(api, **STRICT)
        put(api, model_name="m", tenant_id="t", **REFERENCE)
    text, random = beside.read_bytes(), Random(27)
    before = ScopedPolicies(parse_policy_choice("work"), {})
    PoliciesFile(path, before).restore_policies()
    for _ in range(500):
        content = bytearray(text)
        content[random.randrange(len(text))] ^= 1 << random.randrange(8)
        beside.write_bytes(content)
        PoliciesFile(
            path, found := ScopedPolicies(parse_policy_choice("work"), {})
        ).restore_policies()
        assert not policy_rules(found) or policy_rules(found) == policy_rules(before)


def test_rules_of_before_there_were_checksums_count(path):
    path.with_name("index.policies").write_bytes(policies(rule()))
    with a_service(path) as api:
        assert api.get("/policy").body["rules"] == [rule()]


def policies(*rules, **fields):
    """Return a file of policies from before the introduction of checksums."""
    return msgspec.json.encode({"rules": rules, "format": "select-service policies", **fields})


@pytest.mark.parametrize(
    "content",
    [
        policies(rule())[:-1],
        policies(rule()) + b"\xff" * 100,
        policies(rule(), rule(policy="newer")),
        policies(rule(options=["newer"])),
        policies(rule(), version=2),
        policies(rule(), newer=2),
        policies(*(rule(model_name=str(n)) for n in range(3))),
    ],
)
def test_a_file_that_cannot_be_used_is_moved_aside(path, content, caplog, monkeypatch):
    monkeypatch.setattr(scoped_policies, "POLICY_RULES_MAX", 2)
    beside = path.with_name("index.policies")
    beside.write_bytes(content)
    with a_service(path) as api:
        assert api.get("/policy").body["rules"] == []
        put(api, **REFERENCE)
    assert path.with_name("index.policies.refused").read_bytes() == content
    assert json.loads(beside.read_bytes())["rules"] == [{**EVERYTHING, **REFERENCE}]
    assert "policies file unusable" in caplog.text


def test_rules_that_cannot_be_written_apply_and_report_that(path, caplog):
    with a_service(path) as api:
        assert put(api, **STRICT).body["kept"]
        blocking = path.with_name("index.policies.select-service-tmp")
        blocking.mkdir()
        answer = put(api, **REFERENCE)
        assert (answer.status, answer.body["kept"]) == (200, False)
        assert not api.get("/policy").body["kept"]
        assert answer.body["rules"] == [{**EVERYTHING, **REFERENCE}]
        assert "policies file write failed" in caplog.text
        blocking.rmdir()
        assert put(api, **REFERENCE).body["kept"]
