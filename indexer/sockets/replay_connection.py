"""EDGE: the socket on which one replay is asked for and comes.

A fresh one for each question, so that what an aborted replay still sends is never taken for an
answer to the next.
"""

import zmq

from indexer.sockets import arrivals
from indexer.sockets.arrivals import Arrivals, Room
from indexer.sockets.dial import Dial, Sockets
from indexer.sockets.options import reading_socket

REPLAY_FRAMES = (3, 4)
"""[delimiter, seq, payload]; newer engines put a topic before seq."""
SEQ_BYTES = 8


class ReplayConnection:
    """Belongs to one thread.  `socket` is the same from the beginning to `close`."""

    def __init__(self, sockets: Sockets, endpoint: str, room: Room) -> None:
        """Raises zmq.ZMQError for an address libzmq refuses."""
        self.socket = reading_socket(
            sockets.context, zmq.DEALER, endpoint, arrivals.bounds(), sockets.server
        )
        self.arrivals = Arrivals(self.socket, room, max(REPLAY_FRAMES))
        self._question: list[bytes] = []
        self._dial = Dial(
            self.socket, endpoint, sockets.names, sockets.call, self._send, purpose="replay"
        )

    def ask(self, start: int) -> None:
        """For the batches from this number on.  To be called once.  Raises zmq.ZMQError."""
        self._question = [b"", start.to_bytes(SEQ_BYTES, "big")]
        self._dial.begin()

    def close(self) -> None:
        self._dial.close()
        self.arrivals.close()
        self.socket.close()

    def _send(self) -> None:
        self.socket.send_multipart(self._question, zmq.NOBLOCK)


def is_replay(frames: list[bytes]) -> bool:
    """An empty payload ends a replay whatever stands before it."""
    if len(frames) not in REPLAY_FRAMES or frames[0]:
        return False
    return not frames[-1] or len(frames[-2]) == SEQ_BYTES
