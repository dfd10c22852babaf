"""The listening socket: its address is taken early, connections are accepted when all is ready."""

import socket

from select_service.settings.config import Unusable

LISTEN_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address and refuses connections until `listen`.  Raises Unusable."""
    try:
        return _bound(host, port)
    except OSError as error:
        raise Unusable(f"cannot listen on {host}:{port}: {error}") from None


def _bound(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
        raise Unusable(f"--input-loops: cannot share the address: {error}") from None


def _sibling(listener: socket.socket) -> socket.socket:
    sibling = socket.socket(listener.family, listener.type)
    sibling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sibling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sibling.bind(listener.getsockname())
    return sibling


def listen(listener: socket.socket) -> None:
    """Raises Unusable when another process was faster."""
    try:
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise Unusable(f"cannot listen on {host}:{port}: {error}") from None
