"""Tests of outcome reports next to the fast path: freeing is evidence, reports are left aside."""

import asyncio
from time import monotonic

from select_service.core.admission.load_shed_rule import LoadShedRule
from select_service.core.health.health_kinds import RankHealthState
from select_service.core.identity import Rank
from tests.builders import worker_body
from tests.fastpath.prompts import post, prompt_of
from tests.fastpath.requests import AIOHTTP, request
from tests.fastpath.two_services import Side

ON = ("--health-checks", "on", "--health-reporters", "nobody")


def state_of(side):
    return side.selector.health.monitor.record_of(Rank(1, 0)).state


def booked(side, *names):
    for name in names:
        body = {"reservation_id": name, "model_name": "m", **prompt_of(9, False)}
        assert side.send(post("/select_and_reserve", body)).startswith(b"HTTP/1.1 200")


def test_nothing_is_booked_on_a_rank_that_is_out():
    with asyncio.Runner() as runner:
        side = Side(runner, True, ON, seed=0)
        side.send(post("/workers", worker_body(1, data_parallel_size=2)))
        named = {"model_name": "m", "worker_id": 1, **prompt_of(9, False)}
        side.send(post("/reservations", {**named, "reservation_id": "old"}))
        fatal = {"outcome": "fatal", "reservation_id": "old"}
        assert side.send(post("/workers/1/outcome", fatal)).startswith(b"HTTP/1.1 204")
        side.selector.run_pending(monotonic())
        before = side.handler.answered
        refused = side.send(post("/reservations", {**named, "reservation_id": "a"}))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"is draining, out of rotation" in refused
        assert (side.handler.answered, len(side.selector.ledger.reservations)) == (before, 1)
        booked = side.send(post("/reservations", {**named, "reservation_id": "a", "dp_rank": 1}))
        assert booked.startswith(b"HTTP/1.1 201")
        assert side.handler.answered == before + 1
        side.close()


def test_a_degraded_model_slows_no_other_down():
    with asyncio.Runner() as runner:
        side = Side(runner, True, ON, seed=0)
        for worker_id, model in enumerate(("m", "n")):
            side.send(post("/workers", worker_body(worker_id, model_name=model)))
        side.selector.gate.set_load_shed_rule("n", LoadShedRule(level=1, batch_share=0.75))
        side.selector.run_pending(monotonic())
        for model, answered in (("m", 1), ("n", 1), ("m", 2)):
            body = {**prompt_of(9, False), "model_name": model}
            assert side.send(post("/select", body)).startswith(b"HTTP/1.1 200")
            assert side.handler.answered == answered
        side.close()


def test_a_freed_reservation_is_evidence_and_an_outcome_is_answered_aside():
    with asyncio.Runner() as runner:
        side = Side(runner, True, ON, seed=0)
        side.send(post("/workers", worker_body(1)))
        booked(side, "a", "b", "c", "d")
        for name in "ab":
            freed = side.send(request(f"DELETE /reservations/{name}", AIOHTTP))
            assert freed.startswith(b"HTTP/1.1 200")
        assert side.handler.answered >= 6
        before = side.handler.answered
        for name in "ab":
            given = {"outcome": "failure", "reservation_id": name}
            assert side.send(post("/workers/1/outcome", given)).startswith(b"HTTP/1.1 204")
        assert state_of(side) is RankHealthState.HEALTHY
        freed = side.send(request("DELETE /reservations/c?outcome=failure", AIOHTTP))
        assert freed.endswith(b'{"status":"ok"}')
        assert (side.handler.answered, state_of(side)) == (before, RankHealthState.SUSPICIOUS)
        freed = side.send(request("DELETE /reservations/d", AIOHTTP))
        assert freed.endswith(b'{"status":"ok"}')
        assert side.handler.answered == before + 1
        side.close()
