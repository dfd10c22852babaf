"""Tests that a closed connection is freed at once: no reference leads back to the connection."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from tests.builders.conversation import Conversation

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
HALF = b"POST /b HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
SENT = {
    "nothing": (True, b""),
    "answered": (True, GET),
    "half of a request": (True, HALF),
    "garbage": (True, b"NONSENSE\r\n\r\n"),
    "too much in its head": (True, GET[:-2] + b"a: " + b"b" * 70_000),
    "unanswered": (False, GET),
    "behind an unanswered one": (False, GET * 3 + HALF),
    "more than is parsed at once": (False, GET * 5000),
}


@pytest.fixture
def _without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_collections")
@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
@pytest.mark.parametrize(("is_answered", "sent"), SENT.values(), ids=SENT)
async def test_a_closed_connection_is_freed_without_a_collection(is_answered, sent, error):
    conversation = Conversation()
    if not is_answered:
        conversation.may_answer.clear()
    if sent:
        conversation.send(sent)
    await conversation.settle()
    conversation.wire.close()
    conversation.protocol.connection_lost(error)
    await conversation.settle()
    left = weakref.ref(conversation.protocol)
    del conversation.protocol
    assert left() is None
