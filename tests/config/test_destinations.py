"""Tests of the settings for allowed connections of the service."""

from ipaddress import ip_network

import pytest

from select_service.config.egress_settings import make_egress_policy
from select_service.config.settings_loader import ConfigError, parse_config
from select_service.net.egress_policy import EgressPolicy

KEYS = ("--api-keys-file", "keys.toml")


def of(*flags):
    return make_egress_policy(parse_config(flags, {}))


@pytest.mark.parametrize(
    ("flags", "loopback"),
    [
        ((), True),
        (("--host", "::1"), True),
        (("--host", "localhost"), True),
        (KEYS, False),
        (("--host", "0.0.0.0", "--insecure"), False),
        (("--host", "0.0.0.0", *KEYS), False),
        (("--connect-to", "10.0.0.0/8"), True),
        (("--host", "0.0.0.0", *KEYS, "--connect-to-loopback"), True),
        (("--connect-to-loopback=false",), False),
    ],
)
def test_loopback_is_for_a_service_without_remote_callers(flags, loopback):
    assert of(*flags).loopback is loopback


def test_the_list():
    assert of() == EgressPolicy()
    listed = of("--connect-to", " 10.0.0.0/8, .SVC.cluster.local,fd00:1::/64,192.168.0.1,vllm-0 ,")
    networks = tuple(map(ip_network, ("10.0.0.0/8", "fd00:1::/64", "192.168.0.1/32")))
    assert listed == EgressPolicy(networks, (".svc.cluster.local", "vllm-0"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("169.254.0.0/16", "invalid network `169.254.0.0/16`: it is link-local"),
        ("127.0.0.1", "--connect-to-loopback"),
        ("10.0.0.1/8", "host bits are set, did you mean `10.0.0.0/8`?"),
        ("10.0.0", "invalid network"),
        ("http://vllm", "invalid network"),
        ("*.svc", "invalid host name"),
        ("vllm:8000", "invalid network"),
        (",", "1 to 64"),
        (",".join(f"h{n}" for n in range(65)), "1 to 64"),
    ],
)
def test_nonsense_stops_the_start(text, why):
    with pytest.raises(ConfigError, match=why):
        of("--connect-to", text)


@pytest.mark.parametrize(
    "flags",
    [
        ("--indexer-peers", "http://169.254.169.254/"),
        ("--indexer-peers", "http://10.0.0.1:1,http://localhost:1", "--connect-to-loopback=0"),
        ("--indexer-peers", "http://10.9.0.1:1", "--connect-to", "10.0.0.0/16"),
        ("--replica-sync-port", "1", "--replica-sync-peers", "tcp://[fe80::1]:1"),
        ("--replica-sync-port", "1", "--replica-sync-peers", "ipc:///a", *KEYS),
    ],
)
def test_peers_that_may_not_be_connected_to_stop_the_start(flags):
    with pytest.raises(ConfigError, match=r"-peers: .* is refused: "):
        of(*flags)


def test_peers_with_host_names_are_checked_at_the_lookup():
    assert of("--indexer-peers", "http://selector-a:8092", *KEYS).loopback is False
