"""Listening socket: bound early, accepting connections when the service is ready."""

import ctypes
import errno
import socket
import struct
from contextlib import suppress

from select_service.config.settings_loader import UnusableSetting

LISTEN_BACKLOG = 2048
KEEPALIVE_IDLE_S = 60
KEEPALIVE_INTERVAL_S = 15
KEEPALIVE_PROBES = 4
"""TCP keep-alive: idle seconds before the first probe, interval in seconds, number of probes.

Connections may be idle for long; the system closes those of clients that no longer exist.
"""
PORT_ADVICE = " (--port 0 = a free port, --reuse-port = share the port with a process of this user)"
"""Advice for an HTTP port that is in use."""
SHARED_PORT_ADVICE = " (--reuse-port works only if the first process was started with it too)"
"""Advice for a port that is in use although --reuse-port was given."""
SO_ATTACH_REUSEPORT_CBPF = 51
_RETURN_CONSTANT = 0x06
"""Classic BPF instruction that returns a constant."""


class PortInUse(UnusableSetting):
    """Error for an address that another socket uses."""


def bind_listener(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a socket bound to the address, which refuses connections until `listen`.

    shared: True shares the port with other processes of this user that do the same
    Raises Unusable.
    """
    try:
        return _bind_socket(host, port, shared)
    except OSError as error:
        raise _bind_error(host, port, error) from None


def _bind_error(host: str, port: int, error: OSError) -> UnusableSetting:
    """Return the error for an unusable address, with advice."""
    begin = f"cannot listen on {host}:{port}: "
    if isinstance(error, socket.gaierror):
        return UnusableSetting(f"{begin}`{host}` is not a name or address of this machine")
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"{begin}the port is in use: stop the other process, or give another port")
    reasons = {
        errno.EADDRNOTAVAIL: "not an address of this machine: give one of its own",
        errno.EACCES: "this user may not open the port: give one from 1024",
    }
    return UnusableSetting(begin + reasons.get(error.errno or 0, error.strerror or str(error)))


def resolve_address(host: str, port: int) -> str:
    """Return the numeric address of a host that `bind` accepts."""
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])


def _bind_socket(host: str, port: int, shared: bool) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind)
    # A restart must not wait for connections in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def start_listening(listener: socket.socket) -> None:
    """Accept connections.  Raises Unusable if another process took the port meanwhile."""
    _detect_lost_clients(listener)
    try:
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _bind_error(host, port, error) from None


def _detect_lost_clients(listener: socket.socket) -> None:
    """Enable TCP keep-alive; accepted connections inherit the options."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        option: int | None = getattr(socket, name, None)  # missing on some systems
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def redirect_new_connections(listener: socket.socket) -> None:
    """Direct new connections to another process that listens on the same address, if any.

    The system distributes connections by a hash and drops unaccepted connections when a socket is
    closed, so the next process must receive all connections before that.  Sockets of one address
    are numbered in order of creation, and the last one takes the number of a closed one: number 0
    belongs to the first process, number 1 to the next.  A number without a socket leaves the choice
    to the hash.
    Source: reuseport_select_sock and reuseport_detach_sock in net/core/sock_reuseport.c of Linux.
    """
    # A classic BPF program of one instruction: "return 1" selects the socket of that number.
    program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, 1))
    filter_ = struct.pack("HP", 1, ctypes.addressof(program))
    with suppress(OSError):  # not Linux: the hash keeps deciding
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, filter_)
