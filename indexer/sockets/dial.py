"""EDGE: connects a socket to an endpoint whose host may be a name.

libzmq would look a name up itself, at each attempt, on the I/O thread that serves other sockets too
and that the end of the process waits for.  So it is only given addresses.  As long as there is no
connection the name is looked up again and again, and of several addresses one after the other is
tried: an engine that comes back elsewhere under its name is found.  Addresses that must not be
connected to, see `boundary`, libzmq never sees.
"""

import contextlib
import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import zmq

from indexer.endpoints import is_address, is_host_name, tcp_host
from indexer.sockets.curve import CurveServer
from indexer.sockets.names import Addresses, Names

LOOK_AGAIN_S = 1.0
"""After an attempt that failed, before the name is looked up again."""
NOT_FOUND_S = 2.0
"""After a name that was not found."""

logger = logging.getLogger("indexer.dial")

Call: TypeAlias = Callable[[Callable[[], None]], None]
"""Has something called soon, on the thread that owns the socket; may be called on any thread."""


class Sockets(NamedTuple):
    """What one thread opens its sockets with.  purpose: under which refusals are counted

    server: who has to answer; None: plain
    """

    context: "zmq.Context[zmq.Socket[bytes]]"
    names: Names
    call: Call
    purpose: str = "events"
    server: CurveServer | None = None


class Dial:
    """Belongs to the thread that owns the socket, which closes it."""

    def __init__(
        self,
        socket: "zmq.Socket[Any]",
        endpoint: str,
        names: Names,
        call: Call,
        then: Callable[[], object] = lambda: None,
        purpose: str = "events",
    ) -> None:
        """then: called when the socket has been given an address; may raise zmq.ZMQError.
        purpose: as in `Sockets`
        """
        host = tcp_host(endpoint)
        self._host = None if host is None or is_address(host) else host
        self._port = endpoint.rpartition(":")[2]
        self._socket = socket
        self._endpoint = endpoint
        self._names = names
        self._call = call
        self._then = then
        self._purpose = purpose
        self._at: str | None = None
        self._is_connected = self._is_asking = self._is_over = False
        self.error: str | None = None
        """Why the name has no address."""
        self.refusal: str | None = None
        """The same, when it has some, but none that may be connected to."""

    def begin(self) -> None:
        """Connect, or look the name up first.

        Raises zmq.ZMQError for what libzmq refuses, or the boundary, with its reason.
        """
        if self._host is None:
            self._refuse_unless_allowed()
            self._connect(self._endpoint)
            self._then()
        elif is_host_name(self._host):
            self._ask(0.0)
        else:
            raise zmq.ZMQError(errno.EINVAL)

    def connected(self) -> None:
        """There is a connection."""
        self._is_connected = True

    def failed(self) -> None:
        """The connection is gone, or an attempt failed.  libzmq tries the same address again."""
        self._is_connected = False
        if not self._is_asking:
            self._ask(LOOK_AGAIN_S)

    def anew(self) -> None:
        """libzmq has given up, after a breach of the protocol.  Raises zmq.ZMQError."""
        self._is_connected = False
        if self._host is None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self._endpoint)
            self._connect(self._endpoint)
            return
        self._leave()
        if not self._is_asking:
            self._ask(0.0)

    def close(self) -> None:
        """To be called before the socket is closed."""
        self._is_over = True

    def _ask(self, after_s: float) -> None:
        if self._host is not None:
            self._is_asking = True
            self._names.look_up(self._host, self._tell, after_s)

    def _tell(self, addresses: Addresses) -> None:
        """On any thread."""
        self._call(partial(self._take, addresses))

    def _take(self, addresses: Addresses) -> None:
        self._is_asking = False
        if self._is_over or self._is_connected:
            return
        self.error = addresses.error
        self._note(addresses.error if addresses.is_refused else None)
        try:
            self._go_to([self._endpoint_of(address) for address in addresses.found])
        except zmq.ZMQError as error:
            self._at, self.error = None, str(error)
        if self._at is None:
            self._ask(NOT_FOUND_S)

    def _refuse_unless_allowed(self) -> None:
        """What is no name.  Raises zmq.ZMQError."""
        host = tcp_host(self._endpoint)
        known = self._endpoint if host is None else host
        self._note(self._names.boundary.refusal(known, host))
        if self.refusal is not None:
            raise zmq.ZMQError(errno.EACCES, self.refusal)

    def _note(self, refusal: str | None) -> None:
        """What came of judging the addresses."""
        if refusal is not None:
            self._names.boundary.count(self._purpose)
        if refusal is not None and self.refusal is None:
            fields = {"endpoint": self._endpoint, "purpose": self._purpose, "reason": refusal}
            logger.warning("a connection is refused", extra={"fields": fields})
        self.refusal = refusal

    def _go_to(self, endpoints: list[str]) -> None:
        """To the one behind that which has failed, in a circle.  Raises zmq.ZMQError."""
        if not endpoints:
            return
        i = endpoints.index(self._at) + 1 if self._at in endpoints else 0
        chosen = endpoints[i % len(endpoints)]
        if chosen != self._at:
            self._leave()
            self._socket.setsockopt(zmq.IPV6, int("[" in chosen))
            self._connect(chosen)
            self._at = chosen
            self._then()

    def _connect(self, endpoint: str) -> None:
        """libzmq would look up whatever is no address.  Raises zmq.ZMQError."""
        host = tcp_host(endpoint)
        assert host is None or is_address(host), endpoint
        self._socket.connect(endpoint)

    def _leave(self) -> None:
        if self._at is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self._at)
            self._at = None

    def _endpoint_of(self, address: str) -> str:
        return (
            f"tcp://[{address}]:{self._port}" if ":" in address else f"tcp://{address}:{self._port}"
        )
