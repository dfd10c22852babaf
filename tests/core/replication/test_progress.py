"""Tests of prefill progress between replicas: the sender's messages and the receiver's accounts."""

import msgspec
import numpy as np
import pytest

from indexer.tiers import Tier
from select_service.core.identity import Rank
from select_service.core.placement.prompt import ISL_TOKENS_MAX
from select_service.core.placement.router_config import RouterConfig
from select_service.core.replication import prefill_progress as replica_progress
from select_service.core.replication.load_events import PeerFrameError
from select_service.core.replication.prefill_progress import (
    MESSAGES_MAX,
    PROGRESS_BYTES_MAX,
    ROWS_MAX,
    PrefillProgress,
    ProgressExchange,
    ProgressMessage,
    decode_progress,
    encode_progress,
)
from select_service.core.replication.replica_liveness import LIVENESS_TIMEOUT_S
from tests.builders import a_select_and_reserve, a_selector, a_worker

BLOCKS = 10
SIZE = 4


def hashes(number):
    """Return the hashes of a prompt of BLOCKS blocks."""
    return np.arange(1000 * number, 1000 * number + BLOCKS, dtype=np.uint64) + np.uint64(1)


class Pair:
    """Two replicas with the same engines; tests carry the messages."""

    def __init__(self, policy="work", workers=2):
        self.both = [a_selector(RouterConfig(policy=policy), seed=seed) for seed in (1, 2)]
        self.here, self.there = self.both
        self.said = {id(selector): [] for selector in self.both}
        for selector, other in (self.both, self.both[::-1]):
            for worker_id in range(workers):
                selector.register_worker(a_worker(worker_id))
            selector.followers.replicas.start_sending(self.said[id(selector)].append)
            selector.followers.replicas.liveness.record_digest(
                other.followers.replicas.router_id, 0.0
            )

    def book(self, selector, name, number, worker_id=0):
        """Book a prompt at one replica and pass the admission on to the other."""
        path = hashes(number).tolist()
        asked = a_select_and_reserve(
            reservation_id=name,
            token_ids=None,
            block_hashes=path,
            sequence_hashes=path,
            isl_tokens=BLOCKS * SIZE,
            pinned_worker={"worker_id": worker_id, "dp_rank": 0},
        )
        selector.select_and_reserve(asked, 0.0)
        self.carry(selector)

    def carry(self, selector):
        (other,) = (s for s in self.both if s is not selector)
        events = self.said[id(selector)]
        while events:
            other.followers.replicas.apply_event(events.pop(0), 0.0)

    def compute(self, number, n, worker_id=0):
        """Announce the first blocks of a prompt to both replicas."""
        for selector in self.both:
            (partition,) = selector.fleet.partitions.values()
            writer = partition.table.writer_of(Rank(worker_id, 0))
            writer.store(Tier.GPU, None, hashes(number)[:n], hashes(number)[:n])

    def send_progress(self, selector, now=0.0):
        """Run a round over the wire format, apply the messages at the peer; return {id: tokens}."""
        (other,) = (s for s in self.both if s is not selector)
        payloads = []
        while selector.followers.replicas.progress.run_turn(now, payloads.append):
            pass
        found = {}
        for payload in payloads:
            message = decode_progress(payload)
            assert message.router_id == selector.followers.replicas.router_id
            assert other.followers.replicas.progress.apply_progress(message)
            found |= {row.reservation_id: row.done for row in message.rows}
        return found

    def work_left(self, worker_id=0):
        """Return the work left on a rank, as counted by each replica."""
        found = []
        for selector in self.both:
            selector.check_invariants()
            (partition,) = selector.fleet.partitions.values()
            slot = partition.table.find_slot(Rank(worker_id, 0))
            found.append(int(partition.load.prefills.work_left[slot]))
        return found


def test_a_peer_counts_the_same_remaining_work_as_the_admitting_replica():
    pair = Pair()
    pair.book(pair.here, "a", 1)
    pair.compute(1, 3)
    assert pair.work_left() == [40, 40]
    assert pair.send_progress(pair.here) == {"a": 12}
    assert pair.work_left() == [28, 28]
    assert pair.send_progress(pair.here) == {}, "only what is new is told"
    pair.compute(1, 7)
    assert pair.send_progress(pair.here) == {"a": 28}
    assert pair.work_left() == [12, 12]
    assert pair.send_progress(pair.there) == {}
    pair.here.complete_prefill("a", 0.0)
    pair.carry(pair.here)
    assert pair.work_left() == [0, 0]


def test_received_progress_counts_once_the_prefill_is_the_oldest():
    pair = Pair()
    pair.book(pair.there, "b", 2)
    pair.book(pair.here, "a", 1)
    pair.compute(1, 3)
    assert pair.send_progress(pair.here) == {}, "it is not the oldest"
    message = ProgressMessage(
        router_id=pair.here.followers.replicas.router_id, rows=[PrefillProgress("a", 12)]
    )
    assert pair.there.followers.replicas.progress.apply_progress(message)
    assert pair.work_left() == [80, 80]
    pair.there.free_reservation("b", 0.0)
    assert pair.work_left() == [80, 28]
    pair.carry(pair.there)
    pair.send_progress(pair.here)
    assert pair.work_left() == [28, 28]


def test_done_never_becomes_less_and_is_never_more_than_the_work():
    pair = Pair()
    pair.book(pair.here, "a", 1)
    for done, left in ((12, 28), (4, 28), (12, 28), (99, 0), (ISL_TOKENS_MAX, 0)):
        message = ProgressMessage(
            router_id=pair.here.followers.replicas.router_id, rows=[PrefillProgress("a", done)]
        )
        pair.there.followers.replicas.progress.apply_progress(message)
        assert pair.work_left()[1] == left


def test_only_progress_from_the_admitting_replica_counts():
    pair = Pair()
    pair.book(pair.here, "a", 1)
    rows = [PrefillProgress("unknown", 12), PrefillProgress("a", 12)]
    assert pair.there.followers.replicas.progress.apply_progress(
        ProgressMessage(router_id=77, rows=rows)
    )
    assert pair.here.followers.replicas.progress.apply_progress(
        ProgressMessage(router_id=77, rows=rows)
    )
    assert not pair.here.followers.replicas.progress.apply_progress(
        ProgressMessage(router_id=pair.here.followers.replicas.router_id, rows=rows)
    )
    assert pair.work_left() == [40, 40]


def test_a_prefill_that_is_over_stays_over():
    pair = Pair()
    pair.book(pair.here, "a", 1)
    pair.there.complete_prefill("a", 0.0)
    pair.there.followers.replicas.progress.apply_progress(
        ProgressMessage(
            router_id=pair.here.followers.replicas.router_id, rows=[PrefillProgress("a", 8)]
        )
    )
    assert pair.work_left() == [40, 0]


@pytest.mark.parametrize("policy", ["reference", "work"])
def test_no_progress_is_sent_without_live_peers_or_use(policy):
    pair = Pair(policy)
    pair.book(pair.here, "a", 1)
    pair.compute(1, 3)
    assert pair.send_progress(pair.here, now=LIVENESS_TIMEOUT_S) == {}
    assert pair.send_progress(pair.here) == ({"a": 12} if policy == "work" else {})


def test_messages_and_rounds_are_bounded_and_the_next_round_goes_on(monkeypatch):
    monkeypatch.setattr(replica_progress, "ROWS_MAX", 2)
    workers = 2 * MESSAGES_MAX + 3
    pair = Pair(workers=workers)
    for number in range(workers):
        pair.book(pair.here, f"r{number}", number, number)
        pair.compute(number, 3, number)
    sizes = []

    def record_rows(payload):
        sizes.append(len(decode_progress(payload).rows))

    exchange = ProgressExchange(
        pair.here.fleet.partitions,
        pair.here.ledger.reservations,
        pair.here.followers.replicas.liveness,
        pair.here.followers.replicas.router_id,
    )
    for expected in ([2] * MESSAGES_MAX, [2, 1], []):
        while exchange.run_turn(0.0, record_rows):
            pass
        assert sizes == expected
        sizes.clear()


def test_a_turn_looks_at_some_partitions_only(monkeypatch):
    monkeypatch.setattr(replica_progress, "WALKED_BLOCKS_MAX", 3 * replica_progress.PARTITION_WORK)
    selector = a_selector(RouterConfig(policy="work"))
    for worker_id in range(7):
        selector.register_worker(a_worker(worker_id, tenant_id=f"t{worker_id}"))
    selector.followers.replicas.liveness.record_digest(99, 0.0)
    turns = 1
    while selector.followers.replicas.progress.run_turn(0.0, pytest.fail):
        turns += 1
    assert turns == 3


def test_the_longest_message_is_within_its_bounds():
    rows = [PrefillProgress("\U0001f600" * 512, ISL_TOKENS_MAX)] * ROWS_MAX
    message = ProgressMessage(router_id=2**64 - 1, rows=rows)
    payload = encode_progress(message)
    assert len(payload) <= PROGRESS_BYTES_MAX
    assert decode_progress(payload) == message


@pytest.mark.parametrize(
    "body",
    [
        {"router_id": 1},
        {"router_id": -1, "rows": []},
        {"router_id": 1, "rows": [["a", -1]]},
        {"router_id": 1, "rows": [["a", ISL_TOKENS_MAX + 1]]},
        {"router_id": 1, "rows": [["a"]]},
        {"router_id": 1, "rows": [["a", 1.5]]},
        {"router_id": 1, "rows": [["a" * 513, 1]]},
        {"router_id": 1, "rows": [["a", 1]] * (ROWS_MAX + 1)},
    ],
)
def test_other_messages_than_progress_are_rejected(body):
    with pytest.raises(PeerFrameError):
        decode_progress(msgspec.msgpack.encode(body))


def test_bytes_that_are_cut_or_too_many_are_refused():
    payload = encode_progress(ProgressMessage(router_id=1, rows=[PrefillProgress("a", 1)]))
    for cut in range(len(payload)):
        with pytest.raises(PeerFrameError):
            decode_progress(payload[:cut])
    with pytest.raises(PeerFrameError, match="at most"):
        decode_progress(b"\x80" * (PROGRESS_BYTES_MAX + 1))
