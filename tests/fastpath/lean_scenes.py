"""Conversations with the protocol of the fast path, on connections without a socket."""

from select_service.http import bounded_protocol as bounds
from select_service.http.body_codec import BODY_BYTES_FREE
from tests.builders.conversation import Conversation
from tests.fastpath.slow_wire import SlowWire

GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
LARGE = BODY_BYTES_FREE + 1000


def looks(seconds: float) -> int:
    """Return how often the watch looks before that time has passed."""
    return int(seconds / bounds.WATCH_EVERY_S) + 1


def slow_reader() -> tuple[Conversation, SlowWire]:
    """Return a conversation with a client that reads on demand."""
    wire = SlowWire()
    conversation = Conversation(wire)
    wire.protocol, wire.is_reading = conversation.protocol, False
    return conversation, wire
