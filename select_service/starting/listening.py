"""The listening socket: its address is taken early, connections are accepted when all is ready."""

import ctypes
import errno
import socket
import struct
from contextlib import suppress

from select_service.settings.config import Unusable

LISTEN_BACKLOG = 2048
SILENT_S = 60
PROBE_EVERY_S = 15
PROBES = 4
"""Connections may be idle for long, so the system asks after so much silence whether the client is
still there, and ends the connection when so many questions are not answered."""
PORTS = " (--port 0 takes a free one, --reuse-port shares it with a process of this user)"
"""What else can be done about a port of HTTP that is in use."""
PORTS_SHARED = " (--reuse-port shares it only where its first process was started with it, too)"
"""The same where sharing was asked for."""
SO_ATTACH_REUSEPORT_CBPF = 51
_RETURN_CONSTANT = 0x06
"""The instruction of a classic packet filter that ends it with a number."""


class PortInUse(Unusable):
    """Another socket listens on the address."""


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket that has the address and refuses connections until `listen`.  Raises Unusable.

    shared: with other processes of this user that say the same
    """
    try:
        return _bound(host, port, shared)
    except OSError as error:
        raise _fault(host, port, error) from None


def _fault(host: str, port: int, error: OSError) -> Unusable:
    """Why the address cannot be had, and what to do."""
    begin = f"cannot listen on {host}:{port}: "
    if isinstance(error, socket.gaierror):
        return Unusable(f"{begin}`{host}` is no name or address that this machine knows")
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"{begin}the port is in use: end what listens there, or take another port")
    reasons = {
        errno.EADDRNOTAVAIL: "this machine does not have the address: take one of its own",
        errno.EACCES: "this user may not open the port: take one from 1024 on",
    }
    return Unusable(begin + reasons.get(error.errno or 0, error.strerror or str(error)))


def address_of(host: str, port: int) -> str:
    """Numeric, of a host that `bind` takes."""
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])


def _bound(host: str, port: int, shared: bool) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def siblings(listener: socket.socket, count: int) -> list[socket.socket]:
    """`count` sockets with the same address, the first is the given one; the system shares
    connections out among those that listen.  Raises Unusable.

    Linux.  The address was taken alone: sharing it is allowed only from now on, and only to this
    user, so that a second service by mistake is still told.
    """
    if count == 1:
        return [listener]
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return [listener, *(_sibling(listener) for _ in range(count - 1))]
    except OSError as error:
        raise Unusable(f"--input-loops: cannot share the address: {error.strerror}") from None


def _sibling(listener: socket.socket) -> socket.socket:
    sibling = socket.socket(listener.family, listener.type)
    sibling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sibling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sibling.bind(listener.getsockname())
    return sibling


def listen(listener: socket.socket) -> None:
    """Raises Unusable when another process was faster."""
    _detect_lost_clients(listener)
    try:
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _fault(host, port, error) from None


def _detect_lost_clients(listener: socket.socket) -> None:
    """Connections that the listener accepts inherit this."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENT_S),
        ("TCP_KEEPINTVL", PROBE_EVERY_S),
        ("TCP_KEEPCNT", PROBES),
    ):
        option: int | None = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def leave_to_others(listener: socket.socket, count: int) -> None:
    """New connections go to another process that listens on the same address, if there is one.

    The system shares connections out by a hash, and drops those that a socket has not accepted when
    it is closed; so the next process gets all of them before that.  Sockets of one address are
    numbered in the order in which they came, and the last takes the number of one that is closed:
    the `count` of the process that came first are the first ones.  A number that nobody has leaves
    the choice to the hash.
    Source: reuseport_select_sock and reuseport_detach_sock in net/core/sock_reuseport.c of Linux.
    """
    program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, count))
    filter_ = struct.pack("HP", 1, ctypes.addressof(program))
    with suppress(OSError):  # not Linux: the hash decides
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, filter_)
