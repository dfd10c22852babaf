"""Tests that the ordinary protocol alone and the fast path before it give the same answers."""

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.builders.conversation import Conversation
from tests.builders.hypothesis_profiles import explores
from tests.fastpath.mutations import mutated
from tests.fastpath.slow_wire import SlowWire

GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
CHUNKED = b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
USUAL = [
    GET % 2,
    GET % 40,
    POST % (4, 0, b""),
    POST % (6, 5, b"12345"),
    POST % (8, 30, b"GET /2 HTTP/1.1\r\nhost: x\r\n\r\n\r\n"),
    POST % (10, 9000, b"x" * 9000),
]
UNUSUAL = [
    GET % 3,
    POST % (5, 4, b"body"),
    POST % (12, 7, b"1.5,1.5"),
    CHUNKED + b"3;e=1\r\nabc\r\n2\r\nde\r\n0\r\nt: v\r\n\r\n",
    b"POST /14 HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nab",
    b"GET /16 HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n",
    b"GET /18 HTTP/1.1\r\nHost: x\r\nx-more: yes\r\n\r\n",
    b"\r\n",
]
LAST = [
    b"",
    b"GET /20 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    b"GET /22 HTTP/1.0\r\n\r\n",
    b"GARBAGE\r\n\r\n",
    b"GET /24 HTTP/1.1\r\n\r\n",
    CHUNKED + b"xyz\r\n",
    (GET % 26)[:-3],
    (POST % (28, 9, b"123456789"))[:-4],
    b"GET /30 HTTP/1.1\r\na: " + b"b" * 70_000 + b"\r\n\r\n",
]


class Step(NamedTuple):
    """Step of a conversation.

    said: bytes from the client
    then: event after the bytes: nothing, turns of the loop, answers held back or released, the
        client reads everything or stops reading
    """

    said: bytes
    then: str


class ConversationResult(NamedTuple):
    """Result of a conversation."""

    written: bytes
    mark_closed: bool
    asked: list[tuple[str, bytes]]
    refusals: list[int]
    failures: list[str]


async def play_script(steps: list[Step], end: str) -> ConversationResult:
    wire = SlowWire()
    conversation = Conversation(wire)
    wire.protocol = conversation.protocol
    for said, then in steps:
        if said and not wire.mark_closed:
            conversation.send(said)
        if then == "hold":
            await settle(conversation, wire)
            conversation.may_answer.clear()
        elif then == "answer":
            conversation.may_answer.set()
        elif then in ("stop", "take"):
            wire.is_reading = then == "take"
            wire.take()
        if then:
            await conversation.settle()
    wire.is_reading = True
    conversation.may_answer.set()
    await settle(conversation, wire)
    if end == "shutdown" and not wire.mark_closed:
        conversation.protocol.shutdown()
        await settle(conversation, wire)
        if not wire.mark_closed:
            conversation.send(b"4567890" + GET % 2)  # the rest of a body, and late bytes
            await settle(conversation, wire)
    result = ConversationResult(
        wire.written,
        wire.mark_closed,
        conversation.asked,
        conversation.refusals,
        conversation.failures,
    )
    conversation.protocol.connection_lost(None)
    await conversation.settle()
    assert conversation.state.connections == set()
    return result


async def settle(conversation: Conversation, wire: SlowWire) -> None:
    """Wait until nothing happens any more, however little of the answers fits into the buffer."""
    before: tuple[int, ...] = ()
    while (now := (len(wire.written), len(wire.unsent), len(conversation.asked))) != before:
        before = now
        await conversation.settle()
        if wire.is_reading:
            wire.take()


def both(
    steps: list[Step], end: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[ConversationResult, ConversationResult]:
    results = []
    for is_lean in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(Conversation, "is_lean", is_lean)
            results.append(asyncio.run(play_script(steps, end)))
    return results[0], results[1]


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """Return a pipeline in pieces."""
    many = st.lists(st.sampled_from(USUAL) | st.sampled_from(UNUSUAL), max_size=12)
    whole = b"".join(draw(many)) + draw(st.sampled_from(LAST))
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    then = st.sampled_from(["", "", "turns", "turns", "hold", "answer", "stop", "take"])
    return [Step(piece, draw(then)) for piece in pieces]


@explores(150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(scripts(), st.sampled_from(["", "shutdown"]))
def test_the_answers_are_the_same(monkeypatch, steps, end):
    ordinary, lean = both(steps, end, monkeypatch)
    assert lean == ordinary
    assert lean.failures == []


@explores(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(USUAL[:5] + UNUSUAL), min_size=1, max_size=6), st.randoms())
def test_both_protocols_answer_spoilt_requests_alike(monkeypatch, requests, random):
    whole = b"".join(mutated(each, random) for each in requests)
    cut = random.randint(0, len(whole))
    ordinary, lean = both([Step(whole[:cut], "turns"), Step(whole[cut:], "")], "", monkeypatch)
    assert lean == ordinary
    assert lean.failures == []


WHOLE = (
    USUAL[3] + UNUSUAL[2] + USUAL[4] + UNUSUAL[3] + USUAL[0] + UNUSUAL[7] + USUAL[1] + UNUSUAL[0]
)


@pytest.mark.parametrize("then", ["", "turns"])
def test_where_bytes_are_split_changes_nothing(then, monkeypatch):
    whole, _ = both([Step(WHOLE, "")], "", monkeypatch)
    monkeypatch.setattr(Conversation, "is_lean", True)
    for at in range(len(WHOLE) + 1):
        split = asyncio.run(play_script([Step(WHOLE[:at], then), Step(WHOLE[at:], then)], ""))
        assert split == whole, at


def test_bytes_may_come_one_by_one(monkeypatch):
    steps = [Step(WHOLE[at : at + 1], "") for at in range(len(WHOLE))]
    ordinary, lean = both(steps, "", monkeypatch)
    assert lean == ordinary
