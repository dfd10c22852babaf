"""Tests of ZMQ endpoints: well-formed and malformed endpoints, and replay ports of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.zmq_endpoints import endpoint_error, offset_port


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://127.0.0.1:5557",
        "tcp://engine-0.ns.svc:1",
        "tcp://[::1]:65535",
        "tcp://[fe80::1%eth0]:5557",
        "tcp://host:00080",
        "tcp://engine_0.ns.svc.cluster.local.:5557",
        "tcp://*:5557",
        "ipc:///tmp/kv.sock",
        "ipc://@abstract",
        "inproc://kv",
    ],
)
def test_well_formed_endpoint_has_no_error(endpoint):
    assert endpoint_error(endpoint) is None


@pytest.mark.parametrize(
    ("endpoint", "fault"),
    [
        ("", "missing scheme"),
        ("bad", "missing scheme"),
        ("127.0.0.1:5557", "missing scheme; did you mean `tcp://127.0.0.1:5557`?"),
        ("[::1]:5557", "missing scheme; did you mean `tcp://[::1]:5557`?"),
        ("host:http", "missing scheme"),
        ("host:0", "missing scheme"),
        ("tcp://host:0", "TCP port 0 cannot be connected to"),
        ("tcp://host:000", "TCP port 0 cannot be connected to"),
        ("://host:1", "missing scheme"),
        ("tcp://", "missing address"),
        ("udp://", "missing address"),
        ("udp://host:1", "unsupported scheme `udp`"),
        ("http://host:1", "unsupported scheme `http`"),
        ("TCP://host:1", "unsupported scheme `TCP`"),
        ("tcp://host", "missing TCP port"),
        ("tcp://host:", "missing TCP port"),
        ("tcp://[::1]", "missing TCP port"),
        ("tcp://[::1", "missing TCP port"),
        ("tcp://:5557", "missing TCP host"),
        ("tcp://[]:5557", "missing TCP host"),
        ("tcp://::1:5557", "IPv6 host must be in brackets"),
        ("tcp://host:65536", "invalid TCP port: number too large to fit in target type"),
        ("tcp://host:" + "9" * 5000, "invalid TCP port: number too large to fit in target type"),
        ("tcp://host:0000099999", "invalid TCP port: number too large to fit in target type"),
        ("tcp://host:http", "invalid TCP port: invalid digit found in string"),
        ("tcp://host:-1", "invalid TCP port: invalid digit found in string"),
        ("tcp://host:٣", "invalid TCP port: invalid digit found in string"),
        ("tcp://[name]:1", "`[name]` is not an IPv6 address"),
        ("tcp://[127.0.0.1]:1", "`[127.0.0.1]` is not an IPv6 address"),
        ("tcp://[fe80::1%a;name]:1", "`[fe80::1%a;name]` is not an IPv6 address"),
        ("tcp://127.0.0.1;name:1", "`127.0.0.1;name` is not a host name"),
        ("tcp://name*:1", "`name*` is not a host name"),
        ("tcp://name%eth0:1", "`name%eth0` is not a host name"),
        ("tcp://a..b:1", "`a..b` is not a host name"),
        ("tcp://" + "a" * 64 + ":1", f"`{'a' * 64}` is not a host name"),
        ("tcp://ho st:1", "unprintable character in address"),
        ("ipc://a\x00b", "unprintable character in address"),
    ],
)
def test_malformed_endpoint_is_named_with_its_fault(endpoint, fault):
    assert endpoint_error(endpoint) == f"invalid ZMQ endpoint `{endpoint}`: {fault}"


@given(st.text(max_size=40))
def test_any_text_is_judged_without_failing(text):
    error = endpoint_error(text)
    assert error is None or error.startswith("invalid ZMQ endpoint `")
    offset_port(text, 1)


@pytest.mark.parametrize(
    ("endpoint", "position", "expected"),
    [
        ("tcp://host:5558", 0, "tcp://host:5558"),
        ("tcp://host:5558", 3, "tcp://host:5561"),
        ("tcp://[::1]:5558", 1, "tcp://[::1]:5559"),
        ("tcp://host:65535", 1, None),
        ("inproc://replay", 2, "inproc://replay_dp2"),
        ("ipc:///tmp/replay", 1, None),
        ("ipc:///tmp/replay", 0, "ipc:///tmp/replay"),
        ("tcp://host", 1, None),
        ("tcp://host:00080", 1, "tcp://host:81"),
        ("tcp://host:" + "9" * 5000, 1, None),
    ],
)
def test_replay_port_of_a_rank_is_the_first_port_plus_its_position(endpoint, position, expected):
    assert offset_port(endpoint, position) == expected
