"""Addresses that two processes share."""

import socket
import sys

import pytest

from select_service.settings.config import Unusable
from select_service.starting.listening import bind, leave_to_others, listen

CONNECTIONS = 64

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="addresses are shared on Linux")


def two_listeners() -> tuple[socket.socket, socket.socket]:
    old = bind("127.0.0.1", 0, shared=True)
    listen(old)
    new = bind("127.0.0.1", old.getsockname()[1], shared=True)
    listen(new)
    return old, new


def accepted(listener: socket.socket) -> int:
    listener.setblocking(False)
    n = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return n
        n += 1


def connect(listener: socket.socket) -> None:
    for _ in range(CONNECTIONS):
        socket.create_connection(listener.getsockname()).close()


def test_who_leaves_gets_no_new_connections() -> None:
    old, new = two_listeners()
    with old, new:
        connect(old)
        assert min(shares := (accepted(old), accepted(new))) > 0
        assert sum(shares) == CONNECTIONS
        leave_to_others(old, 1)
        connect(old)
        assert (accepted(old), accepted(new)) == (0, CONNECTIONS)


def test_who_took_over_can_leave_as_well() -> None:
    first, second = two_listeners()
    leave_to_others(first, 1)
    first.close()
    third = bind("127.0.0.1", second.getsockname()[1], shared=True)
    with second, third:
        listen(third)
        leave_to_others(second, 1)
        connect(second)
        assert (accepted(second), accepted(third)) == (0, CONNECTIONS)


def test_who_leaves_to_nobody_is_still_reached() -> None:
    with bind("127.0.0.1", 0, shared=True) as alone:
        listen(alone)
        leave_to_others(alone, 1)
        connect(alone)
        assert accepted(alone) == CONNECTIONS


def test_an_address_is_shared_only_by_those_who_say_so() -> None:
    with bind("127.0.0.1", 0, shared=True) as first:
        listen(first)
        with pytest.raises(Unusable, match="cannot listen on"):
            bind("127.0.0.1", first.getsockname()[1])
