"""Tests that addresses within reach of others require API keys or an explicit flag."""

import pytest

from select_service.config.open_interfaces import (
    allowed_hosts,
    check_open_interfaces,
    host_header_values,
    is_replica_port_unauthenticated,
    is_unauthenticated,
)
from select_service.config.settings_loader import ConfigError, parse_config
from select_service.net.allowed_hosts import is_loopback

KEYS = ("--api-keys-file", "keys.toml")


def config_of(*flags):
    return parse_config(flags, {})


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LocalHost"]
)
def test_loopback_is_for_this_machine(host):
    assert is_loopback(host)
    check_open_interfaces(config_of("--host", host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "selector-a", "localhost.evil", "*"])
def test_other_addresses_need_keys_or_a_word(host):
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"--api-keys-file.*--insecure"):
        check_open_interfaces(config_of("--host", host))
    check_open_interfaces(config_of("--host", host, "--insecure"))
    check_open_interfaces(config_of("--host", host, *KEYS))


def test_a_service_is_open_if_others_reach_it_without_a_key():
    assert not is_unauthenticated(config_of())
    assert is_unauthenticated(config_of("--host", "0.0.0.0", "--insecure"))
    assert not is_unauthenticated(config_of("--host", "0.0.0.0", "--insecure", *KEYS))
    assert not is_unauthenticated(config_of("--insecure"))


SYNC = ("--replica-sync-port", "9092")
SYNC_KEYS = ("--replica-key-file", "a.key", "--replica-keys-file", "replicas.toml")
ANYWHERE = ("--host", "0.0.0.0", *KEYS)


@pytest.mark.parametrize("open_", [(*ANYWHERE, *SYNC), ("--replica-sync-host", "10.0.0.1", *SYNC)])
def test_replicas_that_others_reach_need_keys_or_a_word(open_):
    with pytest.raises(ConfigError, match=r"--replica-keys-file.*--replica-sync-insecure"):
        check_open_interfaces(config_of(*open_))
    check_open_interfaces(config_of(*open_, *SYNC_KEYS))
    check_open_interfaces(config_of(*open_, "--replica-sync-insecure"))
    assert is_replica_port_unauthenticated(config_of(*open_, "--replica-sync-insecure"))
    assert not is_replica_port_unauthenticated(config_of(*open_, *SYNC_KEYS))


@pytest.mark.parametrize("flags", [SYNC, (*ANYWHERE, *SYNC, "--replica-sync-host", "127.0.0.1")])
def test_replicas_on_loopback_need_nothing(flags):
    check_open_interfaces(config_of(*flags))
    assert not is_replica_port_unauthenticated(config_of(*flags))


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ((), ("localhost",)),
        (KEYS, None),
        (("--host", "0.0.0.0", "--insecure"), None),
        (("--allowed-hosts", "a.example,.b.example"), ("a.example", ".b.example", "localhost")),
        (("--host", "0.0.0.0", *KEYS, "--allowed-hosts", "A.example"), ("a.example",)),
        (("--allowed-hosts", "*"), None),
        (("--allowed-hosts", "a,*"), None),
    ],
)
def test_which_names_count(flags, names):
    assert allowed_hosts(config_of(*flags)) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "http://a",
        "a:80",
        "a/b",
        "a b",
        "*.a",
        "..a",
        "a..b",
        ",".join(map(str, range(65))),
    ],
)
def test_a_name_is_a_name(text):
    with pytest.raises(ConfigError, match="--allowed-hosts"):
        config_of("--allowed-hosts", text) if text else config_of("--allowed-hosts", " ")


def test_usual_values_are_those_that_clients_send():
    assert host_header_values(("localhost", ".a"), 80) == [
        b"localhost:80",
        b"localhost",
        b"127.0.0.1:80",
        b"127.0.0.1",
        b"[::1]:80",
        b"[::1]",
    ]
