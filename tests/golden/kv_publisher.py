"""The event socket of an engine: knows when somebody listens, counts its messages."""

import struct
from typing import Any

import msgspec
import zmq

from tests.builders.polling import PATIENCE_S


class KvPublisher:
    """A publishing socket on a free port of 127.0.0.1."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._socket = context.socket(zmq.XPUB)
        self._socket.linger = 0
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._has_subscriber = False
        self.next_seq = 0

    def send(self, payload: bytes, seq: int | None = None, topic: bytes = b"") -> int:
        """Send one message as soon as somebody listens; returns its sequence number."""
        self.wait_for_subscriber()
        number = self.next_seq if seq is None else seq
        self._socket.send_multipart([topic, struct.pack(">Q", number), payload])
        self.next_seq = number + 1
        return number

    def send_frames(self, frames: list[bytes]) -> None:
        """Send one message of another plane as soon as somebody listens."""
        self.wait_for_subscriber()
        self._socket.send_multipart(frames)

    def wait_for_subscriber(self) -> None:
        if not self._has_subscriber:
            assert self._socket.poll(PATIENCE_S * 1000), "nobody listens"
            assert self._socket.recv()[:1] == b"\x01"
            self._has_subscriber = True

    def wait_for_another_subscriber(self) -> None:
        """Until the listener has gone; the next one is waited for when something is sent."""
        assert self._socket.poll(PATIENCE_S * 1000), "the listener stays"
        assert self._socket.recv()[:1] == b"\x00"
        self._has_subscriber = False

    def close(self) -> None:
        self._socket.close()


def batch(events: list[list[Any]]) -> bytes:
    """Events of a golden file -> a batch as vLLM encodes it, rank 0.

    ["stored", engine hashes, parent, token ids, block size, medium], ["removed", engine hashes,
    medium] or ["cleared"].
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
