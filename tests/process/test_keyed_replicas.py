"""Tests of selector processes with CURVE keys, and of processes that declare to have none."""

import pytest

from tests.builders.polling import eventually
from tests.builders.running import run_to_end
from tests.process.replica_processes import Replica, mesh, until_equal

pytestmark = pytest.mark.process

OPEN = ("--host", "0.0.0.0", "--insecure")


@pytest.fixture
def pair(tmp_path):
    """Yield two processes with keys created by the command."""
    file, replicas = tmp_path / "replicas.toml", []
    for name in ("a", "b"):
        secret = tmp_path / f"{name}.key"
        flags = ("--replica-key-file", str(secret), "--replica-keys-file", str(file))
        replica = Replica(*flags)
        where = ("--endpoint", replica.endpoint, "--url", f"http://127.0.0.1:{replica.port}")
        made = ("keys", "new-replica", name, "--secret-file", str(secret), "--file", str(file))
        status, public, said = run_to_end(*made, *where)
        assert (status, len(public.strip())) == (0, 40), said
        assert secret.stat().st_mode & 0o077 == 0
        replicas.append(replica)
    with replicas[0] as a, replicas[1] as b:
        yield a, b


def test_replicas_with_keys_share_load_and_repair_lost_events(pair):
    a, b = pair
    a.add_workers()
    b.add_workers()
    a.reserve("before")
    mesh(a, b)
    until_equal(a, b, requests=1)
    eventually(lambda: b.peer(a)["repairs"]["added"] == 1)
    assert b.reserve("after") == 201
    until_equal(a, b, requests=2)
    assert a.free("after") == 200
    until_equal(a, b, requests=1)
    status = a.get("/replica_sync/status")[1]
    assert (status["secured"], status["peers"][0]["replica"]) == (True, "b")
    assert "replica_sync_insecure" not in a.get("/ready")[1]


def test_a_replica_without_a_key_is_refused_and_gets_no_events(pair):
    a, _ = pair
    a.add_workers()
    with Replica() as plain:
        plain.add_workers()
        plain.add_peers(a)
        eventually(lambda: a.get("/replica_sync/status")[1]["refused"] > 0)
        a.reserve("x")
        assert plain.requests() == 0
        assert plain.peer(a)["frames_in"] == 0
        body = {"endpoint": plain.endpoint}
        assert a.post("/replica_sync/register_peer", body)[0] == 400
        assert a.post("/replica_sync/register_peer", {**body, "replica": "c"})[0] == 400


def test_a_fleet_without_keys_needs_an_explicit_flag():
    status, _, said = run_to_end(*OPEN, "--replica-sync-port", "19099")
    assert status == 2
    assert "--replica-sync-insecure" in said
    flags = (*OPEN, "--replica-sync-insecure", "--connect-to-loopback")
    with Replica(*flags) as a, Replica(*flags) as b:
        mesh(a, b)
        assert a.reserve("x") == 201
        until_equal(a, b, requests=1)
        assert a.get("/ready")[1]["replica_sync_insecure"] is True
        assert a.get("/replica_sync/status")[1]["secured"] is False
