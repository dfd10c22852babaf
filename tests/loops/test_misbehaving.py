"""What clients do to a loop, rightly or wrongly, and what it does when there is too much of it.

Limits of time are short here; nothing is waited for but what has to happen.
"""

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest

from select_service.fast.request_layout import BODY_BYTES_MAX
from select_service.loops import loop
from select_service.loops import loop_layout as layout
from tests.http.test_misbehaving import (  # noqa: F401
    test_a_body_that_would_be_refused_is_not_asked_for,
    test_a_client_that_sends_no_more_gets_its_answer,
    test_a_client_that_waits_to_be_asked_for_its_body_is_asked,
    test_slow_clients_do_not_hold_up_others,
    test_what_is_sent_is_answered,
)
from tests.loops.running import PATIENT, SELECT, OnLoops
from tests.patience import eventually
from tests.process.running import Client, request

pytestmark = pytest.mark.process

SHORT_S = 0.2
LARGE = SELECT * 200
N_TOO_MUCH = layout.BUFFERED_BYTES_MAX // BODY_BYTES_MAX + 2
"""Of the longest requests, for one loop."""


@contextlib.contextmanager
def limited(**limits: float) -> Iterator[OnLoops]:
    with OnLoops(limits=PATIENT._replace(**limits)) as running:  # type: ignore[arg-type]
        running.with_workers()
        yield running


def fill(client: Client, sent: int) -> int:
    """Send requests, of which so many bytes went out, and read nothing, until no more are taken."""
    client.socket.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += client.socket.send(LARGE[sent % len(LARGE) :])
    client.socket.setblocking(True)
    return sent


def is_blocked(service: OnLoops) -> bool:
    return any(row[layout.MODE] == layout.BLOCKED for row in service.rows())


def fill_up(service: OnLoops, client: Client) -> int:
    """Until answers wait in the loop; bytes that went out."""
    sent = 0
    while not is_blocked(service):
        sent = fill(client, sent)
    return sent


def test_a_client_that_reads_late_gets_every_answer(service: OnLoops) -> None:
    with service.client() as client:
        sent = fill_up(service, client)
        with service.client() as other:
            other.send(SELECT)
            assert other.answer().status == 200
        whole, part = divmod(sent, len(SELECT))
        client.socket.settimeout(None)
        for _ in range(whole):
            assert client.answer().status == 200
        client.send(SELECT[part:])
        assert client.answer().status == 200


def test_a_client_that_reads_nothing_is_left() -> None:
    with limited(unread_s=SHORT_S) as service, service.client() as client:
        fill_up(service, client)
        eventually(lambda: service.counted(layout.CLOSED_UNREAD) == 1)
        assert service.is_alive()


@pytest.mark.parametrize("sent", [b"", SELECT[:7], SELECT[:90], SELECT[:-1]])
def test_a_request_that_comes_too_slowly_is_refused(sent: bytes) -> None:
    with limited(request_s=SHORT_S) as service, service.client() as client:
        client.send(sent)
        answer = client.answer()
        assert (answer.status, answer.body["code"]) == (408, "timeout")
        assert client.ended()
        assert service.counted(layout.LATE) == 1


def test_an_idle_connection_is_closed() -> None:
    with limited(idle_s=SHORT_S) as service, service.client() as client:
        client.send(SELECT)
        assert client.answer().status == 200
        assert client.ended()
        eventually(lambda: service.counted(layout.CLOSED_IDLE) == 1)


def test_connections_beyond_the_bound_are_refused_in_words() -> None:
    with limited(connections=4) as service, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(service.client()) for _ in range(6)]
        eventually(lambda: service.n_connections == 4)
        answers = [client.answer() for client in clients[4:]]
        assert [answer.status for answer in answers] == [503, 503]
        assert answers[0].body["code"] == "capacity_exceeded"
        for client in clients[:4]:
            client.send(SELECT)
            assert client.answer().status == 200
        clients[0].socket.close()
        eventually(lambda: service.n_connections == 3)
        assert service.is_alive()


def test_connections_that_break_off_leave_nothing(service: OnLoops) -> None:
    reset = struct.pack("ii", 1, 0)
    eventually(lambda: service.n_connections == 0)
    for n in range(0, 3 * len(SELECT), 7):
        with service.client() as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            client.send((SELECT * 3)[:n])
    eventually(lambda: service.n_connections == 0)
    assert sum(int(each.loop.header[layout.BUFFERED]) for each in service.served) == 0
    assert service.is_alive()


def test_a_reset_while_answers_wait_leaves_nothing(service: OnLoops) -> None:
    with service.client() as client:
        fill_up(service, client)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: service.n_connections == 0)
    assert service.is_alive()


def test_an_ending_service_sends_what_a_late_reader_has_not_taken() -> None:
    with contextlib.ExitStack() as stack:
        with limited() as service:
            client = stack.enter_context(service.client())
            fill_up(service, client)
        client.socket.settimeout(None)
        answers = 0
        with contextlib.suppress(EOFError, ConnectionResetError):
            while client.answer().status == 200:
                answers += 1
        assert answers > 0


def test_requests_that_do_not_come_in_share_a_bound() -> None:
    """Beyond it the event loop has them.  What is short is answered as before."""
    begun = SELECT.replace(b"content-length: ", b"content-length: %d\r\nx: " % BODY_BYTES_MAX)
    rest = bytes(BODY_BYTES_MAX - len(SELECT))
    with limited() as service, contextlib.ExitStack() as clients:
        for _ in range(N_TOO_MUCH):
            clients.enter_context(service.client()).send(begun + rest)
        eventually(lambda: service.counted(layout.NO_ROOM) > 0)
        with service.client() as other:
            other.send(SELECT)
            assert other.answer().status == 200
        clients.close()
        eventually(lambda: not any(s.loop.header[layout.BUFFERED] for s in service.served))


def test_a_client_for_whose_request_no_memory_is_left_is_not_kept_waiting(
    service: OnLoops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a loop does not answer itself is handed over, in one piece."""

    def none_left(*_: object) -> bytes:
        raise MemoryError

    handed_over = request("GET", "/workers")
    with service.client() as client, monkeypatch.context() as patch:
        patch.setattr(loop.ctypes, "string_at", none_left)
        client.send(handed_over)
        assert client.ended()
    with service.client() as client:
        client.send(handed_over)
        assert client.answer().status == 200
