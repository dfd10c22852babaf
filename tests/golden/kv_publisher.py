"""The event socket of an engine, which waits for subscribers and counts messages."""

import struct
from typing import Any

import msgspec
import zmq

from tests.builders.polling import PATIENCE_S


class KvPublisher:
    """Publishing socket on a free port of 127.0.0.1."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._socket = context.socket(zmq.XPUB)
        self._socket.linger = 0
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._has_subscriber = False
        self.next_seq = 0

    def send(self, payload: bytes, seq: int | None = None, topic: bytes = b"") -> int:
        """Send a message once there is a subscriber; return the sequence number."""
        self.wait_for_subscriber()
        number = self.next_seq if seq is None else seq
        self._socket.send_multipart([topic, struct.pack(">Q", number), payload])
        self.next_seq = number + 1
        return number

    def send_frames(self, frames: list[bytes]) -> None:
        """Send a message of another plane once there is a subscriber."""
        self.wait_for_subscriber()
        self._socket.send_multipart(frames)

    def wait_for_subscriber(self) -> None:
        if not self._has_subscriber:
            assert self._socket.poll(PATIENCE_S * 1000), "nobody listens"
            assert self._socket.recv()[:1] == b"\x01"
            self._has_subscriber = True

    def wait_for_another_subscriber(self) -> None:
        """Wait until the listener has gone; the next send waits for a new listener."""
        assert self._socket.poll(PATIENCE_S * 1000), "the listener stays"
        assert self._socket.recv()[:1] == b"\x00"
        self._has_subscriber = False

    def close(self) -> None:
        self._socket.close()


def batch(events: list[list[Any]]) -> bytes:
    """Return events of a golden file as a batch in vLLM's encoding, rank 0.

    The events are ["stored", engine hashes, parent, token ids, block size, medium], ["removed",
    engine hashes, medium] or ["cleared"].
    """
    encoded: list[list[Any]] = []
    for kind, *fields in events:
        if kind == "stored":
            hashes, parent, token_ids, block_size, medium = fields
            encoded.append(["BlockStored", hashes, parent, token_ids, block_size, None, medium])
        elif kind == "removed":
            encoded.append(["BlockRemoved", *fields])
        else:
            assert kind == "cleared"
            encoded.append(["AllBlocksCleared"])
    return msgspec.msgpack.encode([1.0, encoded, None])
