"""One download, and the pauses between several."""

import pytest

from indexer.dumps.compact_load import LoadLimits
from select_service.edge.keeping.asked_peer import BACKOFF_S_MAX, AskedPeer, backoff_s
from select_service.edge.keeping.peer_dump import Download

LIMITS = LoadLimits(1000)
RETRY_UNTIL = 10.0


@pytest.mark.parametrize("url", ["http://a..b:80", "http://\u00e9" + "e" * 70])
def test_a_name_that_cannot_be_encoded_is_an_error_like_any_other(url):
    download = Download(url, LIMITS)
    download.start()
    download.join()
    assert download.answer is None
    assert download.error.startswith("UnicodeError: ")


def test_pauses_grow_to_a_bound():
    pauses = [backoff_s(failures) for failures in range(100)]
    assert pauses[:5] == [0.1, 0.2, 0.4, 0.8, BACKOFF_S_MAX]
    assert max(pauses) == BACKOFF_S_MAX


def test_the_last_try_is_at_the_limit():
    """Time is given here, so a peer that nobody serves fails at once, at every try."""
    peer = AskedPeer("http://127.0.0.1:1", LIMITS)
    now, tries = 0.0, 0
    while peer.is_awaited(now, None):
        begun = peer.reading
        peer._download.join()
        peer.look(now, RETRY_UNTIL)
        while peer.reading is begun and peer.is_awaited(now, None):
            now = round(now + 0.1, 6)
            peer.look(now, RETRY_UNTIL)
        tries += 1
    assert now == RETRY_UNTIL
    assert tries == 14
