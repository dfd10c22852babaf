"""Tests of the routes of the replica plane: its peers, and answers without a plane."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from select_service.core.replication import replica_state as replica_state
from select_service.schemas import replicas as schema_replicas

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "replica-status.md").read_text()
PEER = {"endpoint": "tcp://127.0.0.1:19170"}


def register(service, endpoint):
    return service.post("/replica_sync/register_peer", {"endpoint": endpoint})


def test_a_new_peer_is_created_and_a_known_one_is_ok(replica):
    assert (register(replica, "tcp://b:1").status, register(replica, "tcp://b:1").status) == (
        201,
        200,
    )
    assert register(replica, "tcp://a:1").body == {"status": "ok"}
    assert replica.get("/replica_sync/peers").body == ["tcp://a:1", "tcp://b:1"]


def test_a_peer_is_deregistered_once(replica):
    register(replica, PEER["endpoint"])
    answer = replica.post("/replica_sync/deregister_peer", PEER)
    assert (answer.status, answer.body) == (200, {"status": "ok"})
    answer = replica.post("/replica_sync/deregister_peer", PEER)
    assert answer.status == 404
    assert answer.body["error"].startswith("peer not found: ")
    assert replica.get("/replica_sync/peers").body == []


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://x:1",
        "ipc://x",
        "inproc://a",
        "tcp://[::1]:5",
        "tcp://no.such.host.invalid:5",
        "tcp://10.0.0.1:1",
    ],
)
def test_endpoints_that_may_exist_are_accepted(replica, endpoint):
    assert register(replica, endpoint).status == 201


@pytest.mark.parametrize(
    ("endpoint", "fault"),
    [
        ("", "missing scheme"),
        ("127.0.0.1:1", "missing scheme; did you mean `tcp://127.0.0.1:1`?"),
        ("tcp://a:0", "TCP port 0 cannot be connected to"),
        ("udp://x:1", "unsupported scheme `udp`"),
        ("tcp://x", "missing TCP port"),
        ("tcp://:5", "missing TCP host"),
        ("tcp://x:99999", "invalid TCP port: number too large to fit in target type"),
        ("ipc://", "missing address"),
    ],
)
@pytest.mark.parametrize("verb", ["register_peer", "deregister_peer"])
def test_an_endpoint_that_is_none_is_a_bad_request(replica, verb, endpoint, fault):
    answer = replica.post(f"/replica_sync/{verb}", {"endpoint": endpoint})
    assert answer.status == 400
    assert answer.body["error"] == f"invalid ZMQ endpoint `{endpoint}`: {fault}"


def test_an_endpoint_that_zmq_refuses_is_a_bad_request(replica):
    answer = register(replica, "tcp://*:5")
    assert answer.status == 400
    assert answer.body["error"] == (
        "failed to register replica peer `tcp://*:5`: `*` is not a destination; "
        "give the host name or address of the peer"
    )
    assert replica.get("/replica_sync/peers").body == []


@pytest.mark.parametrize(("body", "status"), [({}, 422), ({"endpoint": 5}, 422), (b"x", 400)])
def test_a_body_of_the_wrong_shape_is_refused(replica, body, status):
    assert replica.post("/replica_sync/register_peer", body).status == status


def test_unknown_fields_are_ignored(replica):
    assert replica.post("/replica_sync/register_peer", {**PEER, "x": 1}).status == 201


def test_the_number_of_peers_is_bounded(replica):
    for port in range(1, 65):
        assert register(replica, f"tcp://127.0.0.1:{port}").status == 201
    answer = register(replica, "tcp://127.0.0.1:65")
    assert (answer.status, answer.body["code"]) == (503, "capacity_exceeded")


@pytest.mark.parametrize("verb", ["register_peer", "deregister_peer"])
def test_without_a_port_peers_are_a_conflict(api, verb):
    answer = api.post(f"/replica_sync/{verb}", PEER)
    assert (answer.status, answer.body["error"]) == (
        409,
        "replica synchronization is disabled; --replica-sync-port enables it",
    )


def test_without_a_port_there_are_no_peers_but_a_status(api):
    assert api.get("/replica_sync/peers").body == []
    status = api.get("/replica_sync/status").body
    assert (status["enabled"], status["peers"]) == (False, [])


def test_the_status_shows_a_peer_without_messages(replica):
    register(replica, "tcp://127.0.0.1:9")
    (peer,) = replica.get("/replica_sync/status").body["peers"]
    assert (peer["connected"], peer["router_id"], peer["seconds_since_last_frame"]) == (
        False,
        None,
        None,
    )


def test_metrics_have_series_for_every_peer_and_none_without_a_port(replica, api):
    register(replica, "tcp://127.0.0.1:9")
    text = replica.get("/metrics").body
    label = '{peer="tcp://127.0.0.1:9"}'
    for family in ("connected", "divergence_reservations", "frames_in_total", "lost_total"):
        assert f"select_service_replica_{family}{label} 0.0" in text
    assert "select_service_replica_frames_out_total 0.0" in text
    assert "replica_" not in api.get("/metrics").body


def test_the_documented_status_is_one_and_every_field_and_reason_is_explained():
    (body,) = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    documented = msgspec.convert(json.loads(body), schema_replicas.ReplicaStatus, strict=True)
    assert json.loads(msgspec.json.encode(documented)) == json.loads(body)
    names = {part for name in re.findall(r"`([\w.]+)`", DOCUMENT) for part in name.split(".")}
    for shape in (
        schema_replicas.ReplicaStatus,
        schema_replicas.ReplicaPeer,
        schema_replicas.ReplicaRepairs,
    ):
        assert names >= set(shape.__struct_encode_fields__)
    assert names >= set(replica_state.IgnoreReason.__args__)


@pytest.mark.parametrize("verb", ["register_peer", "deregister_peer"])
def test_a_body_without_a_content_type_is_refused_before_anything_else(replica, verb):
    assert replica.call("POST", f"/replica_sync/{verb}").status == 415
