"""Tests that workers and replicas at forbidden addresses cannot be registered."""

import json

import pytest

from tests.builders import worker_body
from tests.builders.in_process import Api
from tests.builders.polling import eventually

LINK_LOCAL = "169.254.169.254"
KEYLESS = ("--host", "0.0.0.0", "--insecure")
"""Flags of a service that is open to other machines."""


@pytest.fixture
def elsewhere():
    """Yield a service that is open to other machines and subscribes to events."""
    with Api(*KEYLESS, "--replica-sync-port", "65535", DYN_USE_KV_EVENTS="true") as service:
        yield service


def is_refused(answer, *texts):
    assert (answer.status, answer.body["code"]) == (400, "destination_refused"), answer.body
    assert all(text in answer.body["error"] for text in texts), answer.body
    return True


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("metrics_endpoint", f"http://{LINK_LOCAL}/latest/meta-data"),
        ("metrics_endpoint", "http://[::ffff:169.254.169.254]/"),
        ("metrics_endpoint", "https://[fd00:ec2::254]/"),
        ("kv_events_endpoint", f"tcp://{LINK_LOCAL}:80"),
        ("kv_events_endpoint", "tcp://0.0.0.0:5557"),
        ("kv_events_endpoint", "tcp://[fe80::1%eth0]:5557"),
        ("replay_endpoint", "tcp://224.0.0.1:5558"),
    ],
)
def test_a_worker_where_nothing_is_ever_connected_to(api, field, place):
    given = {"kv_events_endpoint": "tcp://w:5557"} | {field: place}
    is_refused(api.post("/workers", worker_body(1, **given)), f"{field} `{place}`")
    assert api.get("/workers").body == []
    assert api.post("/workers", worker_body(1)).status == 201
    is_refused(api.patch("/workers/1", {field: place}), field)
    assert api.get("/workers/1").body.get(field) != place


def test_every_one_of_many_ranks_is_checked(api):
    endpoints = {str(rank): f"tcp://10.0.0.{rank}:5557" for rank in range(4)}
    body = worker_body(1, data_parallel_size=4, kv_events_endpoints=endpoints)
    assert api.post("/workers", body).status == 201
    for name in ("kv_events_endpoints", "replay_endpoints"):
        table = {**endpoints, "3": f"tcp://{LINK_LOCAL}:5557"}
        is_refused(api.post("/workers", {**body, name: table}), name, LINK_LOCAL)
        is_refused(api.patch("/workers/1", {name: table}), name)


@pytest.mark.parametrize(
    "place",
    ["tcp://127.0.0.1:5557", "tcp://[::1]:5557", "tcp://localhost:5557", "ipc:///tmp/events"],
)
def test_the_machine_itself_needs_a_flag_where_others_can_call(elsewhere, place):
    body = worker_body(1, kv_events_endpoint=place)
    is_refused(elsewhere.post("/workers", body), "--connect-to-loopback")
    with Api(*KEYLESS, "--connect-to-loopback") as allowed:
        assert allowed.post("/workers", body).status == 201
    with Api() as own:
        assert own.post("/workers", body).status == 201
    with Api("--connect-to-loopback", "false") as not_even_so:
        is_refused(not_even_so.post("/workers", body), "--connect-to-loopback")


def test_only_listed_addresses_are_permitted():
    with Api("--connect-to", "10.0.0.0/8,.engines.test") as api:
        for n, host in enumerate(("10.1.1.1", "a.engines.test", "later.example", "127.0.0.1")):
            body = worker_body(n, kv_events_endpoint=f"tcp://{host}:5557")
            assert api.post("/workers", body).status == 201, host
        body = worker_body(9, kv_events_endpoint="tcp://11.0.0.1:5557")
        is_refused(api.post("/workers", body), "--connect-to: 10.0.0.0/8, .engines.test")


def test_a_name_with_a_forbidden_address_is_shown_in_the_worker(elsewhere, monkeypatch):
    monkeypatch.setattr(
        elsewhere.service.ingest.resolver,
        "_lookup",
        lambda *_, **__: [(2, 1, 6, "", (LINK_LOCAL, 0))],
    )
    body = worker_body(1, kv_events_endpoint="tcp://engine.example:5557")
    assert elsewhere.post("/workers", body).status == 201

    def is_reported():
        status = elsewhere.get("/workers").body[0]["kv_events"]["0"]
        return "engine.example resolves to 169.254.169.254" in (status["connect_error"] or "")

    eventually(is_reported)
    text = elsewhere.get("/metrics").body
    assert 'select_service_connections_refused_total{purpose="events"}' in text


def test_no_series_before_something_was_refused(api):
    assert "select_service_connections_refused_total{" not in api.get("/metrics").body


@pytest.mark.parametrize("place", [f"tcp://{LINK_LOCAL}:1", "tcp://127.0.0.1:1", "ipc:///tmp/a"])
def test_a_replica_that_may_not_be_connected_to(elsewhere, place):
    answer = elsewhere.post("/replica_sync/register_peer", {"endpoint": place})
    is_refused(answer, f"replica peer `{place}`")
    assert elsewhere.get("/replica_sync/peers").body == []


def test_endpoints_for_health_checks_are_judged_too(api):
    body = worker_body(1, endpoint=f"http://{LINK_LOCAL}:8000")
    assert (
        api.post("/workers", body).status == 201
    )  # the endpoint is shown to clients, never called
    with Api("--health-checks", "on") as checking:
        is_refused(checking.post("/workers", body), "endpoint `http://169.254.169.254:8000`")


def test_a_source_of_workers_shows_rejected_workers(tmp_path):
    path = tmp_path / "workers.yaml"
    path.write_text(
        "workers:\n"
        "- {worker_id: 1, model_name: m, block_size: 4, endpoint: 'http://a',\n"
        f"   metrics_endpoint: 'http://{LINK_LOCAL}/m'}}\n"
        "- {worker_id: 2, model_name: m, block_size: 4, endpoint: 'http://b'}\n"
    )
    with Api("--workers-file", str(path)) as api:

        def sources():
            return api.get("/discovery").body["sources"]

        api.follow_sources(lambda: sources()[0]["owned"] == 1 and sources()[0]["refused"] == 1)
        assert "link-local" in json.dumps(sources()[0]["reasons"])
        assert [each["worker_id"] for each in api.get("/workers").body] == [2]
