"""EDGE: a SUB socket that listens to one endpoint, with its dialling and the monitor of it."""

from collections.abc import Iterable

import zmq

from indexer.sockets.dial import Dial, Sockets
from indexer.sockets.options import Bounds, Socket, reading_socket


class Subscription:
    """Belongs to one thread.  `socket` and `monitor` are the same from the beginning to `close`."""

    def __init__(
        self,
        sockets: Sockets,
        endpoint: str,
        bounds: Bounds,
        *,
        topics: Iterable[bytes],
        events: int,
    ) -> None:
        """The publisher may be absent.  Raises zmq.ZMQError for an address libzmq refuses.

        events: the zmq.EVENT_* that the monitor tells of
        """
        self.socket: Socket = reading_socket(
            sockets.context, zmq.SUB, endpoint, bounds, sockets.server
        )
        self.dial = Dial(
            self.socket, endpoint, sockets.names, sockets.call, purpose=sockets.purpose
        )
        try:
            for topic in topics:
                self.socket.setsockopt(zmq.SUBSCRIBE, topic)
            self.monitor: Socket = self.socket.get_monitor_socket(events)
        except zmq.ZMQError:
            self.socket.close()
            raise
        try:
            self.dial.begin()
        except zmq.ZMQError:
            self.close()
            raise

    def close(self) -> None:
        self.dial.close()
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()
