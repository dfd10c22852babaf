"""Tests of the views of the state: loads, overlap, dump, configuration, metrics."""

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from select_service.adapters.persistence import peer_dump_download
from tests.builders import a_worker
from tests.builders.dumped_partition import a_dump

PROMPT = {"model_name": "m", "token_ids": list(range(34))}


def test_loads_list_every_rank_of_every_partition(fleet):
    assert fleet.get("/loads").body == [
        {
            "model_name": "m",
            "tenant_id": "default",
            "routing_group": "default",
            "loads": [
                {
                    "worker_id": 1,
                    "dp_rank": dp_rank,
                    "potential_prefill_tokens": 0,
                    "potential_decode_blocks": 0,
                    "active_requests": 0,
                }
                for dp_rank in (0, 1)
            ],
            "pending_count": 0,
            "pending_isl_tokens": 0,
        }
    ]
    assert fleet.get("/loads?model_name=x").body == []


def test_potential_loads_add_the_prompt_to_every_rank(fleet):
    rows = fleet.post("/potential_loads", PROMPT).body
    assert [(r["dp_rank"], r["potential_prefill_tokens"]) for r in rows] == [(0, 34), (1, 34)]
    assert {row["potential_decode_blocks"] for row in rows} == {8}
    assert fleet.get("/reservations").body["total"] == 0


def test_overlap_scores_list_every_rank(fleet):
    answer = fleet.post("/overlap_scores", PROMPT).body
    assert (answer["block_size"], answer["num_blocks"]) == (4, 8)
    assert [row["dp_rank"] for row in answer["workers"]] == [0, 1]
    assert answer["shared_cache"] == {
        "enabled": False,
        "total_hit_blocks": 0,
        "ranges": [],
        "error": None,
    }


def test_an_empty_service_dumps_an_empty_object(api):
    answer = api.get("/dump")
    assert (answer.status, answer.body) == (200, {})


def test_the_dump_names_every_partition(fleet):
    body = {"worker_id": 2, "endpoint": "http://w", "block_size": 8, "tenant_id": 'a"b'}
    fleet.post("/workers", body)
    assert fleet.get("/dump").body == {
        'default:a"b': {"block_size": 8, "events": []},
        "m:default": {"block_size": 4, "events": []},
    }


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
def test_a_dump_varies_by_accept(fleet, accept):
    answer = fleet.call("GET", "/dump", accept=accept)
    assert answer.headers["content-type"] == accept
    assert answer.headers["vary"] == "Accept"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("application/msgpack;q=0", "json"),
        ("application/msgpack;q=0, */*", "json"),
        ("application/msgpack; q=0.000", "json"),
        ("application/msgpack;q=nan", "json"),
        ("application/msgpack;q=0.5, application/json", "json"),
        ("application/msgpack;q=0.5, */*;q=0.8", "json"),
        ("application/msgpackish", "json"),
        ("text/x-application/msgpack", "json"),
        ("*/*", "json"),
        ("", "json"),
        (",;,", "json"),
        ("application/msgpack;q=0.1", "msgpack"),
        ("Application/MsgPack", "msgpack"),
        ("text/plain;q=0.9 , application/msgpack;v=1;Q=0.9,application/json;q=0.5", "msgpack"),
        ("application/msgpack, */*", "msgpack"),
        (peer_dump_download.ACCEPT, "msgpack"),
    ],
)
def test_a_dump_has_the_form_that_the_client_prefers(fleet, accept, form):
    answer = fleet.call("GET", "/dump", accept=accept)
    assert answer.headers["content-type"] == f"application/{form}"


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack"])
def test_a_head_request_creates_no_dump(fleet, accept):
    got = fleet.call("GET", "/dump", accept=accept)
    process = fleet.service.process
    made = process.json_dumps + process.compact_dumps
    head = fleet.call("HEAD", "/dump", accept=accept)
    assert (head.status, head.body) == (200, "")
    assert head.headers == got.headers
    assert process.json_dumps + process.compact_dumps == made == 1


def test_a_dump_has_a_rank_that_is_just_taking_over_recovered_blocks(fleet):
    """Check a rank in transition: no longer among recovered blocks, not yet in the index."""
    fleet.service.selector.fleet.recovered_blocks.store_partitions(
        [a_dump(2, name="m:default")], 0.0
    )
    fleet.service.selector.register_worker(a_worker(2))
    assert '"worker_id": 2' in json.dumps(fleet.get("/dump").body)


def test_the_configuration_shows_values_and_where_they_came_from(api):
    body = api.get("/config").body
    assert body["version"] == "1.2.3"
    settings = body["settings"]
    assert settings["threads"] == {
        "value": 1,
        "origin": "command line",
        "flag": "--threads",
        "variable": "SELECT_SERVICE_THREADS",
    }
    assert (settings["port"]["value"], settings["port"]["origin"]) == (8092, "default")
    assert settings["use_kv_events"] == {
        "value": False,
        "origin": "environment DYN_USE_KV_EVENTS",
        "variable": "DYN_ROUTER_USE_KV_EVENTS",
    }
    assert body["unknown_variables"] == {}


def test_the_log_level_changes_while_the_service_runs(fleet, caplog):
    def decisions():
        caplog.clear()
        assert fleet.post("/select", PROMPT).status == 200
        return [record.message for record in caplog.records].count("decision")

    for level, shown in (("info", 0), ("debug", 1), ("error", 0), ("debug", 1), ("warning", 0)):
        answer = fleet.call("PUT", "/log_level", {"level": level})
        assert (answer.status, answer.body) == (200, {"configured": "info", "current": level})
        assert decisions() == shown
        assert fleet.get("/config").body["log_level"] == answer.body
    assert fleet.get("/config").body["settings"]["log_level"]["value"] == "info"


def test_a_change_of_the_log_level_is_logged_at_the_old_level(fleet, caplog):
    fleet.call("PUT", "/log_level", {"level": "debug"})
    caplog.clear()
    for _ in range(2):
        fleet.call("PUT", "/log_level", {"level": "error"})
    (line,) = caplog.records
    assert (line.message, line.fields) == ("log level changed", {"before": "debug", "now": "error"})


@pytest.mark.parametrize("wrong", ["DEBUG", "trace", ""])
def test_an_unknown_log_level_is_rejected_with_the_known_ones(api, wrong):
    before = api.get("/config").body["log_level"]
    answer = api.call("PUT", "/log_level", {"level": wrong})
    assert (answer.status, answer.body["code"]) == (422, "invalid_body")
    for level in ("debug", "info", "warning", "error"):
        assert f'"{level}"' in answer.body["error"]
    assert api.get("/config").body["log_level"] == before


def test_metrics_count_actions(fleet):
    assert fleet.post("/select_and_reserve", PROMPT).status == 200
    assert fleet.post("/select", b"{").status == 400
    assert fleet.get("/nope").status == 404
    answer = fleet.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.body)}
    assert all(name.startswith(("select_service_", "dynamo_", "process_")) for name in families)
    counted = {
        (s.labels["route"], s.labels["status"]): s.value
        for s in families["select_service_requests"].samples
        if s.name.endswith("_total")
    }
    assert counted[("/select_and_reserve", "200")] == 1
    assert counted[("/select", "400")] == 1
    assert counted[("unknown", "404")] == 1
