"""Reports of outcomes beside the fast path: what it frees is evidence, what reports steps aside."""

import asyncio

from select_service.core.health.kinds import State
from select_service.core.identity import Rank
from tests.builders import worker_body
from tests.fast.requests import AIOHTTP, request
from tests.fast.test_equality import post, prompt_of
from tests.fast.two_services import Side

ON = ("--health-checks", "on", "--health-reporters", "nobody")


def state_of(side):
    return side.selector.fitness.monitor.record(Rank(1, 0)).state


def booked(side, *names):
    for name in names:
        body = {"reservation_id": name, "model_name": "m", **prompt_of(9, False)}
        assert side.say(post("/select_and_reserve", body)).startswith(b"HTTP/1.1 200")


def test_a_freed_reservation_is_evidence_and_an_outcome_is_answered_aside():
    with asyncio.Runner() as runner:
        side = Side(runner, True, ON, seed=0)
        side.say(post("/workers", worker_body(1)))
        booked(side, "a", "b", "c", "d")
        for name in "ab":
            freed = side.say(request(f"DELETE /reservations/{name}", AIOHTTP))
            assert freed.startswith(b"HTTP/1.1 200")
        assert side.answerer.answered >= 6
        before = side.answerer.answered
        for name in "ab":
            given = {"outcome": "failure", "reservation_id": name}
            assert side.say(post("/workers/1/outcome", given)).startswith(b"HTTP/1.1 204")
        assert state_of(side) is State.HEALTHY
        freed = side.say(request("DELETE /reservations/c?outcome=failure", AIOHTTP))
        assert freed.endswith(b'{"status":"ok"}')
        assert (side.answerer.answered, state_of(side)) == (before, State.SUSPICIOUS)
        freed = side.say(request("DELETE /reservations/d", AIOHTTP))
        assert freed.endswith(b'{"status":"ok"}')
        assert side.answerer.answered == before + 1
        side.close()
