"""Conversations with the protocol that meets the bytes, on connections without a socket."""

from select_service.http import bounded_protocol as bounds
from select_service.http.body_codec import BODY_BYTES_FREE
from tests.builders.conversation import Conversation
from tests.fastpath.slow_wire import SlowWire

GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
LARGE = BODY_BYTES_FREE + 1000


def looks(seconds: float) -> int:
    """How often the watch looks before it has seen so long a time."""
    return int(seconds / bounds.WATCH_EVERY_S) + 1


def slow_reader() -> tuple[Conversation, SlowWire]:
    """Whose client reads when it is told to."""
    wire = SlowWire()
    conversation = Conversation(wire)
    wire.protocol, wire.is_reading = conversation.protocol, False
    return conversation, wire
