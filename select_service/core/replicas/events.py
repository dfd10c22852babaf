"""What selectors tell each other about reservations: three events and their bytes.

An event says that a reservation was admitted, has done its prefill, or was freed.  Nothing here
knows sockets or bookings; `replica_state` says what an event changes.

Bytes: msgpack, a map with named fields, sent as the second of two frames behind `TOPIC`.  Both
names of the tenant are written, because older peers require `tenant_id` and newer ones
`routing_group`; either is read.  Structures written as arrays are read as well.  Unknown fields
are ignored, so later versions may add some.

Source of the format: the reference selection service (Dynamo, versions 1.3.1 and 1.6.1), captured
from its sockets; the frames are in tests/wire.
"""

from collections.abc import Mapping, Sequence
from struct import pack_into
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from select_service.bodies.common import ID_CHARS_MAX, NAME_CHARS_MAX, U32
from select_service.core.decide.prompt import ISL_TOKENS_MAX
from select_service.core.identity import PartitionKey, Rank

TOPIC = b"dynamo.slot-tracker.v1"
FRAME_BYTES_MAX = 16 * 1024 * 1024
PATIENT_BYTES_MAX = 1024 * 1024
"""Longest frame in a form that is rare enough to be read into Python objects first."""
SEQUENCE_BLOCKS_MAX = 1_048_576
"""Prompt blocks of one admission; 9 bytes each, so that every admission fits into a frame."""
DETAIL_CHARS_MAX = 200

Hashes: TypeAlias = npt.NDArray[np.uint64]

_NO_HASHES: Hashes = np.zeros(0, np.uint64)
_ARRAY_16_MARK = 0xDC
_U64_MARK = 0xCF
_U64_ELEMENT = np.dtype([("mark", "u1"), ("value", ">u8")])
_ELEMENT_BYTES = _U64_ELEMENT.itemsize
_MANY = 24
"""From so many hashes on, numpy is faster than a loop over Python integers."""
KEPT_BLOCKS = 8192
"""Prompt blocks that an encoder has memory for; longer sequences get their own each time."""
_HEAD_BYTES = 3
"""Of a msgpack array of up to 65,535 elements."""


class DecodeError(ValueError):
    """The bytes are no event; the text says why."""


class _Event(Struct, frozen=True, kw_only=True, gc=False):
    """What all events name.  router_id: the process that speaks, chosen anew at each start."""

    model_name: str
    tenant_id: str
    block_size: int
    reservation_id: str
    rank: Rank
    router_id: int
    lora_name: str | None = None

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.model_name, self.tenant_id)


class Admitted(_Event, frozen=True, kw_only=True, gc=False):
    """Load was booked.

    sequence_hashes:     uint64[n_blocks], identities of the prompt blocks
    prefill_tokens_hint: tokens to prefill; None when the sender does not say
    """

    sequence_hashes: Hashes
    prefill_tokens_hint: int | None = None
    track_prefill_tokens: bool = True
    expected_output_tokens: int | None = None

    @property
    def prefill_tokens(self) -> int:
        """What a receiver books."""
        return (self.prefill_tokens_hint or 0) if self.track_prefill_tokens else 0


class PrefillCompleted(_Event, frozen=True, kw_only=True, gc=False):
    """The prefill load of a reservation is over.  `rank` is where the sender has it."""


class Freed(_Event, frozen=True, kw_only=True, gc=False):
    """A reservation has ended."""


Event: TypeAlias = Admitted | PrefillCompleted | Freed

# --- the bytes -----------------------------------------------------------------------------------

_Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_Id = Annotated[str, Meta(max_length=ID_CHARS_MAX)]
_Unsigned = Annotated[int, Meta(ge=0)]  # msgpack has no wider integers than 64 bits
_NIL = Raw(b"\xc0")


class _Worker(Struct, gc=False):
    worker_id: _Unsigned
    dp_rank: U32


class _Hint(Struct, gc=False):
    initial_effective_prefill_tokens: _Unsigned
    expected_prefill_duration: Raw = _NIL


class _AddRequest(Struct, kw_only=True, gc=False):
    token_sequence: Raw = _NIL
    track_prefill_tokens: bool = True
    expected_output_tokens: U32 | None = None
    prefill_load_hint: _Hint | None = None


class _Add(Struct, gc=False):
    AddRequest: _AddRequest


class _Body(Struct, gc=False):
    request_id: _Id
    worker: _Worker
    data: Literal["MarkPrefillCompleted", "Free"] | _Add
    router_id: _Unsigned
    lora_name: _Name | None = None


class _Frame(Struct, kw_only=True, gc=False):
    """Fields in the order in which they are written."""

    model_name: _Name
    tenant_id: _Name | UnsetType = UNSET
    block_size: _Unsigned
    event: _Body
    routing_group: _Name | UnsetType = UNSET


_encode = msgspec.msgpack.Encoder().encode
_frame_of = msgspec.msgpack.Decoder(_Frame).decode
_anything_of = msgspec.msgpack.Decoder().decode
_integers_of = msgspec.msgpack.Decoder(list[_Unsigned] | None).decode
_UNREADABLE = (ValueError, RecursionError)  # msgspec's errors are ValueErrors, and so is bad UTF-8


class EventEncoder:
    """Events -> bytes.  Keeps memory that is written anew for each event: for one thread."""

    def __init__(self) -> None:
        self._array = bytearray(_HEAD_BYTES + KEPT_BLOCKS * _ELEMENT_BYTES)
        elements = np.frombuffer(self._array, _U64_ELEMENT, offset=_HEAD_BYTES)
        elements["mark"] = _U64_MARK
        self._values = elements["value"]
        self._view = memoryview(self._array)

    def encode(self, event: Event) -> bytes:
        """The payload frame.  Raises ValueError for more than SEQUENCE_BLOCKS_MAX blocks.

        O(blocks), at about a nanosecond each.
        """
        data: Literal["MarkPrefillCompleted", "Free"] | _Add
        if type(event) is Admitted:  # isinstance is slow where the answer is no
            data = self._add(event)
        else:
            data = "Free" if type(event) is Freed else "MarkPrefillCompleted"
        worker = _Worker(event.rank[0], event.rank[1])
        body = _Body(event.reservation_id, worker, data, event.router_id, event.lora_name)
        tenant = event.tenant_id
        frame = _Frame(
            model_name=event.model_name,
            tenant_id=tenant,
            block_size=event.block_size,
            event=body,
            routing_group=tenant,
        )
        return _encode(frame)

    def _add(self, event: Admitted) -> _Add:
        hint = event.prefill_tokens_hint
        return _Add(
            _AddRequest(
                token_sequence=self._written(event.sequence_hashes),
                track_prefill_tokens=event.track_prefill_tokens,
                expected_output_tokens=event.expected_output_tokens,
                prefill_load_hint=None if hint is None else _Hint(hint),
            )
        )

    def _written(self, hashes: Hashes) -> Raw:
        """A msgpack array of integers; valid until the next one is written.

        Short ones are written as any encoder would.  Long ones all in the form of 64 bits, which
        hashes need anyway and every reader accepts.
        """
        n = len(hashes)
        if n < _MANY:
            return Raw(_encode(hashes.tolist()))
        if n > SEQUENCE_BLOCKS_MAX:
            raise ValueError(f"{n} blocks, at most {SEQUENCE_BLOCKS_MAX} fit into an event")
        if n > KEPT_BLOCKS:
            return Raw(_long_array(hashes))
        self._values[:n] = hashes
        pack_into(">BH", self._array, 0, _ARRAY_16_MARK, n)
        return Raw(self._view[: _HEAD_BYTES + n * _ELEMENT_BYTES])


def _long_array(hashes: Hashes) -> bytes:
    n = len(hashes)
    elements = np.empty(n, _U64_ELEMENT)
    elements["mark"] = _U64_MARK
    elements["value"] = hashes
    head = b"\xdc" + n.to_bytes(2, "big") if n < 2**16 else b"\xdd" + n.to_bytes(4, "big")
    return head + elements.tobytes()


def _read(sequence: Raw) -> Hashes:
    """uint64[n] of a msgpack array; nil is the empty one.  Raises ValueError."""
    raw = bytes(sequence)
    width = {0xDC: 3, 0xDD: 5}.get(raw[0])
    if width is not None:
        n = int.from_bytes(raw[1:width], "big")
        if n > SEQUENCE_BLOCKS_MAX:
            raise DecodeError(f"{n} blocks, at most {SEQUENCE_BLOCKS_MAX} expected")
        if len(raw) == width + n * _ELEMENT_BYTES:
            elements = np.frombuffer(raw, _U64_ELEMENT, offset=width)
            if (elements["mark"] == _U64_MARK).all():
                return elements["value"].astype(np.uint64)
    integers = _integers_of(raw)
    return np.array(integers, np.uint64) if integers else _NO_HASHES


def decode(payload: bytes) -> Event:
    """The event of a payload frame.  Raises DecodeError for anything that is none."""
    if len(payload) > FRAME_BYTES_MAX:
        raise DecodeError(f"{len(payload)} bytes, at most {FRAME_BYTES_MAX} expected")
    try:
        return _event_of(_frame_of(payload))
    except _UNREADABLE as error:
        reason = str(error)
    if len(payload) > PATIENT_BYTES_MAX:
        raise DecodeError(reason[:DETAIL_CHARS_MAX])
    try:
        return _event_of(_frame_of(_encode(_with_names(_anything_of(payload)))))
    except _UNREADABLE:
        raise DecodeError(reason[:DETAIL_CHARS_MAX]) from None


def _event_of(frame: _Frame) -> Event:
    body = frame.event
    common: dict[str, Any] = {
        "model_name": frame.model_name,
        "tenant_id": _tenant_of(frame),
        "block_size": frame.block_size,
        "reservation_id": body.request_id,
        "rank": Rank(body.worker.worker_id, body.worker.dp_rank),
        "router_id": body.router_id,
        "lora_name": body.lora_name,
    }
    if body.data == "MarkPrefillCompleted":
        return PrefillCompleted(**common)
    if body.data == "Free":
        return Freed(**common)
    assert isinstance(body.data, _Add)
    given = body.data.AddRequest
    hint = given.prefill_load_hint
    tokens = None if hint is None else hint.initial_effective_prefill_tokens
    if tokens is not None and tokens > ISL_TOKENS_MAX:
        raise DecodeError(f"a prefill load of {tokens} tokens, at most {ISL_TOKENS_MAX} expected")
    return Admitted(
        **common,
        sequence_hashes=_read(given.token_sequence),
        prefill_tokens_hint=tokens,
        track_prefill_tokens=given.track_prefill_tokens,
        expected_output_tokens=given.expected_output_tokens,
    )


def _tenant_of(frame: _Frame) -> str:
    """Both keys must agree where both are there: acting on one of two tenants would be a guess."""
    names = {name for name in (frame.tenant_id, frame.routing_group) if name is not UNSET}
    if len(names) != 1:
        raise DecodeError("`tenant_id` and `routing_group` differ" if names else "no `tenant_id`")
    name = names.pop()
    assert isinstance(name, str)
    return name


# --- structures written as arrays ----------------------------------------------------------------

_FRAME = ("model_name", "tenant_id", "block_size", "event")
_BODY = ("request_id", "worker", "data", "router_id", "lora_name")
_WORKER = ("worker_id", "dp_rank")
_ADD = (
    "token_sequence",
    "track_prefill_tokens",
    "expected_output_tokens",
    "prefill_load_hint",
)
_HINT = ("initial_effective_prefill_tokens", "expected_prefill_duration")

Fields: TypeAlias = dict[Any, Any]


def _with_names(frame: object) -> Fields:
    """The same event with every array that stands for a structure made a map."""
    fields = _named(frame, _FRAME)
    body = fields["event"] = _named(fields.get("event"), _BODY)
    body["worker"] = _named(body.get("worker"), _WORKER)
    data = body.get("data")
    if not isinstance(data, Mapping):
        return fields
    if data in ({"Free": None}, {"MarkPrefillCompleted": None}):
        body["data"] = next(iter(data))
    elif "AddRequest" in data:
        request = _named(data["AddRequest"], _ADD)
        if request.get("prefill_load_hint") is not None:
            request["prefill_load_hint"] = _named(request["prefill_load_hint"], _HINT)
        body["data"] = {"AddRequest": request}
    return fields


def _named(value: object, names: Sequence[str]) -> Fields:
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, list):
        raise DecodeError(f"expected a structure, got {type(value).__name__}")
    if len(value) > len(names):
        raise DecodeError(f"expected {len(names)} elements, got {len(value)}")
    return dict(zip(names, value, strict=False))
