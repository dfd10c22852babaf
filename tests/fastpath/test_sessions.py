"""Tests of the turns of a session on the fast path: the same bytes as by the ordinary path."""

import json

from tests.builders import worker_body
from tests.fastpath.prompts import post
from tests.fastpath.requests import request
from tests.fastpath.two_services import TwoServices

PROMPT = list(range(64))


def register(two, workers=3, **fields):
    for worker_id in range(1, workers + 1):
        two.send(post("/workers", worker_body(worker_id, **fields)))


def turn(two, session, route="/select_and_reserve", **fields):
    body = {"model_name": "m", "session_id": session, "token_ids": PROMPT, **fields}
    return json.loads(two.send(post(route, body)).partition(b"\r\n\r\n")[2])


def test_turns_are_answered_on_the_fast_path():
    with TwoServices() as two:
        register(two)
        first = turn(two, "s", reservation_id="a")
        assert first["session"] == {"bound": None, "followed": False, "reason": "new"}
        two.send(request("DELETE /reservations/a"))
        before = two.answered
        again = turn(two, "s", reservation_id="b")
        assert again["session"]["followed"]
        # The session's rank counts as holding 0.8 of the last turn, in whole blocks.
        assert again["overlap"]["gpu"] >= 48
        seen = turn(two, "s", "/select")
        assert seen["session"]["bound"]["worker_id"] == first["worker_id"]
        assert two.answered == before + 2


def test_hard_turns_wait_for_room_on_their_own_rank():
    flags = ("--session-affinity-ttl-secs", "60", "--session-affinity-mode", "hard")
    with TwoServices(*flags, "--queue-threshold", "1.0", "--queue-timeout-secs", "0.001") as two:
        register(two, max_num_batched_tokens=32)
        turn(two, "other")
        first = turn(two, "s")
        before = two.answered
        # The session's rank now has more work than one batch, the third rank has none.
        assert turn(two, "s")["code"] == "queue_timeout"
        assert two.answered == before
        two.send(request(f"POST /reservations/{first['reservation_id']}/prefill_complete"))
        assert turn(two, "s")["worker_id"] == first["worker_id"]


def test_a_session_takes_no_rank_of_the_next_fleet_for_its_own():
    with TwoServices("--session-affinity-ttl-secs", "60", "--session-affinity-mode", "hard") as two:
        for worker_id in (1, 2):
            two.send(post("/workers", worker_body(worker_id)))
            if worker_id == 1:
                assert turn(two, "s", reservation_id="a")["worker_id"] == 1
                two.send(request("DELETE /reservations/a"))
                two.send(request("DELETE /workers/1"))
        found = turn(two, "s")
        assert found["worker_id"] == 2
        assert found["session"] == {
            "bound": {"worker_id": 1, "dp_rank": 0},
            "followed": False,
            "reason": "gone",
        }


def test_hard_turns_stay_on_their_rank_on_the_fast_path():
    with TwoServices("--session-affinity-ttl-secs", "60", "--session-affinity-mode", "hard") as two:
        register(two)
        first = turn(two, "s")
        before = two.answered
        for _ in range(5):
            assert turn(two, "s")["worker_id"] == first["worker_id"]
        assert two.answered == before + 5
        assert turn(two, "other")["worker_id"] != first["worker_id"]
