"""EDGE: socket of a replay: request and answer.

Each request has a fresh socket, so that late frames of an aborted replay are never taken for an
answer to the next request.
"""

import zmq

from indexer.sockets import read_ahead
from indexer.sockets.read_ahead import ReadAheadQueue, ReceiveBudget
from indexer.sockets.socket_options import reading_socket
from indexer.sockets.zmq_connector import SocketSettings, ZmqConnector

REPLAY_FRAMES = (3, 4)
"""Frames of an answer: [delimiter, seq, payload]; newer engines put a topic before seq."""
SEQ_BYTES = 8


class ReplayConnection:
    """Connection of a thread.  `socket` is the same until `close`."""

    def __init__(self, sockets: SocketSettings, endpoint: str, budget: ReceiveBudget) -> None:
        """Open the socket.  Raises zmq.ZMQError for an address libzmq refuses."""
        self.socket = reading_socket(
            sockets.context, zmq.DEALER, endpoint, read_ahead.engine_queue_limits(), sockets.server
        )
        self.queue = ReadAheadQueue(self.socket, budget, max(REPLAY_FRAMES))
        self._request_frames: list[bytes] = []
        self._connector = ZmqConnector(
            self.socket,
            endpoint,
            sockets.resolver,
            sockets.call_soon,
            self._send_request,
            purpose="replay",
        )

    def request(self, start: int) -> None:
        """Request the batches from this number on, once per connection.  Raises zmq.ZMQError."""
        self._request_frames = [b"", start.to_bytes(SEQ_BYTES, "big")]
        self._connector.start()

    def close(self) -> None:
        self._connector.close()
        self.queue.close()
        self.socket.close()

    def _send_request(self) -> None:
        self.socket.send_multipart(self._request_frames, zmq.NOBLOCK)


def is_replay(frames: list[bytes]) -> bool:
    """Return whether the frames are a replay; an empty payload ends one, whatever precedes it."""
    if len(frames) not in REPLAY_FRAMES or frames[0]:
        return False
    return not frames[-1] or len(frames[-2]) == SEQ_BYTES
