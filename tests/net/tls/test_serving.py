"""Tests of the service behind TLS: the same behavior as without TLS, and client certificates."""

import logging
import socket
import ssl
import time
import warnings
from pathlib import Path

import pytest

from select_service.adapters.reload import file_watch
from select_service.fastpath.fastpath_protocol import FastPathProtocol
from select_service.http import bounded_protocol as bounds
from select_service.http import http_server
from tests.builders import worker_body
from tests.builders.certificates import Issued, authority, trusting_context
from tests.builders.keys import bearer, entry, keys_file
from tests.builders.polling import eventually
from tests.builders.running import request
from tests.builders.tls_service import TlsClient, TlsService, replace_pair
from tests.builders.waiting_clients import (
    PROMPT,
    QUEUE,
    a_full_worker,
    count_reservations,
    metric,
    pending,
)

HANDSHAKES = "select_service_tls_handshakes_total"
SELECT = request("POST", "/select", PROMPT)


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(file_watch, "CHECK_INTERVAL_S", 0.02)


@pytest.fixture
def handed_over(monkeypatch):
    """Return connections where compiled code did not answer every request."""
    found = []
    original = FastPathProtocol._hand_over

    def noted(self):
        found.append(self)
        return original(self)

    monkeypatch.setattr(FastPathProtocol, "_hand_over", noted)
    return found


def test_usual_requests_are_answered_by_compiled_code(handed_over, monkeypatch):
    """The watch also finds sockets that compiled code may write to."""
    monkeypatch.setattr(bounds, "WATCH_EVERY_S", 0.02)
    with TlsService() as service:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        del handed_over[:]
        with service.client() as client:
            until = time.monotonic() + 0.5
            n_sent = 0
            while time.monotonic() < until:
                client.send(SELECT)
                answer = client.answer()
                assert (answer.status, answer.body["worker_id"]) == (200, 1)
                n_sent += 1
            assert handed_over == []
            client.send(SELECT * 100)
            assert {client.answer().status for _ in range(100)} == {200}
        counted = metric(service, "select_service_requests_total", route="/select", status="200")
        assert counted == n_sent + 100


def test_a_long_prompt_and_a_long_answer_come_whole():
    with TlsService() as service:
        for worker_id in range(1, 200):
            assert service.call("POST", "/workers", worker_body(worker_id)).status == 201
        with service.client() as client:
            for _ in range(3):
                client.send(request("POST", "/select", {**PROMPT, "token_ids": [7] * 100_000}))
                assert client.answer().body["worker_id"] > 0
                client.send(request("GET", "/workers"))
                assert len(client.answer().body) == 199


def test_a_client_that_goes_away_leaves_the_queue_and_books_nothing():
    with TlsService(*QUEUE) as service:
        a_full_worker(service)
        for _ in range(3):
            with service.client() as client:
                client.send(request("POST", "/select_and_reserve", PROMPT))
                eventually(lambda: pending(service) == 1)
            eventually(lambda: pending(service) == 0)
        assert count_reservations(service) == 1


def test_a_client_that_reads_no_answers_is_dropped(monkeypatch):
    monkeypatch.setattr(bounds, "WATCH_EVERY_S", 0.05)
    monkeypatch.setattr(bounds, "UNREAD_S_MAX", 0.3)
    with TlsService() as service, service.client() as client:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        client.socket.settimeout(0.2)
        with pytest.raises(OSError):  # noqa: PT011, PT012  it takes no more, or is closed
            while True:
                client.send(request("GET", "/docs/swagger-ui.css") + SELECT * 100)
        connections = service._servers[0].server_state.connections
        eventually(lambda: len(connections) == 0)


def test_a_client_of_another_authority_ends_the_handshake():
    with TlsService() as service:
        with pytest.raises(ssl.SSLCertVerificationError):
            service.client(trusting_context(authority("stranger").file))
        eventually(lambda: metric(service, HANDSHAKES, result="failed") == 1)
        assert service.call("GET", "/health").status == 200


def test_old_versions_are_refused():
    old = trusting_context(authority().file)
    with warnings.catch_warnings(action="ignore"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with TlsService() as service, pytest.raises(OSError):  # noqa: PT011  of either side
        service.client(old)


def is_let_in(service, trust):
    """Return whether a client may call; a refused certificate shows only when the client reads."""
    try:
        with service.client(trust) as client:
            client.send(request("GET", "/health"))
            return client.answer().status == 200
    except (OSError, EOFError):
        return False


def test_with_a_client_authority_certificate_and_key_are_required(tmp_path):
    keys = keys_file(tmp_path, entry("web", "operator"))
    flags = ("--tls-client-ca", str(authority().file), "--api-keys-file", str(keys))
    with TlsService(*flags) as service:
        for own in (None, authority("stranger").issue()):
            assert not is_let_in(service, trusting_context(authority().file, own))
        service.trust = trusting_context(authority().file, authority().issue())
        assert service.call("GET", "/config").status == 401
        assert service.call("GET", "/config", authorization=bearer("web")).status == 200
        assert service.handshakes.current_counts().failed == 2


def test_plain_words_are_hung_up_on_without_a_word_in_the_log(caplog):
    caplog.set_level(logging.DEBUG)
    with TlsService() as service:
        before = len(caplog.records)
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", service.port)) as plain:
                plain.sendall(request("GET", "/health"))
                assert not plain.recv(1000)
        assert [record for record in caplog.records[before:] if record.name != "tests"] == []
        assert metric(service, HANDSHAKES, result="failed") == 3


def test_a_client_that_never_finishes_a_handshake_is_dropped(monkeypatch):
    monkeypatch.setattr(http_server, "HANDSHAKE_S_MAX", 0.3)
    with TlsService() as service:
        begins = [b"", b"\x16\x03\x01\x02\x00", b"\x16"]
        opened = [socket.create_connection(("127.0.0.1", service.port)) for _ in begins]
        for each, begin in zip(opened, begins, strict=True):
            each.sendall(begin)
        for each in opened:
            assert each.recv(1) == b""
            each.close()
        eventually(lambda: metric(service, HANDSHAKES, result="abandoned") == len(begins))
        assert metric(service, "select_service_tls_handshakes_open") == 0


def test_connections_without_a_handshake_count_among_all(monkeypatch):
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 4)
    with TlsService() as service:
        place = ("127.0.0.1", service.port)
        with service.client() as known:
            silent = [socket.create_connection(place) for _ in range(3)]
            eventually(lambda: service.handshakes.open_count == 3)
            with pytest.raises(OSError):  # noqa: PT011  it is closed
                TlsClient(service.port, service.trust)
            known.send(request("GET", "/health"))
            assert known.answer().status == 200
            for each in silent:
                each.close()
            eventually(lambda: service.handshakes.open_count == 0)
            assert service.call("GET", "/health").status == 200
            assert metric(service, HANDSHAKES, result="refused") == 1


def changing(tmp_path):
    place = Issued(tmp_path / "cert.pem", tmp_path / "key.pem")
    replace_pair(authority().issue(days=20), place)
    return place


def shown_by(service):
    with service.client() as client:
        return client.server_certificate


def test_a_new_certificate_counts_for_new_connections_and_old_ones_go_on(tmp_path):
    place = changing(tmp_path)
    with TlsService(issued=place) as service, service.client() as client:
        old = client.server_certificate
        expires = ("select_service_tls_certificate_expires_timestamp_seconds",)
        ended = metric(service, *expires, side="server")
        replace_pair(authority().issue(days=10), place)
        eventually(lambda: shown_by(service) != old)
        assert 9 * 86_400 < ended - metric(service, *expires, side="server") < 11 * 86_400
        client.send(request("GET", "/health"))
        assert client.answer().status == 200
        assert metric(service, "select_service_tls_stale", side="server") == 0


def test_a_wrong_pair_keeps_the_last_good_one_and_is_logged(tmp_path, caplog):
    place = changing(tmp_path)
    with TlsService(issued=place) as service:
        old = shown_by(service)
        place.key.write_bytes(authority().issue().key.read_bytes())
        eventually(lambda: metric(service, "select_service_tls_stale", side="server") == 1)
        assert shown_by(service) == old
        Path(place.certificate).unlink()
        eventually(lambda: metric(service, READINGS, result="failed", side="server") == 2)
        assert shown_by(service) == old
        replace_pair(authority().issue(), place)
        eventually(lambda: shown_by(service) != old)
        assert metric(service, "select_service_tls_stale", side="server") == 0
    told = [r for r in caplog.records if r.message.startswith("TLS files are invalid")]
    assert "does not match the certificate" in told[0].fields["error"]


READINGS = "select_service_tls_readings_total"


def test_another_authority_of_clients_counts_for_new_connections(tmp_path):
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority().file.read_bytes())
    mine = trusting_context(authority().file, authority().issue())
    theirs = trusting_context(authority().file, authority("stranger").issue())
    with TlsService("--tls-client-ca", str(ca)) as service, service.client(mine) as client:
        client.send(request("GET", "/health"))
        assert client.answer().status == 200
        ca.write_bytes(authority("stranger").file.read_bytes())
        eventually(lambda: is_let_in(service, theirs))
        assert not is_let_in(service, mine)
        client.send(request("GET", "/health"))
        assert client.answer().status == 200
