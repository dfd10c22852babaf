"""Checks of short texts: addresses, keys and lists of hashes."""

from indexer.curve_keys import curve_key_error
from indexer.zmq_endpoints import endpoint_error, offset_port, tcp_host
from select_service.base.errors import SelectError
from select_service.core.analysis.decision_log import parse_hashes
from select_service.core.placement.policies.policy_registry import parse_policy_choice
from select_service.net.allowed_hosts import is_foreign_change, is_loopback
from select_service.net.egress_policy import parse_network
from select_service.net.urls import engine_url_error, metrics_url_error, service_url_error


def check_texts(data: bytes) -> None:
    """Require that every reader accepts a text or names a fault."""
    text = data.decode("utf-8", "replace")
    for find_fault in (service_url_error, metrics_url_error, engine_url_error, curve_key_error):
        fault = find_fault(text)
        assert fault is None or fault
    if endpoint_error(text) is None:
        tcp_host(text)
        moved = offset_port(text, 1)
        assert moved is None or endpoint_error(moved) is None
    is_loopback(text)
    host, _, origin = text.partition(" ")
    is_foreign_change("POST", origin, host)
    for read in (parse_network, parse_policy_choice, parse_hashes):
        try:
            read(text)
        except (ValueError, SelectError):
            continue


def text_seeds() -> list[bytes]:
    return [
        b"http://[::1]:8000/a?b=c",
        b"https://user@host:99999",
        b"tcp://engine:65535",
        b"tcp://[fe80::1%eth0]:1",
        b"ipc:///tmp/x",
        b"10.0.0.0/8",
        b"::ffff:1.2.3.4/120",
        b"work+strict-tail",
        b"00ff00ff00ff00ff",
        b"localhost:8092 http://localhost:8092",
        b"0" * 40,
    ]
