"""Tests of a whole service that checks engines over real sockets: ejection and return of ranks."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

import pytest

from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.toy_engine import Fault, ToyEngine, serving, wrong_token

pytestmark = pytest.mark.process

ON = (
    "--health-checks=on",
    "--health-interval-secs=0.2",
    "--health-confirm-secs=0.1",
    "--breaker-recovery-secs=0.3",
    "--health-slow-start-secs=0.1",
    f"--health-timeout-secs={PATIENCE_S}",
)


@contextlib.contextmanager
def engine_of(ranks: int) -> Iterator[tuple[ToyEngine, str]]:
    """Yield an engine on a separate thread, and its endpoint."""
    engine, loop, told = ToyEngine(ranks=ranks), asyncio.new_event_loop(), []
    ending, begun = asyncio.Event(), threading.Event()

    async def serve() -> None:
        async with serving(engine) as endpoint:
            told.append(endpoint)
            begun.set()
            await ending.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert begun.wait(PATIENCE_S)
    try:
        yield engine, told[0]
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(PATIENCE_S)
        loop.close()


class Fleet:
    """One worker of four ranks, as shown by the service."""

    def __init__(self, service: InThread, endpoint: str) -> None:
        self.service = service
        body = worker_body(1, data_parallel_size=4, endpoint=endpoint)
        assert service.call("POST", "/workers", body).status == 201

    def partition(self):
        return self.service.call("GET", "/health/fleet").body["partitions"][0]

    def rank(self, dp_rank):
        return self.partition()["ranks"][dp_rank]

    def states(self):
        return [rank["state"] for rank in self.partition()["ranks"]]

    def agree(self) -> None:
        """Wait until the reference answer is agreed on and every rank has passed a check."""
        eventually(
            lambda: (
                self.partition()["reference_source"] == "agreement"
                and all(rank["last_result"] == "pass" for rank in self.partition()["ranks"])
            )
        )

    def chosen(self, n: int) -> set[int]:
        body = {"model_name": "m", "token_ids": list(range(8))}
        answers = [self.service.call("POST", "/select", body) for _ in range(n)]
        return {answer.body["dp_rank"] for answer in answers}


def test_a_rank_that_answers_wrongly_gets_no_requests_until_it_answers_right():
    with engine_of(4) as (engine, endpoint), InThread(*ON) as service:
        fleet = Fleet(service, endpoint)
        fleet.agree()
        assert "last_error" not in fleet.rank(2)
        engine.faults[2] = Fault(spoil=wrong_token)
        eventually(lambda: fleet.rank(2)["state"] == "unhealthy")
        assert fleet.rank(2)["cause"] == "token_mismatch"
        assert " for " in fleet.rank(2)["last_error"]
        assert 2 not in fleet.chosen(40)
        pinned = {"worker_id": 1, "dp_rank": 2}
        body = {"model_name": "m", "token_ids": [1], "pinned_worker": pinned}
        answer = service.call("POST", "/select", body)
        assert (answer.status, answer.body["code"]) == (503, "no_eligible_rank")
        assert answer.body["details"]["state"] == "unhealthy"
        del engine.faults[2]
        eventually(lambda: fleet.states() == ["healthy"] * 4)
        assert all("cache_salt" in asked for _, _, asked in engine.requests)


def test_rejected_checks_are_logged_once_and_found_by_the_doctor(caplog):
    caplog.set_level("INFO", "select_service.health")
    refusal = json.dumps({"error": {"message": "The model `m` does not exist.", "code": 404}})

    def lines(text):
        return [r for r in caplog.records if r.getMessage().startswith(text)]

    with engine_of(4) as (engine, endpoint), InThread(*ON) as service:
        engine.faults = {rank: Fault(status=404, text=refusal) for rank in range(4)}
        fleet = Fleet(service, endpoint)
        eventually(lambda: all("misconfigured" in rank for rank in fleet.partition()["ranks"]))
        assert {rank["misconfigured"] for rank in fleet.partition()["ranks"]} == {
            "status 404: The model `m` does not exist."
        }
        assert fleet.states() == ["healthy"] * 4
        (line,) = lines("health check rejected, health unknown")
        assert (line.levelname, line.fields["worker_id"]) == ("WARNING", 1)
        assert line.fields["endpoint"] == endpoint
        assert line.fields["why"] == "status 404: The model `m` does not exist."
        findings = service.call("GET", "/doctor").body["findings"]
        (found,) = [each for each in findings if each["code"] == "check_refused"]
        assert "The model `m` does not exist." in found["text"]
        engine.faults = {}
        eventually(lambda: lines("health check accepted again"))
        assert len(lines("health check rejected, health unknown")) == 1
        findings = service.call("GET", "/doctor").body["findings"]
        assert "check_refused" not in [each["code"] for each in findings]


def test_reports_count_from_loopback_and_not_from_unlisted_networks():
    for flag, state in (("127.0.0.0/8", "unhealthy"), ("10.0.0.0/8", "healthy")):
        flags = ("--health-checks=on", f"--health-reporters={flag}")
        with InThread(*flags) as service:
            assert service.call("POST", "/workers", worker_body(1)).status == 201
            reported = service.call("POST", "/workers/1/outcome", {"outcome": "fatal"})
            assert reported.status == 204
            shown = service.call("GET", "/workers/1").body["health"]
            assert shown["state"] == state


def test_agreed_answers_survive_a_restart(tmp_path):
    path, canaries = tmp_path / "references.json", tmp_path / "canaries.yaml"
    canaries.write_text("m: [{prompt: [11, 12, 13], max_tokens: 4}]")
    files = ("--health-state", str(path), "--canary-config", str(canaries))
    with engine_of(4) as (engine, endpoint):
        with InThread(*ON, *files) as service:
            Fleet(service, endpoint).agree()
        assert json.loads(path.read_bytes())["references"]
        engine.faults = {rank: Fault(spoil=wrong_token) for rank in (1, 2)}
        with InThread(*ON, *files) as service:
            fleet = Fleet(service, endpoint)
            eventually(
                lambda: [s in ("unhealthy", "dead") for s in fleet.states()].count(True) == 2
            )
            assert [fleet.rank(rank)["cause"] for rank in (1, 2)] == ["token_mismatch"] * 2
