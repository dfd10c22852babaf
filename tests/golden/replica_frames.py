"""Replica frames that a service publishes in a scenario, in a form that can be compared."""

import json
import time
from typing import Any, Self

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.builders.polling import PATIENCE_S

TOPICS = (b"dynamo.slot-tracker.v1", b"dynamo.session-affinity.v1")
"""Topics of the reference; this service has more, which the reference ignores."""
SUBSCRIBED_S = 0.3
"""Seconds after the handshake until a subscription surely counts, which neither side shows."""
MISSING_S = 10.0
"""Most seconds to wait for frames that should be published."""
SURPLUS_S = 0.3
"""Seconds to wait for frames that should not be published."""


class FrameReceiver:
    """Subscriber of a service's frames from the beginning of the block."""

    def __init__(self, context: zmq.Context[Any], port: int) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.linger = 0
        for topic in TOPICS:
            self._socket.subscribe(topic)
        self._port = port

    def __enter__(self) -> Self:
        monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(f"tcp://127.0.0.1:{self._port}")
        assert monitor.poll(PATIENCE_S * 1000), "the service publishes nothing"
        recv_monitor_message(monitor)
        self._socket.disable_monitor()
        time.sleep(SUBSCRIBED_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive(self, expected: int) -> list[dict[str, Any]]:
        """Return the messages since the last call: as many as expected, and any surplus."""
        found: list[list[bytes]] = []
        while self._socket.poll(1000 * (MISSING_S if len(found) < expected else SURPLUS_S)):
            found.append(self._socket.recv_multipart())
        return in_order([described(frames) for frames in found])


def described(frames: list[bytes]) -> dict[str, Any]:
    """Return topic, number of frames and decoded second frame of a message."""
    return {
        "topic": frames[0].decode(),
        "frame_count": len(frames),
        "decoded": msgspec.msgpack.decode(frames[1]),
    }


def in_order(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages by topic and kind, as the order between topics is not specified."""
    return sorted(messages, key=lambda message: (message["topic"], _kind(message["decoded"])))


def _kind(decoded: dict[str, Any]) -> str:
    event = decoded.get("event", {})
    return json.dumps([event.get("request_id"), decoded.get("session_id"), event.get("data")])
