"""EDGE: SUB socket of an endpoint, with connector and monitor."""

from collections.abc import Iterable

import zmq

from indexer.sockets.socket_options import QueueLimits, Socket, reading_socket
from indexer.sockets.zmq_connector import SocketSettings, ZmqConnector


class Subscription:
    """Subscription of a thread.  `socket` and `monitor` are the same until `close`."""

    def __init__(
        self,
        sockets: SocketSettings,
        endpoint: str,
        bounds: QueueLimits,
        *,
        topics: Iterable[bytes],
        events: int,
    ) -> None:
        """Open the socket and connect; the publisher may be absent.

        Raises zmq.ZMQError for an address libzmq refuses.
        events: the zmq.EVENT_* that the monitor reports
        """
        self.socket: Socket = reading_socket(
            sockets.context, zmq.SUB, endpoint, bounds, sockets.server
        )
        self.connector = ZmqConnector(
            self.socket, endpoint, sockets.resolver, sockets.call_soon, purpose=sockets.purpose
        )
        try:
            for topic in topics:
                self.socket.setsockopt(zmq.SUBSCRIBE, topic)
            self.monitor: Socket = self.socket.get_monitor_socket(events)
        except zmq.ZMQError:
            self.socket.close()
            raise
        try:
            self.connector.start()
        except zmq.ZMQError:
            self.close()
            raise

    def close(self) -> None:
        self.connector.close()
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()
