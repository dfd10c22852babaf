"""Tests of replica frames: the bytes of the reference, and the same effect on this service."""

import json
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.identity import Rank
from select_service.core.replication.load_events import (
    ARRAY_FORM_BYTES_MAX,
    BUFFERED_BLOCKS,
    MIXED_BLOCKS_MAX,
    SEQUENCE_BLOCKS_MAX,
    LoadEventEncoder,
    PeerFrameError,
    PrefillCompleted,
    ReservationAdmitted,
    ReservationFreed,
    decode_event,
)
from tests.builders import a_selector, a_worker

FILE = Path(__file__).parent / "replica_frames.json"
FRAMES = json.loads(FILE.read_text())
NEWER_FRAMES = json.loads(FILE.with_name("replica_frames_1_6.json").read_text())
RAW_MEMBERS = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
WORKERS = (1, 2)
pack = msgspec.msgpack.encode
encode = LoadEventEncoder().encode_event


def injected_loads(payloads):
    """Return the load of every busy rank after each frame."""
    selector = a_selector()
    for worker_id in WORKERS:
        selector.register_worker(a_worker(worker_id, tenant_id="t", data_parallel_size=2))
    seen = []
    for payload in payloads:
        selector.followers.replicas.apply_event(decode_event(payload), now=0.0)
        rows = next(selector.inspection.partition_loads()).loads
        seen.append(
            {
                f"{row.worker_id}:{row.dp_rank}": [
                    row.potential_prefill_tokens,
                    row.potential_decode_blocks,
                    row.active_requests,
                ]
                for row in rows
                if row.active_requests
            }
        )
    selector.check_invariants()
    return seen


@pytest.mark.parametrize("case", FRAMES["published"], ids=lambda case: case["name"])
def test_an_event_has_the_bytes_of_the_reference_and_the_newer_tenant_key(case):
    theirs = bytes.fromhex(case["payload"])
    assert theirs[0] == 0x84  # a map of four members; this service writes five
    ours = encode(decode_event(theirs))
    assert ours == b"\x85" + theirs[1:] + pack("routing_group") + pack("t")


@pytest.mark.parametrize("case", NEWER_FRAMES["published"], ids=lambda case: case["name"])
def test_an_event_has_the_fields_of_the_newer_reference_and_the_older_tenant_key(case):
    theirs = bytes.fromhex(case["payload"])
    given, ours = RAW_MEMBERS.decode(theirs), RAW_MEMBERS.decode(encode(decode_event(theirs)))
    # Bytes of the members: equal numbers in another width would be another message.
    assert list(given) == ["model_name", "routing_group", "block_size", "event"]
    assert ours == {**given, "tenant_id": given["routing_group"]}


def test_frames_of_either_reference_have_the_same_effect():
    """The newer reference drops the second frame for its tenant name, which is enough here."""
    selector = a_selector()
    for worker_id in WORKERS:
        selector.register_worker(a_worker(worker_id))
    for case in NEWER_FRAMES["received"]:
        event = decode_event(bytes.fromhex(case["payload"]))
        selector.followers.replicas.apply_event(event, now=0.0)
    idle, busy = next(selector.inspection.partition_loads()).loads
    assert (idle.active_requests, busy.active_requests) == (0, 2)
    assert (busy.potential_prefill_tokens, busy.potential_decode_blocks) == (12, 4)


def test_frames_have_the_effect_that_they_have_on_the_reference_except_where_listed():
    """Two effects differ, and so do all later loads, because the reference leaks both bookings.

    An id that is admitted on another rank moves, where the reference books the id twice; a free
    before the admission wins.
    """
    cases = FRAMES["applied"]
    loads = injected_loads([bytes.fromhex(case["payload"]) for case in cases])
    for case, seen in zip(cases, loads, strict=True):
        assert seen == case.get("ours", case["loads"]), case["name"]
    names = [case["name"] for case in cases]
    first = next(case["name"] for case in cases if "ours" in case)
    assert first == "add x1 duplicate other worker"
    assert loads[names.index("add after free")] == {}


def test_an_end_without_a_caller_has_a_further_field():
    plain = decode_event(pack(body(event__data="Free")))
    told = decode_event(encode(msgspec.structs.replace(plain, by_caller=False)))
    assert (plain.by_caller, told.by_caller) == (True, False)
    assert b"by_caller" not in encode(plain)


def body(**changes):
    """Return an admission as plain values; None removes a field."""
    add = {
        "token_sequence": [21, 22],
        "track_prefill_tokens": True,
        "expected_output_tokens": None,
        "prefill_load_hint": {
            "initial_effective_prefill_tokens": 8,
            "expected_prefill_duration": {"secs": 1, "nanos": 2},
        },
    }
    event = {
        "request_id": "x",
        "worker": {"worker_id": 2**64 - 1, "dp_rank": 1},
        "data": {"AddRequest": add},
        "router_id": 777,
        "lora_name": None,
    }
    frame = {"model_name": "m", "tenant_id": "t", "block_size": 4, "event": event}
    for place, value in changes.items():
        *path, name = place.split("__")
        target = frame
        for step in path:
            target = target[step]
        if value is None:
            del target[name]
        else:
            target[name] = value
    return frame


def test_own_work_has_a_further_field_where_it_is_not_the_hint():
    plain = decode_event(pack(body()))
    told = decode_event(encode(msgspec.structs.replace(plain, work=3)))
    assert (plain.work, told.work) == (None, 3)
    assert len(encode(told)) - len(encode(plain)) == len(pack("work")) + len(pack(3))
    assert b"work" not in encode(plain).replace(b"worker", b"")


@pytest.mark.parametrize("work", [-1, 1.5, None, "3", 2**62])
def test_own_work_out_of_range_is_no_event(work):
    data = body()["event"]["data"]
    data["AddRequest"]["work"] = work
    with pytest.raises(PeerFrameError):
        decode_event(pack(body(event__data=data)))


def test_structures_may_be_arrays():
    plain = decode_event(pack(body()))
    hint = [8, None]
    arrays = ["m", "t", 4, ["x", [2**64 - 1, 1], {"AddRequest": [[21, 22], True, None, hint]}, 777]]
    assert repr(decode_event(pack(arrays))) == repr(plain)
    ends = ["m", "t", 4, ["x", [1, 0], "Free", 777, None]]
    assert decode_event(pack(ends)) == decode_event(
        pack(body(event__data="Free", event__worker={"worker_id": 1, "dp_rank": 0}))
    )


def test_either_name_of_the_tenant_will_do_but_not_two_tenants():
    assert decode_event(pack(body(tenant_id=None, routing_group="t"))).tenant_id == "t"
    assert decode_event(pack(body(routing_group="t"))).tenant_id == "t"
    with pytest.raises(PeerFrameError, match="differ"):
        decode_event(pack(body(routing_group="u")))
    with pytest.raises(PeerFrameError, match="no `tenant_id`"):
        decode_event(pack(body(tenant_id=None)))


def test_optional_fields_have_defaults():
    event = decode_event(pack(body(event__data={"AddRequest": {}}, event__lora_name=None)))
    assert (event.sequence_hashes.tolist(), event.prefill_tokens) == ([], 0)
    assert event.track_prefill_tokens
    assert event.lora_name is None


@pytest.mark.parametrize(
    "field", ["model_name", "block_size", "event", "event__request_id", "event__worker"]
)
def test_a_missing_required_field_is_refused(field):
    with pytest.raises(PeerFrameError):
        decode_event(pack(body(**{field: None})))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", -1),
        ("block_size", 4.5),
        ("model_name", 5),
        ("model_name", "m" * 513),
        ("event__request_id", "x" * 513),
        ("event__worker", {"worker_id": -1, "dp_rank": 0}),
        ("event__worker", {"worker_id": 1, "dp_rank": 2**32}),
        ("event__router_id", "7"),
        ("event__data", "Unknown"),
        ("event__data", {"AddRequest": {"token_sequence": ["x"]}}),
        ("event__data", {"AddRequest": {"token_sequence": [-1]}}),
        (
            "event__data",
            {"AddRequest": {"prefill_load_hint": {"initial_effective_prefill_tokens": 2**63}}},
        ),
    ],
)
def test_a_value_out_of_range_is_refused(field, value):
    with pytest.raises(PeerFrameError):
        decode_event(pack(body(**{field: value})))


def test_sequences_have_a_bound():
    too_many = pack(body()).replace(
        pack([21, 22]), b"\xdd" + (SEQUENCE_BLOCKS_MAX + 1).to_bytes(4, "big")
    )
    with pytest.raises(PeerFrameError):
        decode_event(too_many + b"\0" * (SEQUENCE_BLOCKS_MAX + 1))
    event = decode_event(pack(body()))
    long = msgspec.structs.replace(
        event, sequence_hashes=np.zeros(SEQUENCE_BLOCKS_MAX + 1, np.uint64)
    )
    with pytest.raises(ValueError, match="blocks"):
        encode(long)


def test_an_unusual_form_has_a_bound_of_its_own():
    def arrays(n):
        hashes = [2**64 - 1] * n
        return pack(["m", "t", 4, ["x", [1, 1], {"AddRequest": [hashes]}, 777]])

    assert (
        len(decode_event(arrays(ARRAY_FORM_BYTES_MAX // 10)).sequence_hashes)
        == ARRAY_FORM_BYTES_MAX // 10
    )
    with pytest.raises(PeerFrameError):
        decode_event(arrays(ARRAY_FORM_BYTES_MAX // 9))
    with pytest.raises(PeerFrameError):
        decode_event(pack([[]] * ARRAY_FORM_BYTES_MAX))


def test_hashes_that_become_python_objects_have_a_bound_of_their_own():
    event = body()
    for n in (MIXED_BLOCKS_MAX, MIXED_BLOCKS_MAX + 1):
        event["event"]["data"]["AddRequest"]["token_sequence"] = [2**64 - 1] * (n - 1) + [3]
        if n <= MIXED_BLOCKS_MAX:
            assert decode_event(pack(event)).sequence_hashes[-1] == 3
        else:
            with pytest.raises(PeerFrameError, match="in this form"):
                decode_event(pack(event))


def test_an_array_form_is_read_without_an_object_for_each_of_its_hashes():
    hashes = [2**64 - 1] * 50_000
    payload = pack(["m", "t", 4, ["x", [1, 1], {"AddRequest": [hashes]}, 777]])
    tracemalloc.start()
    decode_event(payload)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(payload)  # objects would take 32 bytes for each 9


NAMES = st.text(max_size=20)
U64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 2**32 - 1, 2**32, 2**64 - 1])
COMMON = {
    "model_name": NAMES,
    "tenant_id": NAMES,
    "block_size": st.integers(0, 2**32),
    "reservation_id": NAMES,
    "rank": st.builds(Rank, U64, st.integers(0, 2**32 - 1)),
    "router_id": U64,
    "lora_name": st.none() | NAMES,
}
HASHES = st.lists(U64, max_size=40).map(lambda values: np.array(values, np.uint64))
EVENTS = st.one_of(
    st.builds(PrefillCompleted, **COMMON),
    st.builds(ReservationFreed, **COMMON),
    st.builds(
        ReservationAdmitted,
        **COMMON,
        sequence_hashes=HASHES,
        block_hashes=HASHES,
        prefill_tokens_hint=st.none() | st.integers(0, 2**40),
        track_prefill_tokens=st.booleans(),
        expected_output_tokens=st.none() | st.integers(0, 2**32 - 1),
        move_tokens=st.integers(0, 2**40),
    ),
)


@given(event=EVENTS)
def test_an_event_survives_its_bytes(event):
    decoded = decode_event(encode(event))
    assert type(decoded) is type(event)
    for name in event.__struct_fields__:
        ours, back = getattr(event, name), getattr(decoded, name)
        if isinstance(ours, np.ndarray):
            ours, back = ours.tolist(), back.tolist()
        assert back == ours


def test_long_sequences_have_the_bytes_of_any_encoder_whatever_was_encoded_before():
    rng = np.random.default_rng(0)
    admitted = decode_event(pack(body()))
    for n in (24, BUFFERED_BLOCKS + 1, BUFFERED_BLOCKS, 23, 25, 0, 70_000):
        hashes = rng.integers(2**32, 2**64, n, np.uint64)
        event = msgspec.structs.replace(admitted, sequence_hashes=hashes)
        assert pack(hashes.tolist()) in encode(event)
        assert decode_event(encode(event)).sequence_hashes.tolist() == hashes.tolist()


@given(payload=st.binary(max_size=60))
def test_random_bytes_raise_only_decode_error(payload):
    with pytest.raises(PeerFrameError):
        decode_event(payload)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(value=ANYTHING, place=st.sampled_from(["event", "event__data", "event__worker"]))
def test_anything_in_the_place_of_a_structure_raises_only_decode_error(value, place):
    try:
        decode_event(pack(body(**{place: value if value is not None else 0})))
    except PeerFrameError:
        return


@given(cut=st.integers(0, 200), flip=st.integers(0, 199), bit=st.integers(0, 7))
def test_damaged_frames_raise_only_decode_error(cut, flip, bit):
    payload = bytearray(pack(body()))
    payload[flip % len(payload)] ^= 1 << bit
    for damaged in (bytes(payload), bytes(payload[:cut])):
        try:
            decode_event(damaged)
        except PeerFrameError:
            continue
