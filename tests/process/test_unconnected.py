"""Test that ranks with an unreachable KV event endpoint show up everywhere, without any traffic."""

import pytest

from indexer.sockets import listener_status
from tests.builders.in_thread import InThread
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually
from tests.process.fake_engine import FakeEngine

pytestmark = pytest.mark.process

N_RANKS = 3


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(listener_status, "UNCONNECTED_S", 0.2)
    with InThread(environment={}) as running:
        yield running


def test_ranks_without_a_publisher_show_up_everywhere(service, caplog):
    ports = [free_port() for _ in range(N_RANKS)]
    worker = {
        "worker_id": 7,
        "model_name": "m",
        "endpoint": "http://127.0.0.1:9",
        "block_size": 16,
        "data_parallel_size": N_RANKS,
        "kv_events_endpoints": {
            str(rank): f"tcp://127.0.0.1:{port}" for rank, port in enumerate(ports)
        },
    }
    assert service.call("POST", "/workers", worker).status == 201

    def lines(text):
        found = [r for r in caplog.records if r.getMessage() == text]
        return sorted((r.fields["worker_id"], r.fields["dp_rank"]) for r in found)

    caplog.set_level("INFO", "select_service")
    every = [(7, rank) for rank in range(N_RANKS)]
    eventually(lambda: lines("KV event endpoint unconnected") == every)
    events = service.call("GET", "/workers/7").body["kv_events"]
    assert [status["state"] for status in events.values()] == N_RANKS * ["unconnected"]
    reasons = [status["unconnected"] for status in events.values()]
    assert [each["reason"] for each in reasons] == N_RANKS * ["connection refused"]
    assert all(each["seconds"] >= 0.2 for each in reasons)
    (compact,) = service.call("GET", "/workers?view=compact").body["partitions"]
    assert compact["event_states"] == N_RANKS * ["unconnected"]
    metrics = service.call("GET", "/metrics").body.decode()
    assert f'select_service_kv_event_listeners{{state="unconnected"}} {N_RANKS}.0' in metrics
    findings = service.call("GET", "/doctor").body["findings"]
    unreachable = [each for each in findings if each["code"] == "events_unreachable"]
    assert len(unreachable) == N_RANKS
    assert all("; unconnected for " in each["text"] for each in unreachable)
    with FakeEngine(port=ports[1], replay=False):
        eventually(lambda: lines("KV event endpoint connected") == [(7, 1)])
        events = service.call("GET", "/workers/7").body["kv_events"]
        states = [status["state"] for status in events.values()]
        assert states == ["unconnected", "no_events_yet", "unconnected"]
