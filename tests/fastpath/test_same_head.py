"""Tests of repeated heads: a request after another is read as if it were the first."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import worker_body
from tests.fastpath.mutations import mutated
from tests.fastpath.prompts import post, prompt_of
from tests.fastpath.requests import AIOHTTP, BARE, HTTPX, HYPER
from tests.fastpath.two_services import Side

HEADERS = (HTTPX, AIOHTTP, HYPER, BARE)
requests_ = st.builds(
    lambda length, headers, path: post(path, prompt_of(length, True), headers),
    st.sampled_from((1, 3, 30, 60)),
    st.sampled_from(HEADERS),
    st.sampled_from(("/select", "/select_and_reserve")),
)


@pytest.fixture(scope="module")
def side() -> Iterator[Side]:
    with asyncio.Runner() as runner:
        made = Side(runner, True, (), seed=0)
        made.send(post("/workers", worker_body(1, model_name="default")))
        yield made
        made.close()


def read(side: Side, data: bytes) -> tuple[bool, int, list[int]]:
    """Return whether a request is answered, the end, and the entries read from the head."""
    handler = side.handler
    assert handler is not None
    answer = handler.answer_request(data, 0)
    return answer is not None, handler.end, handler.header[:7].tolist()


def forget(side: Side) -> None:
    """Read another head, so that no head repeats."""
    assert side.handler is not None
    side.handler.answer_request(post("/select", prompt_of(2, True), (("host", "other"),)), 0)


@given(st.lists(requests_, min_size=1, max_size=4), requests_, st.randoms(use_true_random=False))
def test_a_head_after_others_is_read_alike(side, before, data, rng) -> None:
    for each in (data, mutated(data, rng), data[: rng.randrange(len(data))]):
        if not each:
            continue
        forget(side)
        alone = read(side, each)
        for earlier in before:
            read(side, earlier)
        assert read(side, each) == alone


@pytest.mark.parametrize("length", [b"0", b"01", b"-1", b"1x", b"+1", b" 1"])
def test_a_length_that_is_none_is_not_read_by_the_head_before(side, length: bytes) -> None:
    data = post("/select", prompt_of(3, True), AIOHTTP)
    head, _, body = data.partition(b"\r\n\r\n")
    digits = str(len(body)).encode()
    assert read(side, data)[0]
    wrong = head.lower().replace(b"content-length: " + digits, b"content-length: " + length)
    assert wrong != head.lower()
    assert not read(side, wrong + b"\r\n\r\n" + body)[0]
