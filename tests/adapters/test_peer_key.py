"""Tests of the key for other selectors, which goes to configured selectors alone."""

import asyncio
from types import SimpleNamespace

import pytest

from indexer.dumps.compact_reader import LoadLimits
from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import HttpClient
from select_service.adapters.persistence.peer_dump_download import PeerDumpDownload
from select_service.adapters.replicas.peer_list import PeerListUnavailable, fetch_page
from select_service.adapters.replicas.peer_state import peer_list_location
from select_service.core.load.reservations import ReservationFilter
from tests.builders.in_thread import InThread
from tests.builders.keys import entry, keys_file, secret
from tests.builders.polling import eventually_on_loop


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    path = keys_file(tmp_path_factory.mktemp("keys"), entry("peer", "replica"))
    with InThread("--api-keys-file", str(path)) as service:
        yield service


def fetch_list(guarded, key_file, *, with_key):
    """Return the list of a selector."""

    async def ask():
        http = HttpClient(Resolver(), key_file=key_file)
        try:
            url = f"http://127.0.0.1:{guarded.port}"
            return await fetch_page(http, url, ReservationFilter(), with_key=with_key)
        finally:
            await http.close()

    return asyncio.run(ask())


def test_a_selector_that_we_know_gets_the_key_of_the_file(guarded, tmp_path):
    key_file = tmp_path / "key"
    key_file.write_text(secret("peer") + "\n")
    assert fetch_list(guarded, key_file, with_key=True).total == 0
    with pytest.raises(PeerListUnavailable, match="status 401"):
        fetch_list(guarded, key_file, with_key=False)
    with pytest.raises(PeerListUnavailable, match="status 401"):
        fetch_list(guarded, None, with_key=True)


@pytest.mark.parametrize("content", [None, b"", b"two words", b"a\r\nx: y", b"\xff", b"x" * 70_000])
def test_a_file_without_a_key_is_an_error_without_a_request(guarded, tmp_path, content):
    key_file = tmp_path / "key"
    if content is not None:
        key_file.write_bytes(content)
    with pytest.raises(PeerListUnavailable, match="key"):
        fetch_list(guarded, key_file, with_key=True)


def a_peer(endpoint, url=None):
    return SimpleNamespace(
        replica=None,
        subscriber=SimpleNamespace(endpoint=endpoint),
        agreement=SimpleNamespace(url=url, port=8092),
    )


@pytest.mark.parametrize(
    ("endpoint", "url", "is_told"),
    [
        ("tcp://selector-b:9092", None, True),
        ("tcp://selector-b:9092", "https://selector-b:443", True),
        ("tcp://selector-b:9092", "http://evil:8092", False),
        ("tcp://selector-b:9092", "http://selector-b@evil:8092", False),
        ("tcp://[::1]:9092", None, True),
        ("ipc:///run/peer", None, False),
    ],
)
def test_the_key_never_goes_to_a_url_that_a_peer_sent(endpoint, url, is_told):
    place = peer_list_location(a_peer(endpoint, url), ("http", 8092), trusts_urls=True)
    assert place.with_key == is_told


def test_a_service_with_tls_sends_the_key_over_tls_alone():
    own, endpoint = ("https", 8092), "tcp://selector-b:9092"
    for url, is_secret in (
        (None, True),
        ("https://selector-b:443", True),
        ("http://selector-b:8092", False),
    ):
        place = peer_list_location(a_peer(endpoint, url), own, trusts_urls=False)
        assert place.with_key == is_secret
        assert place.url == (url or "https://selector-b:8092")


def test_every_use_reads_the_file_again(guarded, tmp_path):
    key_file = tmp_path / "key"
    key_file.write_text("wrong")
    with pytest.raises(PeerListUnavailable, match="status 401"):
        fetch_list(guarded, key_file, with_key=True)
    key_file.write_text(secret("peer"))
    assert fetch_list(guarded, key_file, with_key=True).total == 0


def fetch_dump(guarded, key_file):
    """Return the download of a peer's dump."""

    async def load():
        http = HttpClient(Resolver(), key_file=key_file)
        download = PeerDumpDownload(f"http://127.0.0.1:{guarded.port}", LoadLimits(1000), http)
        await eventually_on_loop(lambda: download.is_over)
        await http.close()
        return download

    return asyncio.run(load())


def test_recovery_shows_the_key_to_its_peers(guarded, tmp_path):
    key_file = tmp_path / "key"
    key_file.write_text(secret("peer"))
    assert fetch_dump(guarded, key_file).answer is not None
    assert "401" in fetch_dump(guarded, None).error
