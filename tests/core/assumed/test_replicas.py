"""Tests of replicas with equal assumptions, from the block hashes sent with bookings."""

import numpy as np
import pytest

from select_service.core.identity import PartitionKey
from select_service.core.replication import load_events
from select_service.core.replication.cleared_caches import (
    CLEARED_BYTES_MAX,
    CLEARS_KEPT_S,
    CLEARS_MAX,
    CLEARS_PER_TURN,
    CacheClear,
    ClearedCaches,
    decode_clears,
)
from select_service.core.replication.load_events import (
    BLOCK_HASHES_MAX,
    LoadEventEncoder,
    PeerFrameError,
    ReservationAdmitted,
    decode_event,
)
from tests.core.assumed.scenes import assuming_selector, book, overlaps, register, run_turns

PROMPT = range(20)


def two_selectors(**rules):
    one, other = assuming_selector(**rules), assuming_selector()
    frames, encoder = [], LoadEventEncoder()
    one.followers.replicas.start_sending(lambda event: frames.append(encoder.encode_event(event)))
    for selector in (one, other):
        register(selector, 1)
        register(selector, 2)
    other.followers.replicas.router_id += 1
    return one, other, frames


def apply(selector, frames, now=1.0):
    for frame in frames:
        selector.followers.replicas.apply_event(decode_event(frame), now)
    frames.clear()


def test_the_other_replica_assumes_the_same():
    one, other, frames = two_selectors()
    book(one, "a", PROMPT)
    apply(other, frames)
    assert overlaps(other, PROMPT) == {1: (5, 5), 2: (0, 0)}
    one.free_reservation("a", 2.0)
    apply(other, frames, 2.0)
    assert overlaps(other, PROMPT) == {1: (5, 5), 2: (0, 0)}


def test_frames_without_assumptions_have_no_block_hashes():
    one, other, frames = two_selectors(assumes_without_events=False)
    book(one, "a", PROMPT)
    assert b"block_hashes" not in frames[0]
    apply(other, frames)
    assert overlaps(other, PROMPT) == {1: (0, 0), 2: (0, 0)}


@pytest.mark.parametrize("n_blocks", [0, 1, 23, 24, 5000, 100_000])
def test_block_hashes_survive_the_wire_up_to_their_limit(n_blocks):
    hashes = np.random.default_rng(1).integers(0, 2**64, n_blocks, np.uint64)
    event = ReservationAdmitted(
        model_name="m",
        tenant_id="t",
        block_size=16,
        reservation_id="r",
        rank=(1, 0),
        router_id=7,
        sequence_hashes=hashes,
        block_hashes=hashes,
    )
    frame = LoadEventEncoder().encode_event(event)
    assert len(frame) < load_events.FRAME_BYTES_MAX
    found = decode_event(frame)
    assert np.array_equal(found.sequence_hashes, hashes)
    assert np.array_equal(found.block_hashes, hashes[:BLOCK_HASHES_MAX])


def test_garbage_as_block_hashes_makes_the_frame_unreadable():
    event = ReservationAdmitted(
        model_name="m",
        tenant_id="t",
        block_size=16,
        reservation_id="r",
        rank=(1, 0),
        router_id=7,
        sequence_hashes=np.array([1], np.uint64),
        block_hashes=np.array([1], np.uint64),
    )
    frame = LoadEventEncoder().encode_event(event)
    with pytest.raises(PeerFrameError):
        decode_event(frame.replace(b"block_hashes\x91\x01", b"block_hashes\xa1x"))


def send_clears(one, other, now):
    payload = one.followers.replicas.cleared_caches.make_message(now)
    if payload is not None:
        other.followers.replicas.cleared_caches.receive(decode_clears(payload), now)
        other.followers.replicas.cleared_caches.run_turn(now)
        run_turns(other, now)
    return payload is not None


def test_a_cleared_cache_is_cleared_at_the_other_replica():
    one, other, frames = two_selectors()
    other.followers.replicas.cleared_caches.router_id += 1
    book(one, "a", PROMPT)
    book(one, "b", range(100, 120))
    one.free_reservation("b", 2.0)
    apply(other, frames, 2.0)
    one.followers.assumptions.clear_cache(1, None, 3.0)
    assert send_clears(one, other, 3.1)
    assert overlaps(other, PROMPT)[1] == (5, 5), "prompts of live reservations stay"
    assert overlaps(other, range(100, 120))[1] == (0, 0)
    assert not send_clears(one, other, 3.2), "a clear is repeated once a second"
    assert not send_clears(other, one, 3.2), "nothing is forwarded"


def test_a_lost_clear_is_made_up_for_by_the_next_message_and_spares_later_turns():
    one, other, frames = two_selectors()
    other.followers.replicas.cleared_caches.router_id += 1
    book(one, "a", PROMPT, session_id="s")
    book(one, "b", range(100, 120))
    for name in ("a", "b"):
        one.free_reservation(name, 2.0)
    apply(other, frames, 2.0)
    one.followers.assumptions.clear_cache(1, 0, 3.0)
    assert one.followers.replicas.cleared_caches.make_message(3.0) is not None  # lost
    book(one, "c", PROMPT, now=10.0)
    apply(other, frames, 10.0)
    one.free_reservation("c", 11.0)
    apply(other, frames, 11.0)
    assert send_clears(one, other, 60.0)
    assert overlaps(other, PROMPT)[1] == (5, 5)
    assert overlaps(other, range(100, 120))[1] == (0, 0)
    book(other, "d", range(100, 120), now=61.0)
    other.free_reservation("d", 61.0)
    assert send_clears(one, other, 62.0)
    assert overlaps(other, range(100, 120))[1] == (5, 5), "a clear counts once"
    assert not send_clears(one, other, 3.0 + CLEARS_KEPT_S)


def test_clears_of_peers_are_applied_in_bounded_turns():
    caches, applied = ClearedCaches(1), []
    caches.forget = lambda *clear: applied.append(clear)
    sender = ClearedCaches(2)
    for worker_id in range(2 * CLEARS_MAX):
        sender.record_clear(CacheClear(PartitionKey("m", "t"), worker_id, None, 1.0))
    message = decode_clears(sender.make_message(1.0))
    assert [row.worker_id for row in message.rows] == list(range(CLEARS_MAX, 2 * CLEARS_MAX))
    assert caches.receive(message, 1.0) is None
    assert caches.receive(message, 2.0) is None, "known"
    assert caches.run_turn(2.0) == CLEARS_PER_TURN == len(applied)
    while caches.run_turn(2.0):
        pass
    assert [each[1] for each in applied] == list(range(CLEARS_MAX, 2 * CLEARS_MAX))
    assert sender.receive(message, 1.0) == "own"
    with pytest.raises(PeerFrameError):
        decode_clears(b"\xc1")
    with pytest.raises(PeerFrameError):
        decode_clears(bytes(CLEARED_BYTES_MAX + 1))
