"""Tests of replicas over https: recovery from each other, and repair of differences."""

import pytest

from tests.builders import worker_body
from tests.builders.certificates import authority, trusting_context
from tests.builders.launched_process import free_port
from tests.builders.polling import eventually
from tests.builders.tls_service import TlsService
from tests.builders.waiting_clients import PROMPT, count_reservations


@pytest.fixture(scope="module")
def pair_of_files():
    own = authority().issue()
    shown = ("--tls-client-cert", str(own.certificate), "--tls-client-key", str(own.key))
    return "--tls-client-ca", str(authority().file), *shown


def replica(*flags, port=None):
    service = TlsService("--replica-sync-port", str(port or free_port()), *flags)
    service.trust = trusting_context(authority().file, authority().issue())
    return service


def with_a_booking(service):
    assert service.call("POST", "/workers", worker_body(1)).status == 201
    assert service.call("POST", "/select_and_reserve", PROMPT).status == 200


def state_of(service):
    return service.call("GET", "/ready").body["recovery"]["state"]


def only_peer(service):
    (peer,) = service.call("GET", "/replica_sync/status").body["peers"]
    return peer


def test_both_sides_show_certificates_and_nothing_is_missing_afterwards(pair_of_files):
    port = free_port()
    believed = ("--tls-ca", str(authority().file))
    with replica(*pair_of_files, *believed, port=port) as old:
        with_a_booking(old)
        peers = ("--indexer-peers", f"https://localhost:{old.port}")
        told = ("--replica-sync-peers", f"tcp://127.0.0.1:{port}")
        with replica(*pair_of_files, *believed, *peers, *told) as new:
            eventually(lambda: state_of(new) != "running")
            assert new.call("GET", "/ready").body["recovery"]["partitions"] == 1  # of the dump
            assert new.call("POST", "/workers", worker_body(1)).status == 201
            eventually(lambda: count_reservations(new) == 1)
            assert only_peer(new)["repairs"]["added"] == 1


def test_an_untrusted_peer_is_ignored():
    port = free_port()
    with replica(port=port) as old:
        with_a_booking(old)
        with replica("--replica-sync-peers", f"tcp://127.0.0.1:{port}") as new:
            assert new.call("POST", "/workers", worker_body(1)).status == 201
            eventually(lambda: only_peer(new)["last_error"])
            assert "is not trusted" in only_peer(new)["last_error"]
            assert count_reservations(new) == 0
