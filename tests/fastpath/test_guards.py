"""Tests that compiled steps read and write only inside the given arrays and the request."""

import asyncio
import os
from time import monotonic

import pytest

from tests.builders import worker_body
from tests.fastpath import reading
from tests.fastpath.arena import guarded
from tests.fastpath.requests import AIOHTTP, BARE, HTTPX, HYPER, USUAL, request
from tests.fastpath.test_equality import post, prompt_of
from tests.fastpath.two_services import Side

ADMISSION = ("--active-decode-blocks-threshold", "0.9", "--queue-threshold", "8.0")
GUARDS = (0x00, 0x30, 0xFF)
"""Guard bytes; a digit among these would lengthen a number."""
AROUND = (b"\0" * 80, b"0" * 80, b'"' * 80, b", 1" * 30, b"\r\n" * 40, b"]}" * 40, b"\xff" * 80)
SIZES = {"total_kv_blocks": 1000, "max_num_batched_tokens": 8192}
NAMED = {"model_name": "llama", "tenant_id": "b"}


def lives() -> list[bytes]:
    """Return usual requests of all routes that succeed in this order."""
    selects = [
        post("/select", {**names, "selection_id": "s" * length, **prompt_of(length, tokens)}, head)
        for names in ({}, NAMED)
        for length, head in ((4, BARE), (9, HYPER), (31, HTTPX), (200, AIOHTTP))
        for tokens in (False, True)
    ]
    booked = {"reservation_id": "b", "worker_id": 2, "dp_rank": 5, **NAMED}
    return [
        *selects,
        post("/select_and_reserve", prompt_of(31, True)),
        post("/select_and_reserve", {"reservation_id": "a", **NAMED, **prompt_of(60, False)}),
        post("/reservations", {**booked, **prompt_of(9, False)}),
        *selects,
        *(
            request(f"POST /reservations/{name}/{verb}", AIOHTTP)
            for name in "ab"
            for verb in ("prefill_complete", "output_block", "renew")
        ),
        *(request(f"DELETE /reservations/{name}", AIOHTTP) for name in "ab"),
        *selects,
    ]


WORKERS = (
    worker_body(1, model_name="default", data_parallel_size=3, **SIZES),
    worker_body(2, data_parallel_size=4, data_parallel_start_rank=3, **NAMED, **SIZES),
)


def answers(flags: tuple[str, ...], around: bytes = b"") -> list[bytes | None]:
    """Return the answers of a service to these lives, each request between these bytes."""
    with asyncio.Runner() as runner:
        side = Side(runner, True, flags, seed=0)
        for worker in WORKERS:
            side.send(post("/workers", worker))
        assert side.handler is not None
        found = []
        for data in lives():
            found.append(side.handler.answer_request(around + data + around, len(around)))
            assert side.handler.end == len(around) + len(data)
            side.selector.run_pending(monotonic())
        side.close()
    return found


@pytest.mark.parametrize("flags", [(), ADMISSION], ids=["open", "admission"])
def test_no_answer_depends_on_bytes_beside_its_arrays_or_its_request(flags):
    expected = answers(flags)
    assert None not in expected
    for number, around in enumerate(AROUND):
        with guarded(GUARDS[number % len(GUARDS)]) as arena:
            assert answers(flags, around) == expected
        assert arena.are_guards_intact()


@pytest.mark.skipif(
    os.environ.get("NUMBA_BOUNDSCHECK", "0") in ("", "0"), reason="bounds are not checked"
)
def test_a_read_behind_the_end_does_not_go_unnoticed():
    """The other tests prove nothing if this check fails."""
    data = USUAL[0]
    with pytest.raises(IndexError):
        reading.state_of(data[:-3], 0, len(data))
