"""Tests of the endpoints that libzmq gets for connections."""

import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st

from indexer.sockets.dns_resolver import ResolvedAddresses
from indexer.sockets.egress_guard import EgressGuard
from indexer.sockets.zmq_connector import ZmqConnector
from indexer.zmq_endpoints import endpoint_error, is_address, tcp_host


class Socket:
    """Socket that records its endpoints."""

    def __init__(self):
        self.endpoints = []

    def connect(self, endpoint):
        self.endpoints.append(endpoint)

    def disconnect(self, endpoint):
        pass

    def setsockopt(self, option, value):
        pass


class Names:
    """Resolver that knows every name."""

    egress_guard = EgressGuard()

    def resolve(self, host, tell, after_s=0.0):
        tell(ResolvedAddresses(("10.0.0.1", "fd00::1")))


HOSTS = st.text(st.sampled_from("ab1.:;*%[]-_@ "), max_size=12)


@given(HOSTS)
@example("[name]")
@example("127.0.0.1;name")
@example("name*")
@example("name%eth0")
@example("[fe80::1%a;name]")
@example("[fe80::1%eth0]")
@example("host")
@example("127.1")
@example("*")
def test_libzmq_is_given_addresses_only(host):
    endpoint = f"tcp://{host}:5557"
    if endpoint_error(endpoint) is not None:
        return
    socket = Socket()
    dial = ZmqConnector(socket, endpoint, Names(), lambda what: what())
    try:
        dial.start()
        dial.reconnect()
    except zmq.ZMQError:
        assert host == "*"
        assert not socket.endpoints
    else:
        assert socket.endpoints
        assert all(is_address(tcp_host(each)) for each in socket.endpoints)


def test_an_endpoint_that_was_never_judged_is_no_way_around():
    with pytest.raises(zmq.ZMQError):
        ZmqConnector(Socket(), "tcp://a;b:1", Names(), lambda what: what()).start()
