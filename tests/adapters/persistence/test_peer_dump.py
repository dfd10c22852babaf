"""Tests of one download, and of the pauses between several."""

import pytest

from indexer.dumps.compact_reader import LoadLimits
from indexer.sockets.dns_resolver import Resolver
from select_service.adapters.http_get import HttpClient
from select_service.adapters.persistence.peer_dump_download import PeerDumpDownload
from select_service.adapters.persistence.peer_dump_request import (
    BACKOFF_S_MAX,
    PeerDumpRequest,
    backoff_s,
)

LIMITS = LoadLimits(1000)
RETRY_UNTIL = 10.0


BAD_NAMES = [("http://a..b:80", "name not found"), ("http://\u00e9" + "e" * 70, "no URL of HTTP")]


@pytest.mark.parametrize(("url", "error"), BAD_NAMES)
async def test_a_name_that_cannot_be_encoded_is_an_error_like_any_other(url, error):
    http = HttpClient(Resolver())
    download = PeerDumpDownload(url, LIMITS, http)
    await download._task
    await http.close()
    assert download.answer is None
    assert error in download.error


def test_pauses_grow_to_a_bound():
    pauses = [backoff_s(failures) for failures in range(100)]
    assert pauses[:5] == [0.1, 0.2, 0.4, 0.8, BACKOFF_S_MAX]
    assert max(pauses) == BACKOFF_S_MAX


async def test_the_last_try_is_at_the_limit():
    """Check the last try against a peer without a server, which fails at once in simulated time."""

    http = HttpClient(Resolver())
    peer = PeerDumpRequest("http://127.0.0.1:1", LIMITS, http)
    now, tries = 0.0, 0
    while peer.is_awaited(now, None):
        begun = peer.progress
        await peer._download._task
        peer.check_download(now, RETRY_UNTIL)
        while peer.progress is begun and peer.is_awaited(now, None):
            now = round(now + 0.1, 6)
            peer.check_download(now, RETRY_UNTIL)
        tries += 1
    await http.close()
    assert (now, tries) == (RETRY_UNTIL, 14)
