"""Tests of the egress guard for ZMQ: no forbidden address is ever connected to."""

import socket
import threading

import pytest
import zmq

from indexer.sockets import zmq_connector as dial_module
from indexer.sockets.dns_resolver import Resolver
from indexer.sockets.egress_guard import EgressGuard
from indexer.sockets.socket_options import QueueLimits
from indexer.sockets.subscription import Subscription
from indexer.sockets.zmq_connector import SocketSettings, ZmqConnector
from tests.builders.polling import eventually

REFUSED, ALLOWED = "127.0.0.2", "127.0.0.1"


def refusal(host, address):
    if address is None:
        return f"{host} stays here"
    return f"{address} is refused" if address == REFUSED else None


def resolver_of(*answers, boundary=None):
    """Return a resolver, and the list of looked-up hosts.

    Lookups return `answers` in turn; the last answer repeats.
    """
    left, asked = list(answers), []

    def look_up(host, *_, **__):
        asked.append(host)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, 1, 6, "", (address, 0)) for address in found.split()]

    names = Resolver(look_up, boundary or EgressGuard(refusal))
    return names, asked


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(dial_module, "LOOKUP_INTERVAL_S", 0.01)
    monkeypatch.setattr(dial_module, "NOT_FOUND_RETRY_S", 0.01)


class RecordingSocket:
    """Socket that records its endpoints."""

    def __init__(self):
        self.endpoints = []

    def connect(self, endpoint):
        self.endpoints.append(endpoint)

    def disconnect(self, endpoint):
        self.endpoints.remove(endpoint)

    def setsockopt(self, option, value):
        pass


def dialling(endpoint, names, purpose="events"):
    calls, noted = [], RecordingSocket()
    return ZmqConnector(noted, endpoint, names, calls.append, purpose=purpose), noted, calls


@pytest.mark.parametrize("endpoint", [f"tcp://{REFUSED}:5557", "ipc:///tmp/a", "inproc://a"])
def test_an_endpoint_without_a_name_is_refused_at_once(endpoint):
    names, _ = resolver_of(ALLOWED)
    dial, noted, _ = dialling(endpoint, names, "replay")
    with pytest.raises(zmq.ZMQError, match=r"is refused|stays here"):
        dial.start()
    assert not noted.endpoints
    assert names.egress_guard.refusal_counts() == {"replay": 1}


def test_a_name_that_leads_to_a_refused_address_is_never_connected_to():
    names, asked = resolver_of(REFUSED)
    dial, noted, calls = dialling("tcp://engine:5557", names)
    dial.start()
    for n in range(3):
        eventually(lambda n=n: len(calls) > n)
        calls[n]()
        assert dial.refusal == f"{REFUSED} is refused"
    assert not noted.endpoints
    assert names.egress_guard.refusal_counts() == {"events": 3}
    dial.close()
    assert set(asked) == {"engine"}


def test_allowed_addresses_of_a_name_are_tried():
    names, _ = resolver_of(f"{REFUSED} {ALLOWED}")
    dial, noted, calls = dialling("tcp://engine:5557", names)
    dial.start()
    eventually(lambda: calls)
    calls[0]()
    assert noted.endpoints == [f"tcp://{ALLOWED}:5557"]
    assert names.egress_guard.refusal_counts() == {}


def test_a_name_that_is_turned_round_is_not_followed():
    """The name resolves to an allowed address first, and to a refused address later."""
    names, _ = resolver_of(ALLOWED, REFUSED)
    dial, noted, calls = dialling("tcp://engine:5557", names)
    dial.start()
    eventually(lambda: len(calls) == 1)
    calls[0]()
    for n in (1, 2):
        dial.on_failed()
        eventually(lambda n=n: len(calls) > n)
        calls[n]()
        assert noted.endpoints == [f"tcp://{ALLOWED}:5557"]
    assert names.egress_guard.refusal_counts() == {"events": 2}
    dial.reconnect()  # libzmq has given up, so that no connection is left
    eventually(lambda: len(calls) > 3)
    calls[3]()
    assert not noted.endpoints
    dial.close()


def test_nothing_arrives_at_a_port_behind_a_refused_name():
    names, _ = resolver_of(REFUSED)
    with socket.create_server((REFUSED, 0)) as listener, zmq.Context() as context:
        listener.settimeout(0.3)
        calls = []
        sockets = SocketSettings(context, names, calls.append, "replica")
        endpoint = f"tcp://peer:{listener.getsockname()[1]}"
        bounds = QueueLimits(10, 1000)
        there = Subscription(sockets, endpoint, bounds, topics=[b""], events=zmq.EVENT_ALL)
        eventually(lambda: calls)
        calls[0]()
        with pytest.raises(TimeoutError):
            listener.accept()
        assert "is refused" in there.connector.refusal
        there.close()
        with pytest.raises(zmq.ZMQError, match="is refused"):
            Subscription(sockets, endpoint.replace("peer", REFUSED), bounds, topics=[b""], events=1)


def test_refusals_are_counted_on_every_thread():
    boundary = EgressGuard()
    threads = [
        threading.Thread(target=lambda: [boundary.count_refusal("events") for _ in range(2000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert boundary.refusal_counts() == {"events": 8000}
    assert boundary.check_address("anything", "169.254.169.254") is None
