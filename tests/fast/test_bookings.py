"""Reservations that compiled code changes itself, and those that it leaves to the verbs."""

import json
from typing import Any

import pytest

from select_service import log
from select_service.core.load import ledger_layout
from tests.builders import worker_body
from tests.fast.requests import AIOHTTP, request
from tests.fast.test_equality import post, prompt_of
from tests.fast.two_services import REPLICA_FLAGS, TwoServices

UNTRACKED = ("PREFILL_TOKENS", "ACTIVE_BLOCKS", "OUTPUT_BLOCKS")
OWN_IDENTITIES = ("DYN_ROUTER_ASSUME_KV_REUSE=false",)


class Verbs:
    """In place of those of a service.  `called`: how often one was wanted; all of them refuse."""

    def __init__(self) -> None:
        self.called = 0

    def call(self, *_: Any) -> bool:
        self.called += 1
        return False

    def may_book(self, *_: Any) -> bool:
        return True

    def book_placed(self, *_: Any) -> None:
        self.called += 1


def services(*flags: str) -> TwoServices:
    """flags: or variables of the environment with their values"""
    two = TwoServices(*flags)
    sizes = {"total_kv_blocks": 4000, "max_num_batched_tokens": 8192}
    for worker in (1, 2):
        body = worker_body(worker, model_name="default", data_parallel_size=2, **sizes)
        two.say(post("/workers", body))
    return two


def select_and_reserve(name: str | None, length: int = 60) -> bytes:
    named = {} if name is None else {"reservation_id": name}
    return post("/select_and_reserve", {**named, **prompt_of(length, False)})


def life_of(name: str) -> list[bytes]:
    verbs = ("prefill_complete", "output_block", "prefill_complete", "output_block", "renew")
    return [
        select_and_reserve(name),
        *(request(f"POST /reservations/{name}/{verb}", AIOHTTP) for verb in verbs),
        request(f"DELETE /reservations/{name}", AIOHTTP),
    ]


def without_verbs(two: TwoServices) -> Verbs:
    assert two.fast.answerer is not None
    verbs: Any = Verbs()
    two.fast.answerer._bookings = verbs
    return verbs


def loads_are_the_same(two: TwoServices) -> None:
    fast, ordinary = (list(side.selector.loads()) for side in (two.fast, two.ordinary))
    assert fast == ordinary


@pytest.mark.parametrize("untracked", [None, *UNTRACKED])
def test_after_the_first_booking_no_verb_of_the_core_is_called(untracked: str | None) -> None:
    flags = (f"DYN_ROUTER_TRACK_{untracked}=false",) if untracked else ()
    with services(*flags) as two:
        two.say(select_and_reserve("first"))
        verbs = without_verbs(two)
        names = []
        for data in [*life_of("a"), select_and_reserve(None), *life_of("b")[:4]]:
            answer = two.say(data)
            assert answer.startswith(b"HTTP/1.1 20")
            names.append(json.loads(answer.split(b"\r\n\r\n")[1]).get("reservation_id"))
            loads_are_the_same(two)
        assert verbs.called == 0
        assert two.answered == 1 + len(names)
        made_up = next(name for name in names if name not in (None, "a", "b"))
        two.say(request(f"DELETE /reservations/{made_up}", AIOHTTP))


@pytest.mark.parametrize(
    "flags",
    [REPLICA_FLAGS, ("--queue-threshold", "8.0"), OWN_IDENTITIES],
    ids=["replicas", "queue", "own identities"],
)
def test_where_others_follow_the_verbs_are_called(
    flags: tuple[str, ...],
) -> None:
    with services(*flags) as two:
        for data in life_of("a"):
            assert two.say(data).startswith(b"HTTP/1.1 20")
            loads_are_the_same(two)
        verbs = without_verbs(two)
        two.say(select_and_reserve("b"))
        assert verbs.called == 1


def test_tables_that_are_full_grow_by_a_verb_and_give_back_what_they_left() -> None:
    with services() as two:
        for number in range(40):
            tokens = [1000 * number + k for k in range(1200)]
            body = {"reservation_id": str(number), "token_ids": tokens}
            assert two.say(post("/select_and_reserve", body)).startswith(b"HTTP/1.1 200")
        loads_are_the_same(two)
        for number in range(40):
            two.say(request(f"DELETE /reservations/{number}", AIOHTTP))
        two.say(select_and_reserve("last"))
        numbers = two.fast.selector.held.memory.numbers
        assert numbers[ledger_layout.CALL_LOAD] == 0


def test_what_is_unknown_or_in_use_is_refused_by_the_ordinary_path() -> None:
    with services() as two:
        two.say(select_and_reserve("a"))
        answered = two.answered
        assert two.say(select_and_reserve("a")).startswith(b"HTTP/1.1 409")
        for data in life_of("b")[1:]:
            assert two.say(data).startswith(b"HTTP/1.1 404")
        assert two.answered == answered


def test_what_is_logged_is_not_for_here() -> None:
    select = post("/select", prompt_of(31, False))
    with services() as two:
        two.say(select)
        log.set_level("debug")
        two.say(select)
        assert two.answered == 1
        log.set_level("info")
        two.say(select)
        assert two.answered == 2
