"""Tests of digests of a large fleet: size and comparison do not grow with other replicas' load."""

from collections import Counter

import msgspec
import pytest

from select_service.core.identity import PartitionKey
from select_service.core.load.ledger_memory import LedgerMemory
from select_service.core.load.origin_sums import OriginSum, OriginSums
from select_service.core.replication.digest import (
    LINES_MAX,
    Digest,
    DigestLine,
    LoadDifference,
    decode_digest,
    encode_digest,
    find_differences,
)
from select_service.core.replication.digest import make_lines as digest_lines
from select_service.core.replication.load_events import PeerFrameError
from tests.builders.steps import lines_of as work_of

OWN, PEER, PARTITIONS = 1, 2, 50
KEYS = [PartitionKey(f"m{number}", "default") for number in range(PARTITIONS)]


def sums_of(*origins):
    """Return sums with one reservation in every partition for each origin."""
    sums = OriginSums(LedgerMemory(0.0), lambda key: 4)
    for origin in origins:
        for key in KEYS:
            add(sums, key, origin, OriginSum(1, 10, 7))
    return sums


def add(sums, key, origin, more):
    """Add to the row of an origin, as the ledger's kernels do."""
    number = sums.number_of(key, origin)
    sums._rows[number, :4] += more


def a_digest(*lines, own_only=False):
    return Digest(router_id=PEER, number=1, sent=0, port=1, lines=list(lines), own_only=own_only)


def test_sums_are_found_by_origin_and_gone_with_their_last_reservation():
    sums = sums_of(None, PEER)
    assert (len(sums), list(sums.peer_origins())) == (2 * PARTITIONS, [PEER])
    add(sums, KEYS[0], PEER, OriginSum(0, -4, 0))
    assert sums.sums_of_origin(PEER)[KEYS[0]] == OriginSum(1, 6, 7)
    for number, key in enumerate(KEYS):
        add(sums, key, PEER, OriginSum(-1, -10 if number else -6, -7))
    assert (len(sums), list(sums.peer_origins()), dict(sums.sums_of_origin(PEER))) == (
        PARTITIONS,
        [],
        {},
    )
    assert dict(sums.iterate_sums()) == {(key, None): OriginSum(1, 10, 7) for key in KEYS}


def test_too_many_lines_are_not_made_to_be_left_out():
    few = sums_of(None, *range(10, 11 + LINES_MAX // PARTITIONS))
    many = sums_of(None, *range(10, 60 + LINES_MAX // PARTITIONS))
    costs = []
    for sums in (few, many):
        assert len(sums) > LINES_MAX
        lines, own_only = digest_lines(sums, OWN)
        assert own_only
        assert {(line.origin, line.requests) for line in lines} == {(OWN, 1)}
        assert len(lines) == PARTITIONS
        costs.append(work_of(lambda s=sums: digest_lines(s, OWN)))
    assert costs[0] == costs[1]


def test_an_origin_is_judged_once_for_any_number_of_reservations():
    asked = Counter()

    def is_orphan(origin):
        asked[origin] += 1
        return origin == 11

    sums = sums_of(None, PEER, 10, 11)
    lines = [DigestLine(*key, origin, 1, 10, 7) for key in KEYS[1:] for origin in (PEER, 10, 11)]
    found = find_differences(a_digest(*lines), sums, OWN, is_orphan)
    assert found == {KEYS[0]: LoadDifference(2, 20)}
    assert asked.keys() >= {10, 11}
    assert max(asked.values()) == 1


def test_with_too_many_sums_only_the_senders_are_compared():
    costs = []
    for origins in (LINES_MAX // PARTITIONS, 3 * LINES_MAX // PARTITIONS):
        sums = sums_of(PEER, *range(10, 10 + origins))
        digest = a_digest(DigestLine(*KEYS[0], PEER, 1, 10, 7), DigestLine(*KEYS[1], 10, 5, 0, 0))
        found = find_differences(digest, sums, OWN, lambda origin: True)
        assert found == {key: LoadDifference(1, 10) for key in KEYS[1:]}
        costs.append(work_of(lambda d=digest, s=sums: find_differences(d, s, OWN, bool)))
    assert costs[0] == costs[1]


def test_empty_sums_are_forgotten_except_for_served_partitions():
    served = set(KEYS[1:])
    sums = OriginSums(LedgerMemory(0.0), lambda key: 4 if key in served else None)
    own = {key: sums.number_of(key, None) for key in KEYS}
    for origin in range(10, 500):
        for key in KEYS[:2]:
            add(sums, key, origin, OriginSum(1, 0, origin))
            add(sums, key, origin, OriginSum(-1, 0, -origin))
    assert {key: sums.number_of(key, None) for key in KEYS[1:]} == {k: own[k] for k in KEYS[1:]}
    assert len(sums) == 0
    assert len(sums._subjects) < 3 * PARTITIONS


@pytest.mark.parametrize(
    "url",
    ["http://[", "http://[::1]evil/", "file:///etc/passwd", "http://a@b/", "http://h:99999", "h"],
)
def test_a_digest_with_an_unusable_url_is_rejected(url):
    """Check URLs that would raise on use, in the middle of the round over all peers."""
    with pytest.raises(PeerFrameError, match="url: "):
        decode_digest(encode_digest(msgspec.structs.replace(a_digest(), url=url)))


def test_a_url_of_a_service_is_unchanged():
    for url in (None, "https://selector-a:8092", "http://[::1]:8092/below"):
        assert decode_digest(encode_digest(msgspec.structs.replace(a_digest(), url=url))).url == url


def test_lines_of_a_version_without_prefills_are_compared_in_the_rest():
    class OldLine(msgspec.Struct, array_like=True):
        model_name: str
        tenant_id: str
        origin: int
        requests: int
        prefill_tokens: int
        marks: int

    sums = sums_of(PEER)
    add(sums, KEYS[0], PEER, OriginSum(0, 0, 0, 1))
    lines = [OldLine(*key, PEER, 1, 10, 7) for key in KEYS]
    told = decode_digest(msgspec.msgpack.encode(msgspec.structs.replace(a_digest(), lines=lines)))
    assert find_differences(told, sums, OWN, bool) == {}
    new = [DigestLine(*key, PEER, 1, 10, 7, 0) for key in KEYS]
    assert find_differences(a_digest(*new), sums, OWN, bool) == {KEYS[0]: LoadDifference(1, 0)}
    read = msgspec.msgpack.decode(encode_digest(a_digest(*new)), type=dict)["lines"]
    assert msgspec.convert(read, list[OldLine]) == lines
