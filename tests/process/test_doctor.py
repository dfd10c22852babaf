"""Tests of the doctor over real sockets: no finding for a healthy engine, one for each fault."""

import json

import pytest

from select_service.adapters.doctor import examination, prompt_probe, replay_check, worker_examiner
from tests.builders.in_thread import InThread
from tests.builders.polling import eventually
from tests.builders.running import run_to_end
from tests.process.sick_engine import MODEL, SickEngine, a_mute_port, closed_port

PROMPT = list(range(100, 116))


@pytest.fixture(scope="module", autouse=True)
def brief_looks():
    """Shorten the examination of the machine, which these tests do not check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examination, "MACHINE_S", 0.05)
        yield


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the waits for answers that never arrive."""
    for module, name in (
        (worker_examiner, "HTTP_S"),
        (prompt_probe, "EVENTS_S"),
        (replay_check, "TIMEOUT_S"),
    ):
        assert getattr(module, name) >= 3.0
        monkeypatch.setattr(module, name, 0.5)


@pytest.fixture(scope="module")
def service():
    with InThread(environment={}) as service:
        yield service


@pytest.fixture
def fleet(service):
    """Yield the service without workers; delete all workers afterwards."""
    yield service
    for worker in service.call("GET", "/workers").body:
        service.call("DELETE", f"/workers/{worker['worker_id']}")


def register_engine(service, engine, *, connects=True, **fields):
    assert service.call("POST", "/workers", engine.record(**fields)).status == 201
    if connects:
        eventually(lambda: status_of(service)["connected"])


def status_of(service):
    return service.call("GET", "/workers/1").body["kv_events"]["0"]


def with_events(service, engine, **fields):
    """Register the engine and wait for one event."""
    register_engine(service, engine, **fields)
    engine.zmq.await_subscriber()
    engine.store(PROMPT)
    eventually(lambda: status_of(service)["batches"] == 1)


def book(service, name="r"):
    body = {"model_name": MODEL, "token_ids": PROMPT, "reservation_id": name}
    assert service.call("POST", "/select_and_reserve", body).status == 200


def finding_codes(service, query=""):
    """Return the codes of findings about workers."""
    answer = service.call("GET", f"/doctor{query}")
    assert answer.status == 200, answer.body
    return [each["code"] for each in answer.body["findings"] if "worker_id" in each]


def test_a_healthy_engine_has_no_finding_with_and_without_a_prompt(fleet):
    with SickEngine() as engine:
        with_events(fleet, engine)
        assert finding_codes(fleet) == []
        assert engine.prompts == []
        assert finding_codes(fleet, "?probe=true&worker_id=1") == []
        assert [len(prompt) for prompt in engine.prompts] == [9]


def test_an_engine_that_is_not_there(fleet):
    with SickEngine() as engine:
        with_events(fleet, engine)
        engine.close_http()
        assert finding_codes(fleet) == ["engine_unreachable"]


def test_an_engine_that_accepts_and_does_not_answer(fleet, impatient):
    with SickEngine() as engine, a_mute_port() as port:
        with_events(fleet, engine, endpoint=f"http://127.0.0.1:{port}")
        assert finding_codes(fleet) == ["engine_no_answer"]


def test_an_event_endpoint_without_a_publisher(fleet):
    with SickEngine() as engine:
        register_engine(fleet, engine, connects=False, kv_events_endpoint=closed_port())
        assert finding_codes(fleet) == ["events_unreachable"]


def test_an_event_endpoint_at_another_port(fleet):
    with SickEngine() as engine:
        endpoint = engine.url.replace("http", "tcp")
        register_engine(fleet, engine, connects=False, kv_events_endpoint=endpoint)
        assert finding_codes(fleet) == ["events_not_connected"]


def test_a_wrong_block_size_by_the_facts_of_the_engine(fleet):
    with SickEngine() as engine:
        register_engine(fleet, engine, block_size=8)
        assert finding_codes(fleet) == ["block_size_differs"]


def test_a_wrong_block_size_by_its_events(fleet):
    with SickEngine() as engine:
        with_events(fleet, engine, endpoint="nats://subject", block_size=8)
        (finding,) = [
            each for each in fleet.call("GET", "/doctor").body["findings"] if "worker_id" in each
        ]
        assert (finding["code"], finding["dp_rank"]) == ("block_size_differs", 0)
        assert "its blocks have 4 tokens" in finding["text"]


def test_a_replay_that_is_dead_or_missing_is_seen_without_waiting(fleet, monkeypatch):
    monkeypatch.setattr(replay_check, "TIMEOUT_S", 3600.0)
    with SickEngine() as engine:
        with_events(fleet, engine, replay_endpoint=closed_port())
        assert finding_codes(fleet) == ["replay_unreachable"]


def test_a_replay_without_an_answer(fleet, impatient):
    with SickEngine() as engine, a_mute_port() as port:
        with_events(fleet, engine, replay_endpoint=f"tcp://127.0.0.1:{port}")
        assert finding_codes(fleet) == ["replay_silent"]


def test_no_replay_at_all_is_a_note(fleet):
    with SickEngine() as engine:
        with_events(fleet, engine, replay_endpoint=None)
        assert finding_codes(fleet) == ["replay_missing"]


def test_an_engine_that_is_silent_though_it_has_requests(fleet):
    with SickEngine(is_silent=True) as engine:
        register_engine(fleet, engine)
        assert finding_codes(fleet) == []
        book(fleet)
        assert finding_codes(fleet) == ["events_silent"]


def test_an_engine_that_is_silent_after_a_prompt(fleet, impatient):
    with SickEngine(is_silent=True) as engine:
        register_engine(fleet, engine)
        assert finding_codes(fleet, "?probe=true") == ["events_silent"]


def test_blocks_that_are_announced_as_others(fleet, impatient):
    with SickEngine(lora_name="another") as engine:
        with_events(fleet, engine)
        assert finding_codes(fleet) == []
        assert finding_codes(fleet, "?probe=true") == ["blocks_not_found"]


@pytest.mark.parametrize("clock_s", [100.0, -100.0])
def test_a_clock_that_is_off(fleet, clock_s):
    with SickEngine(clock_s=clock_s) as engine:
        with_events(fleet, engine)
        assert finding_codes(fleet) == ["clock_off"]


def test_a_clock_by_http_alone(fleet):
    with SickEngine(clock_s=-100.0) as engine:
        register_engine(fleet, engine, replay_endpoint=engine.zmq.replay_endpoint)
        assert finding_codes(fleet) == ["clock_off"]


def test_a_worker_that_drains_and_one_that_is_incomplete(fleet):
    with SickEngine() as engine:
        with_events(fleet, engine)
        assert fleet.call("POST", "/workers/1/drain").status == 202
        assert fleet.call("POST", "/workers", {"worker_id": 2, "model_name": "x"}).status == 201
        assert finding_codes(fleet) == ["worker_drains", "worker_incomplete"]
        assert finding_codes(fleet, "?worker_id=2") == ["worker_incomplete"]
        report = fleet.call("GET", "/doctor?limit=1").body
        assert (report["examined"], report["next"]) == ([1], 1)
        report = fleet.call("GET", "/doctor?limit=1&after=1").body
        assert (report["examined"], report["next"]) == ([2], None)
        assert "machine" not in report
        assert fleet.call("GET", "/doctor?worker_id=9").status == 404


def doctor(service, *arguments):
    return run_to_end("doctor", "--url", f"http://127.0.0.1:{service.port}", *arguments)


def test_the_command_prints_findings_and_sets_its_exit_status(fleet, impatient):
    with SickEngine() as engine:
        with_events(fleet, engine, replay_endpoint=closed_port())
        status, shown, _ = doctor(fleet)
        assert status == 1
        assert "WARNING worker 1 dp_rank 0: tcp://127.0.0.1:" in shown
        assert "[replay_unreachable]" in shown
        assert "Set replay_endpoint in the engine's --kv-events-config" in shown
        status, shown, _ = doctor(fleet, "--json", "--worker", "1")
        report = json.loads(shown)
        assert status == 1
        assert report["examined"] == [1]
        assert report["machine"]["descriptors"] > 10


def test_the_command_reports_why_no_worker_is_examined(fleet):
    status, shown, told = doctor(fleet, "--worker", "77")
    assert (status, shown) == (2, "")
    assert "worker 77 not found" in told
    status, _, told = doctor(fleet, "--url", closed_port().replace("tcp", "http"))
    assert status == 2
    assert "connection refused: start the service" in told
    status, _, told = doctor(fleet, "--api-key-file", "/no/such/file")
    assert status == 2
    assert "`/no/such/file` cannot be read" in told
