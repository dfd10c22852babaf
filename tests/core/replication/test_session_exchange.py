"""Tests of sessions between two replicas, message by message."""

import json
from pathlib import Path

import msgspec
import pytest

from select_service.core.identity import PartitionKey
from select_service.core.replication import session_repair
from select_service.core.replication.load_events import PeerFrameError
from select_service.core.replication.session_events import (
    SessionEvent,
    decode_session_event,
    encode_session_event,
)
from select_service.core.replication.session_exchange import SessionDigest, SessionDigestLine
from select_service.core.sessions.session_directory import SessionUse
from select_service.core.sessions.session_settings import SessionSettings
from select_service.core.sessions.session_table import BindingVersion, SessionBinding
from tests.builders import a_select_and_reserve, a_selector, a_worker
from tests.builders.selector_scenes import KEY

RECORDED = bytes.fromhex(
    "87aa6d6f64656c5f6e616d65a16dad726f7574696e675f67726f7570a764656661756c74aa73657373696f6e5f6964"
    "a153a9776f726b65725f696401a764705f72616e6b00a873657175656e6365cf18eb69fa6fecbcfaa97772697465725f"
    "6964cffc7ab107e236f799"
)
"""Frame published by Dynamo 1.6.1 at the first booking of a session."""
HARD = SessionSettings(60.0, is_hard=True, epoch_s=1.8e9)


class Pair:
    """Two replicas with immediate delivery of messages, unless dropped."""

    def __init__(self, sessions=HARD):
        self.selectors = [a_selector(sessions=sessions, seed=k) for k in range(2)]
        self.sent = [[], []]
        self.is_cut = False
        for k, selector in enumerate(self.selectors):
            for worker_id in (1, 2, 3):
                selector.register_worker(a_worker(worker_id))
            selector.followers.sessions.start_sending(
                selector.ledger, lambda payload, k=k: self.carry(k, payload)
            )

    def carry(self, sender, payload):
        self.sent[sender].append(msgspec.msgpack.decode(payload))
        if not self.is_cut:
            other = self.selectors[1 - sender].followers.sessions
            other.apply_event(decode_session_event(payload), 0.0)

    def book(self, k, session, now=0.0, **fields):
        request = a_select_and_reserve(8, session_id=session, **fields)
        return self.selectors[k].select_and_reserve(request, now).selection

    def find_session(self, k, session, now=0.0):
        return self.selectors[k].decisions.sessions.directory.find_session(KEY, session, now)


def use(worker_id, sequence, writer_id=7, dp_rank=0, session="I"):
    version = BindingVersion(sequence, writer_id)
    return SessionUse(KEY, session, SessionBinding(worker_id, dp_rank, version))


def test_dynamos_frame_is_read_and_ours_begins_like_it():
    event = decode_session_event(RECORDED)
    assert event.use.key == PartitionKey("m", "default")
    assert (event.use.session_id, event.use.binding.rank) == ("S", (1, 0))
    ours = encode_session_event(event)
    # One byte for the number of fields, then Dynamo's own frame.
    assert ours[1 : len(RECORDED)] == RECORDED[1:]
    assert decode_session_event(ours) == event
    assert decode_session_event(encode_session_event(SessionEvent(event.use, True))).is_ended


def frame(**changes):
    fields = msgspec.msgpack.decode(RECORDED) | changes
    return msgspec.msgpack.encode({k: v for k, v in fields.items() if v is not ...})


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        frame(session_id="x" * 257),
        frame(sequence=-1),
        frame(sequence=1.5),
        frame(worker_id=...),
        frame(writer_id=...),
        frame(routing_group=...),
        frame(tenant_id="other"),
        frame(model_name="m" * 9000),
        msgspec.msgpack.encode(list(msgspec.msgpack.decode(RECORDED).values())),
    ],
)
def test_malformed_frames_are_refused(payload):
    with pytest.raises(PeerFrameError):
        decode_session_event(payload)


def test_missing_rank_and_tenant_id_are_read():
    assert decode_session_event(frame(dp_rank=...)).use.binding.dp_rank is None
    assert decode_session_event(frame(dp_rank=None)).use.binding.dp_rank is None
    renamed = decode_session_event(frame(routing_group=..., tenant_id="g"))
    assert renamed.use.key.tenant_id == "g"


def test_a_use_is_sent_at_every_booking_and_every_end():
    pair = Pair()
    pair.book(0, "S", allowed_worker_ids=[2], reservation_id="a")
    pair.book(0, "S", reservation_id="b")
    assert len(pair.sent[0]) == 2
    pair.selectors[0].complete_prefill("a", 1.0)
    pair.selectors[0].free_reservation("a", 1.0)
    pair.selectors[0].free_reservation("b", 1.0)
    assert len(pair.sent[0]) == 4
    assert len({(m["sequence"], m["writer_id"]) for m in pair.sent[0]}) == 1
    assert pair.sent[1] == []
    # The other replica follows, and keeps the version of the first.
    assert pair.book(1, "S", 2.0).worker_id == 2
    assert pair.sent[1][0]["writer_id"] == pair.sent[0][0]["writer_id"]
    assert pair.find_session(1, "S", 2.0).binding.context_tokens == 8


def test_versions_decide_and_never_the_order_of_arrival():
    exchange = Pair().selectors[0].followers.sessions
    bound = exchange.directory.find_session

    def apply(*given, **fields):
        return exchange.apply_event(SessionEvent(use(*given, **fields)), 0.0)

    assert apply(2, 5) is None
    assert apply(1, 4) == "stale"
    assert apply(1, 5, 6) == "stale"
    assert bound(KEY, "I", 0.0).binding.worker_id == 2
    assert apply(1, 5, 8) is None
    assert bound(KEY, "I", 0.0).binding.worker_id == 1
    assert apply(3, 9) is None
    assert apply(3, 9) is None
    assert apply(2, 9) == "stale"
    unknown = use(2, 5)._replace(key=PartitionKey("other", "default"))
    assert exchange.apply_event(SessionEvent(unknown), 0.0) == "unknown_partition"


def test_a_frame_cannot_poison_the_versions():
    selector = a_selector(sessions=HARD)
    selector.register_worker(a_worker(1))
    exchange = selector.followers.sessions
    hour_ahead = int((1.8e9 + 3700) * 1e9)
    assert exchange.apply_event(SessionEvent(use(1, hour_ahead)), 0.0) == "lead"
    assert exchange.apply_event(SessionEvent(use(1, 2**64 - 1)), 0.0) == "lead"
    assert exchange.apply_event(SessionEvent(use(1, int(1.8e18))), 0.0) is None
    assert exchange.directory.ignored_leads == 2
    # The end of a session poisons nothing either: the booking stays, and later versions count.
    assert exchange.apply_event(SessionEvent(use(1, 2**64 - 1), True), 0.0) == "lead"
    assert exchange.apply_event(SessionEvent(use(1, int(1.8e18) + 1)), 0.0) is None
    assert exchange.directory.find_session(KEY, "I", 0.0) is not None


def test_replicas_agree_after_a_message_without_a_rank():
    pair = Pair()
    for selector in pair.selectors:
        event = SessionEvent(use(1, int(1.8e18), dp_rank=None, session="S"))
        assert selector.followers.sessions.apply_event(event, 0.0) is None
    pair.book(0, "S")
    assert pair.find_session(1, "S").binding == pair.find_session(0, "S").binding
    assert pair.find_session(1, "S").binding.dp_rank == 0


def test_a_digest_costs_no_more_than_its_rows_and_every_line_has_its_turn(monkeypatch):
    exchange = Pair().selectors[0].followers.sessions
    for number in range(9):
        exchange.apply_event(SessionEvent(use(1, number + 1, session=str(number))), 0.0)
    monkeypatch.setattr(session_repair, "SUMMED_ROWS_MAX", 20)
    lines = [SessionDigestLine(*KEY, False, [k] * 64) for k in range(5)]
    compared, differing = [], exchange.differing_parts

    def record_line(line, now):
        compared.append(line.sums[0])
        return differing(line, now)

    monkeypatch.setattr(exchange, "differing_parts", record_line)
    agreement = session_repair.SessionAgreement()
    for number in range(1, 6):
        digest = SessionDigest(router_id=9, number=number, lines=lines)
        agreement.record_digest(digest, exchange, 0.0)
    # Ten rows a line: two lines reach the limit.
    assert compared == [0, 1, 2, 3, 4] * 2


def test_a_restarted_replica_takes_no_live_session_away():
    pair = Pair(HARD)
    first, second = (s.decisions.sessions.directory for s in pair.selectors)
    for now in (0.0, 14.0, 15.0):
        first.expire_sessions(now)
    pair.is_cut = True
    pair.book(0, "S", 15.0, allowed_worker_ids=[1])
    live = pair.find_session(0, "S", 15.0).binding
    pair.is_cut = False
    # The second replica has just started, is empty, and binds the session to another rank.
    assert pair.book(1, "S", 16.0, allowed_worker_ids=[2]).worker_id == 2
    assert pair.find_session(0, "S", 16.0).binding == live
    # The first replica corrects the binding at once.
    assert pair.find_session(1, "S", 16.0).binding == live
    assert pair.book(1, "S", 17.0).worker_id == 1
    assert len(second) == 1


def test_an_end_reaches_the_others_and_nothing_revives_it():
    pair = Pair()
    pair.book(0, "S", allowed_worker_ids=[2], reservation_id="a")
    late = encode_session_event(SessionEvent(use(2, 1)._replace(session_id="S")))
    views = pair.selectors[0].session_views
    assert views.end_session(KEY, "S", 1.0).session.leases == 1
    assert pair.find_session(1, "S") is None
    last = pair.sent[0][-1]
    assert last["ended"] is True
    replayed = decode_session_event(msgspec.msgpack.encode(pair.sent[0][0]))
    assert pair.selectors[1].followers.sessions.apply_event(replayed, 1.0) == "ended"
    assert decode_session_event(late).is_ended is False
    # A new booking is a new session, with a higher version.
    pair.book(0, "S", 2.0, allowed_worker_ids=[3])
    assert pair.find_session(1, "S", 2.0).binding.worker_id == 3


def test_the_final_turn_ends_the_session_everywhere():
    pair = Pair(SessionSettings(60.0, epoch_s=1.8e9))
    context = {"session_id": "S", "session_final": True}
    pair.book(0, None, session_context=context, reservation_id="a")
    assert pair.find_session(1, "S") is not None
    pair.selectors[0].free_reservation("a", 1.0)
    assert pair.find_session(1, "S", 1.0) is None


def test_recorded_injections_have_the_recorded_effects():
    path = Path(__file__).parents[2] / "data" / "session_frames_1_6.json"
    exchange = Pair().selectors[0].followers.sessions
    for step in json.loads(path.read_text()):
        try:
            event = decode_session_event(bytes.fromhex(step["payload"]))
            exchange.apply_event(event, 0.0)
        except PeerFrameError:
            pass
        found = exchange.directory.find_session(KEY, step["session_id"], 0.0)
        bound = None if found is None else found.binding.worker_id
        if step["bound"] is not None:
            assert bound == step["bound"], step["note"]
