"""EDGE: connection of a socket to an endpoint with a host name or an address.

libzmq would resolve a name itself, at each attempt, on an I/O thread that other sockets need too
and that the end of the process waits for.  So libzmq gets addresses only.  Until a connection
exists, the name is resolved repeatedly, and its addresses are tried in turn: an engine that comes
back elsewhere under its name is found.  libzmq never gets addresses refused by `egress_guard`.
"""

import contextlib
import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import zmq

from indexer.sockets.curve_keypairs import CurveServerKeys
from indexer.sockets.dns_resolver import ResolvedAddresses, Resolver
from indexer.zmq_endpoints import is_address, is_host_name, tcp_host

LOOKUP_INTERVAL_S = 1.0
"""Seconds from a failed attempt to the next lookup."""
NOT_FOUND_RETRY_S = 2.0
"""Seconds from a failed lookup to the next."""

logger = logging.getLogger("indexer.dial")

ThreadCall: TypeAlias = Callable[[Callable[[], None]], None]
"""Scheduler of a call on the thread that owns the socket; thread-safe."""


class SocketSettings(NamedTuple):
    """Dependencies of the sockets of a thread.

    purpose: label of refused connections
    server:  required keys of the other side; None means unencrypted
    """

    context: "zmq.Context[zmq.Socket[bytes]]"
    resolver: Resolver
    call_soon: ThreadCall
    purpose: str = "events"
    server: CurveServerKeys | None = None


class ZmqConnector:
    """Connector of a socket.  Belongs to the thread that owns the socket, which also closes
    it.
    """

    def __init__(
        self,
        socket: "zmq.Socket[Any]",
        endpoint: str,
        resolver: Resolver,
        call_soon: ThreadCall,
        on_address: Callable[[], object] = lambda: None,
        purpose: str = "events",
    ) -> None:
        """on_address:    called when the socket has an address; may raise zmq.ZMQError.
        purpose: as in `SocketSettings`
        """
        host = tcp_host(endpoint)
        self._host = None if host is None or is_address(host) else host
        self._port = endpoint.rpartition(":")[2]
        self._socket = socket
        self._endpoint = endpoint
        self._resolver = resolver
        self._call = call_soon
        self._then = on_address
        self._purpose = purpose
        self._current_endpoint: str | None = None
        self._is_connected = self._is_looking_up = self._is_closed = False
        self.error: str | None = None
        """Error of the lookup, or None."""
        self.refusal: str | None = None
        """Reason of the policy if all addresses are refused, or None."""

    def start(self) -> None:
        """Connect, or resolve the name first.

        Raises zmq.ZMQError for an endpoint that libzmq or the policy refuses, with the reason.
        """
        if self._host is None:
            self._refuse_unless_allowed()
            self._connect_address(self._endpoint)
            self._then()
        elif is_host_name(self._host):
            self._look_up(0.0)
        else:
            raise zmq.ZMQError(errno.EINVAL)

    def on_connected(self) -> None:
        """Record that there is a connection."""
        self._is_connected = True

    def on_failed(self) -> None:
        """Record a lost connection or a failed attempt.  libzmq tries the same address again."""
        self._is_connected = False
        if not self._is_looking_up:
            self._look_up(LOOKUP_INTERVAL_S)

    def reconnect(self) -> None:
        """Connect again after a breach of the protocol, where libzmq gives up.  Raises
        zmq.ZMQError.
        """
        self._is_connected = False
        if self._host is None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self._endpoint)
            self._connect_address(self._endpoint)
            return
        self._disconnect()
        if not self._is_looking_up:
            self._look_up(0.0)

    def close(self) -> None:
        """Stop the lookups.  Call this before closing the socket."""
        self._is_closed = True

    def _look_up(self, after_s: float) -> None:
        if self._host is not None:
            self._is_looking_up = True
            self._resolver.resolve(self._host, self._on_addresses, after_s)

    def _on_addresses(self, addresses: ResolvedAddresses) -> None:
        """Receive the result of a lookup, on any thread."""
        self._call(partial(self._use_addresses, addresses))

    def _use_addresses(self, addresses: ResolvedAddresses) -> None:
        self._is_looking_up = False
        if self._is_closed or self._is_connected:
            return
        self.error = addresses.error
        self._note_refusal(addresses.error if addresses.is_refused else None)
        try:
            self._connect_to_next([self._endpoint_of(address) for address in addresses.found])
        except zmq.ZMQError as error:
            self._current_endpoint, self.error = None, str(error)
        if self._current_endpoint is None:
            self._look_up(NOT_FOUND_RETRY_S)

    def _refuse_unless_allowed(self) -> None:
        """Check an endpoint without a name.  Raises zmq.ZMQError if the policy refuses it."""
        host = tcp_host(self._endpoint)
        known = self._endpoint if host is None else host
        self._note_refusal(self._resolver.egress_guard.check_address(known, host))
        if self.refusal is not None:
            raise zmq.ZMQError(errno.EACCES, self.refusal)

    def _note_refusal(self, refusal: str | None) -> None:
        """Count and log a refusal, and store its reason."""
        if refusal is not None:
            self._resolver.egress_guard.count_refusal(self._purpose)
        if refusal is not None and self.refusal is None:
            fields = {"endpoint": self._endpoint, "purpose": self._purpose, "reason": refusal}
            logger.warning("connection refused by egress policy", extra={"fields": fields})
        self.refusal = refusal

    def _connect_to_next(self, endpoints: list[str]) -> None:
        """Connect to the address after the failed one, in rotation.  Raises zmq.ZMQError."""
        if not endpoints:
            return
        i = (
            endpoints.index(self._current_endpoint) + 1
            if self._current_endpoint in endpoints
            else 0
        )
        chosen = endpoints[i % len(endpoints)]
        if chosen != self._current_endpoint:
            self._disconnect()
            self._socket.setsockopt(zmq.IPV6, int("[" in chosen))
            self._connect_address(chosen)
            self._current_endpoint = chosen
            self._then()

    def _connect_address(self, endpoint: str) -> None:
        """Connect to an address, since libzmq would resolve a name.  Raises zmq.ZMQError."""
        host = tcp_host(endpoint)
        assert host is None or is_address(host), endpoint
        self._socket.connect(endpoint)

    def _disconnect(self) -> None:
        if self._current_endpoint is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self._current_endpoint)
            self._current_endpoint = None

    def _endpoint_of(self, address: str) -> str:
        return (
            f"tcp://[{address}]:{self._port}" if ":" in address else f"tcp://{address}:{self._port}"
        )
