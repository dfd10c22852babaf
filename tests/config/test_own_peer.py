"""Tests that a replica leaves itself out of the lists of peers, which all replicas may share."""

import pytest

from select_service.config.own_peer import other_endpoints, other_urls
from select_service.config.settings_loader import parse_config

SYNC = "tcp://s-0.s:9092,tcp://s-1.s:9092,tcp://S-2.s:9092"
URLS = "http://s-0.s:8092,http://s-1.s:8092,http://s-2.s:8092/"


@pytest.mark.parametrize("own", [0, 1, 2])
def test_each_of_three_replicas_keeps_the_two_others(own):
    config = parse_config(
        [
            *("--replica-sync-port", "9092", "--replica-sync-peers", SYNC),
            *("--indexer-peers", URLS, "--advertise-url", f"http://s-{own}.s:8092"),
        ],
        {},
    )
    found = {peer.lower() for peer in config["replica_sync_peers"]}
    assert found == {f"tcp://s-{i}.s:9092" for i in range(3) if i != own}
    urls = {url.rstrip("/") for url in config["indexer_peers"]}
    assert urls == {f"http://s-{i}.s:8092" for i in range(3) if i != own}


def test_without_an_advertised_url_lists_stay_as_they_are():
    config = parse_config(["--replica-sync-port", "9092", "--replica-sync-peers", SYNC], {})
    assert len(config["replica_sync_peers"]) == 3
    assert other_urls(("http://s:8092",), None) == ("http://s:8092",)


def test_another_port_or_scheme_of_the_same_host_is_another_peer():
    own = "http://s:8092"
    endpoints = ("tcp://s:9093", "ipc:///run/s", "tcp://s2:9092")
    assert other_endpoints(endpoints, own, 9092) == endpoints
    urls = ("http://s:8093", "https://s:8092", "http://s:8092/path")
    assert other_urls(urls, own) == urls


def test_ports_that_go_without_saying_and_brackets_are_understood():
    assert other_urls(("http://s:80/",), "http://s") == ()
    assert other_endpoints(("tcp://[::1]:9092",), "http://[::1]:8092", 9092) == ()
