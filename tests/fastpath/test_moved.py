"""While there are moves to tell of, the fast path leaves the life of reservations to the other."""

from collections.abc import Iterator
from time import monotonic

import pytest

from select_service.core.health.migration.move_log import RETENTION_S
from tests.builders import worker_body
from tests.fastpath.requests import HTTPX, request
from tests.fastpath.said import post
from tests.fastpath.two_services import TwoServices

BODY = {"model_name": "m", "reservation_id": "a", "token_ids": list(range(12)), "worker_id": 1}


@pytest.fixture
def two() -> Iterator[TwoServices]:
    with TwoServices("--health-checks", "on") as two:
        for worker_id in (1, 2):
            assert b"201" in two.say(post("/workers", worker_body(worker_id)))
        yield two


def selectors(two: TwoServices) -> list:
    return [two.fast.selector, two.ordinary.selector]


def drain(two: TwoServices) -> None:
    assert b"202" in two.say(post("/workers/1/drain", {}))
    for selector in selectors(two):
        selector.run_pending(monotonic())
        while selector.health.mover.is_busy:
            selector.run_pending(monotonic())


@pytest.mark.parametrize("verb", ["prefill_complete", "output_block", "renew"])
def test_calls_of_a_moved_reservation_say_where_it_is(two: TwoServices, verb: str) -> None:
    two.say(post("/reservations", BODY))
    call = request(f"POST /reservations/a/{verb}", HTTPX, None, False)
    before = two.answered
    assert b"migrated_to" not in two.say(call)
    assert two.answered == before + 1
    drain(two)
    assert b"migrated_to" in two.say(call)
    assert two.answered == before + 1
    assert b"migrated_to" in two.say(request("DELETE /reservations/a", HTTPX, None, False))


def test_the_fast_path_is_back_when_no_move_is_left_to_tell_of(two: TwoServices) -> None:
    two.say(post("/reservations", BODY))
    drain(two)
    for selector in selectors(two):
        selector.health.mover.move_log.drop_expired(monotonic() + RETENTION_S + 1.0)
    two.say(request("POST /reservations/a/renew", HTTPX, None, False))
    before = two.answered
    two.say(request("POST /reservations/a/renew", HTTPX, None, False))
    assert two.answered == before + 1
