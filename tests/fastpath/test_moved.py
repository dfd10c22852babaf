"""Tests that the fast path leaves reservations to the ordinary path while moves are unreported."""

from collections.abc import Iterator
from time import monotonic

import pytest

from select_service.core.health.migration.move_log import RETENTION_S
from tests.builders import worker_body
from tests.fastpath.prompts import post
from tests.fastpath.requests import HTTPX, request
from tests.fastpath.two_services import TwoServices

BODY = {"model_name": "m", "reservation_id": "a", "token_ids": list(range(12)), "worker_id": 1}


@pytest.fixture
def two() -> Iterator[TwoServices]:
    with TwoServices("--health-checks", "on") as two:
        for worker_id in (1, 2):
            assert b"201" in two.send(post("/workers", worker_body(worker_id)))
        yield two


def selectors(two: TwoServices) -> list:
    return [two.fast.selector, two.ordinary.selector]


def drain(two: TwoServices) -> None:
    assert b"202" in two.send(post("/workers/1/drain", {}))
    for selector in selectors(two):
        selector.run_pending(monotonic())
        while selector.health.mover.is_busy:
            selector.run_pending(monotonic())


@pytest.mark.parametrize("verb", ["prefill_complete", "output_block", "renew"])
def test_calls_of_a_moved_reservation_return_the_new_place(two: TwoServices, verb: str) -> None:
    two.send(post("/reservations", BODY))
    call = request(f"POST /reservations/a/{verb}", HTTPX, None, False)
    before = two.answered
    assert b"migrated_to" not in two.send(call)
    assert two.answered == before + 1
    drain(two)
    assert b"migrated_to" in two.send(call)
    assert two.answered == before + 1
    assert b"migrated_to" in two.send(request("DELETE /reservations/a", HTTPX, None, False))


def test_the_fast_path_resumes_after_the_last_move_is_reported(two: TwoServices) -> None:
    two.send(post("/reservations", BODY))
    drain(two)
    for selector in selectors(two):
        selector.health.mover.move_log.drop_expired(monotonic() + RETENTION_S + 1.0)
    two.send(request("POST /reservations/a/renew", HTTPX, None, False))
    before = two.answered
    two.send(request("POST /reservations/a/renew", HTTPX, None, False))
    assert two.answered == before + 1
