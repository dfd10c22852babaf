"""Tests that workers, thresholds and shedding survive a restart, and come from a peer."""

import json

import pytest

from tests.builders import worker_body
from tests.builders.polling import eventually
from tests.builders.running import Running, complaint, run_to_end

pytestmark = pytest.mark.process


def list_schedulable(service):
    workers = service.call("GET", "/workers").body
    return {w["worker_id"] for w in workers if w["lifecycle"] == "schedulable"}


def change(service):
    for worker_id in (1, 2, 3):
        service.call("POST", "/workers", worker_body(worker_id))
    service.call("DELETE", "/workers/3")
    service.call("PATCH", "/workers/2", {"taints": ["x"]})
    service.call("POST", "/busy_threshold", {"model": "m", "active_prefill_tokens_threshold": 99})
    service.call("POST", "/admission/shed", {"tier": "best_effort"})


def is_as_before(service):
    assert list_schedulable(service) == {1, 2}
    assert service.call("GET", "/workers/2").body["taints"] == ["x"]
    (threshold,) = service.call("GET", "/busy_threshold").body["thresholds"]
    assert threshold["active_prefill_tokens_threshold"] == 99
    assert service.call("GET", "/admission").body["shed_tier"] == "best_effort"


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_changes_by_operators_survive_a_restart(tmp_path, how):
    path = tmp_path / "state"
    with Running("--state-path", str(path)) as service:
        change(service)
        if how == "stopped":
            assert service.stop() == 0
        else:
            eventually(lambda: path.exists() and b"best_effort" in path.read_bytes())
            service.process.kill()
            service.process.wait()
    with Running("--state-path", str(path)) as service:
        is_as_before(service)
        service.line("workers and admission settings restored")


def drain_of(service, worker_id=1):
    return service.call("GET", f"/workers/{worker_id}").body.get("drain")


@pytest.mark.parametrize(("how", "health"), [("stopped", "on"), ("killed", "off")])
def test_a_worker_goes_on_draining_after_a_restart(tmp_path, how, health):
    path = tmp_path / "state"
    flags = ("--state-path", str(path), "--health-checks", health, "--drain-secs", "0")
    asked = {"model_name": "m", "token_ids": list(range(16))}
    with Running(*flags) as service:
        service.call("POST", "/workers", worker_body(1))
        booked = service.call("POST", "/select_and_reserve", asked | {"reservation_id": "live"})
        assert booked.body["worker_id"] == 1
        service.call("POST", "/workers", worker_body(2))
        stays = {"migrate": False}
        for by in ("operator", "planner"):
            asks = stays | {"by": by}
            assert service.call("POST", "/workers/1/drain", asks).status == 202
        askers = ["operator", "planner"]
        drain = {"state": "draining", "asked_by": askers, "reservations": 1}
        assert drain_of(service) == drain
        assert service.call("POST", "/reservations/live/output_block").status == 200
        if how == "stopped":
            assert service.stop() == 0
        else:
            eventually(lambda: path.exists() and b'"planner"' in path.read_bytes())
            service.process.kill()
            service.process.wait()
    with Running(*flags) as service:
        drained = {"state": "drained", "asked_by": askers, "reservations": 0}
        assert drain_of(service) == drained  # the reservation ended with the process
        assert drain_of(service, 2) is None
        chosen = {service.call("POST", "/select", asked).body["worker_id"] for _ in range(8)}
        assert chosen == {2}
        assert service.call("POST", "/workers/1/undrain", {"by": "planner"}).status == 202
        assert drain_of(service) == drained | {"asked_by": ["operator"]}
        assert service.call("POST", "/workers/1/undrain").status == 202
        assert drain_of(service) is None
        service.call("DELETE", "/workers/2")
        eventually(lambda: service.call("POST", "/select", asked).status == 200)
        assert service.stop() == 0
    with Running(*flags) as service:
        assert drain_of(service) is None


def test_a_replica_without_a_file_restores_from_its_peers(tmp_path):
    with Running("--state-path", str(tmp_path / "a")) as peer:
        change(peer)
        peers = f"http://127.0.0.1:1,http://127.0.0.1:{peer.port}"
        flags = ("--state-path", str(tmp_path / "b"), "--indexer-peers", peers)
        with Running(*flags) as service:
            is_as_before(service)
        peer.call("DELETE", "/workers/1")
        with Running(*flags) as service:  # now the service has its own file
            is_as_before(service)


def test_workers_of_a_file_changed_during_the_downtime_are_followed(tmp_path):
    path, flags = tmp_path / "workers", ["--state-path", str(tmp_path / "state")]
    flags += ["--workers-file", str(path)]
    path.write_text(json.dumps([worker_body(n) for n in (1, 2)]))
    with Running(*flags) as service:
        eventually(lambda: list_schedulable(service) == {1, 2})
    path.write_text(json.dumps([worker_body(n) for n in (2, 3)]))
    with Running(*flags) as service:
        eventually(lambda: list_schedulable(service) == {2, 3})


def test_a_file_that_is_damaged_is_moved_aside(tmp_path):
    path = tmp_path / "state"
    path.write_text('{"format":"select-service state","workers": 3}')
    with Running("--state-path", str(path)) as service:
        service.line("state file unusable")
        assert service.call("GET", "/workers").body == []
    assert (tmp_path / "state.refused").exists()


def test_a_foreign_file_stops_the_start_and_stays(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("shopping list")
    for flags in (
        ["--state-path"],
        ["--snapshot-path"],
        ["--health-checks", "on", "--health-state"],
    ):
        status, _, errors = run_to_end(*flags, str(path))
        assert status == 2
        assert complaint(errors).startswith(f"{flags[-1]}: `{path}` is not a ")
        assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
    assert path.read_text() == "shopping list"


def test_a_place_where_nothing_can_be_kept_stops_the_start(tmp_path):
    status, _, errors = run_to_end("--state-path", str(tmp_path / "none" / "state"))
    assert status == 2
    assert complaint(errors).startswith("--state-path: directory `")
