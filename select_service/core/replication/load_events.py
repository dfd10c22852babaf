"""Events between selectors: three load events and their encoding.

An event reports that a reservation was admitted, has finished its prefill, or was freed. The
module is independent of sockets and bookings; `state` applies the events.

Bytes: msgpack, a map with named fields, sent as the second of two frames after `EVENT_TOPIC`. Both
names of the tenant are written, because older peers require `tenant_id` and newer peers
`routing_group`; either is read. Structures encoded as arrays are read as well. Unknown fields are
ignored, so later versions may add fields.

Source of the format: the reference selection service (Dynamo, versions 1.3.1 and 1.6.1), captured
"""

from collections.abc import Mapping
from struct import pack_into
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from indexer.hashing.block_hashing import Hashes
from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement.prompt import ISL_TOKENS_MAX
from select_service.schemas.common import ID_CHARS_MAX, NAME_CHARS_MAX, U32
from select_service.schemas.pairs import PairRecord
from select_service.schemas.sessions import SESSION_ID_BYTES_MAX

EVENT_TOPIC = b"dynamo.slot-tracker.v1"
FRAME_BYTES_MAX = 1280 * 1024
ARRAY_FORM_BYTES_MAX = 512 * 1024
"""Maximum size of frames with structures as arrays: each level is decoded separately."""
SEQUENCE_BLOCKS_MAX = 131_072
"""Maximum prompt blocks of an admission; 9 bytes each, so that every admission fits into a
frame.
"""
BLOCK_HASHES_MAX = 8192
"""Maximum block hashes sent with an admission; its sequence hashes leave space for so many."""
MIXED_BLOCKS_MAX = 32_768
"""Maximum prompt blocks if not every hash takes 9 bytes, as each then becomes a Python object
first.

Among this many hashes, one is short by chance in one of 100,000 prompts.
"""
DETAIL_CHARS_MAX = 200

_NO_HASHES: Hashes = np.zeros(0, np.uint64)
_FIX_ARRAY, _ARRAY_16, _ARRAY_32 = 0x90, 0xDC, 0xDD
_U64_MARK = 0xCF
_U64_ELEMENT = np.dtype([("mark", "u1"), ("value", ">u8")])
_ELEMENT_BYTES = _U64_ELEMENT.itemsize
_MANY = 24
"""Number of hashes from which numpy is faster than a loop over Python integers."""
BUFFERED_BLOCKS = 8192
"""Prompt blocks in the encoder's buffer; longer sequences allocate memory each time."""
_HEAD_BYTES = 3
"""Header size of a msgpack array of up to 65,535 elements."""


class PeerFrameError(ValueError):
    """Malformed event; the text gives the reason."""


class _Event(Struct, frozen=True, kw_only=True, gc=False):
    """Common fields of all events.

    router_id: id of the sending process, new at each start
    """

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


class ReservationAdmitted(_Event, frozen=True, kw_only=True, gc=False):
    """Reservation was booked.

    sequence_hashes: uint64[n_blocks], identities of the prompt blocks
    prefill_tokens_hint: tokens to prefill; None if the sender omits the hint
    block_hashes: uint64[n], block hashes of the prompt's beginning, where the rank may be assumed
        to hold them
    work: tokens that the rank computes for the request, with concurrent shared prompts deducted;
        None means equal to the prefill tokens, or omitted by the sender
    session_id: session of the request; None without one, or omitted by the sender
    move_tokens: tokens of the blocks that come from the rank of the prefill leg; 0 also if omitted
    pair: request behind a pair; None for one rank, or omitted by the sender
    """

    sequence_hashes: Hashes
    prefill_tokens_hint: int | None = None
    track_prefill_tokens: bool = True
    expected_output_tokens: int | None = None
    work: int | None = None
    session_id: str | None = None
    block_hashes: Hashes = _NO_HASHES
    move_tokens: int = 0
    pair: PairRecord | None = None

    @property
    def prefill_tokens(self) -> int:
        """Prefill tokens that a receiver books."""
        return (self.prefill_tokens_hint or 0) if self.track_prefill_tokens else 0


class PrefillCompleted(_Event, frozen=True, kw_only=True, gc=False):
    """Prefill of a reservation ended; `rank` is its rank at the sender."""


class ReservationFreed(_Event, frozen=True, kw_only=True, gc=False):
    """Reservation ended, or continues elsewhere.

    by_caller: the client freed the reservation, and would have reported the end of its prefill
    """

    by_caller: bool = True


LoadEvent: TypeAlias = ReservationAdmitted | PrefillCompleted | ReservationFreed


_Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_Id = Annotated[str, Meta(max_length=ID_CHARS_MAX)]
_SessionId = Annotated[str, Meta(max_length=SESSION_ID_BYTES_MAX)]
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
    work: _Unsigned | UnsetType = UNSET
    """Extension of this product; other implementations ignore the field."""
    session_id: _SessionId | UnsetType = UNSET
    """Extension of this product; other implementations ignore the field."""
    block_hashes: Raw | UnsetType = UNSET
    """Extension of this product; other implementations ignore the field."""
    move_tokens: _Unsigned | UnsetType = UNSET
    """Extension of this product; other implementations ignore the field."""
    pair: PairRecord | UnsetType = UNSET
    """Extension of this product; other implementations ignore the field."""


class _Add(Struct, gc=False):
    AddRequest: _AddRequest


class _Body(Struct, gc=False):
    request_id: _Id
    worker: _Worker
    data: Literal["MarkPrefillCompleted", "Free"] | _Add
    router_id: _Unsigned
    lora_name: _Name | None = None
    by_caller: bool | UnsetType = UNSET
    """Extension of this product for endings, written only if False; other implementations ignore
    it.
    """


class _Frame(Struct, kw_only=True, gc=False):
    """Frame; fields in the order in which they are written."""

    model_name: _Name
    tenant_id: _Name | UnsetType = UNSET
    block_size: _Unsigned
    event: _Body
    routing_group: _Name | UnsetType = UNSET


_encode = msgspec.msgpack.Encoder().encode
_frame_of = msgspec.msgpack.Decoder(_Frame).decode
_integers_of = msgspec.msgpack.Decoder(list[_Unsigned] | None).decode
_UNREADABLE = (ValueError, RecursionError)  # msgspec's errors and invalid UTF-8 are ValueErrors


class LoadEventEncoder:
    """Encoder of events; not thread-safe, since its buffer is reused for each event."""

    def __init__(self) -> None:
        self._array = bytearray(_HEAD_BYTES + BUFFERED_BLOCKS * _ELEMENT_BYTES)
        elements = np.frombuffer(self._array, _U64_ELEMENT, offset=_HEAD_BYTES)
        elements["mark"] = _U64_MARK
        self._values = elements["value"]
        self._view = memoryview(self._array)

    def encode_event(self, event: LoadEvent) -> bytes:
        """Return the payload frame. Raises ValueError for more than SEQUENCE_BLOCKS_MAX blocks.

        O(blocks), about one nanosecond each
        """
        data: Literal["MarkPrefillCompleted", "Free"] | _Add
        if type(event) is ReservationAdmitted:  # isinstance is slow for negative results
            data = self._add_request(event)
        else:
            data = "Free" if type(event) is ReservationFreed else "MarkPrefillCompleted"
        worker = _Worker(event.rank[0], event.rank[1])
        body = _Body(event.reservation_id, worker, data, event.router_id, event.lora_name)
        if type(event) is ReservationFreed and not event.by_caller:
            body.by_caller = False
        tenant = event.tenant_id
        frame = _Frame(
            model_name=event.model_name,
            tenant_id=tenant,
            block_size=event.block_size,
            event=body,
            routing_group=tenant,
        )
        return _encode(frame)

    def _add_request(self, event: ReservationAdmitted) -> _Add:
        hint = event.prefill_tokens_hint
        return _Add(
            _AddRequest(
                token_sequence=self._encode_hashes(event.sequence_hashes),
                track_prefill_tokens=event.track_prefill_tokens,
                expected_output_tokens=event.expected_output_tokens,
                prefill_load_hint=None if hint is None else _Hint(hint),
                work=UNSET if event.work is None else event.work,
                session_id=UNSET if event.session_id is None else event.session_id,
                block_hashes=_encode_blocks(event.block_hashes),
                move_tokens=event.move_tokens or UNSET,
                pair=UNSET if event.pair is None else event.pair,
            )
        )

    def _encode_hashes(self, hashes: Hashes) -> Raw:
        """Return a msgpack array of integers, valid until the next call.

        Short arrays use the standard encoding. Long arrays use 64-bit form throughout, which hashes
        need anyway and every reader accepts.
        """
        n = len(hashes)
        if n < _MANY:
            return Raw(_encode(hashes.tolist()))
        if n > SEQUENCE_BLOCKS_MAX:
            raise ValueError(f"{n} blocks, at most {SEQUENCE_BLOCKS_MAX} fit into an event")
        if n > BUFFERED_BLOCKS:
            return Raw(_long_array(hashes))
        # Written into the reused buffer as big-endian values with preset markers: no Python object
        # per hash, about a nanosecond each.
        self._values[:n] = hashes
        # BUFFERED_BLOCKS is below 2**16, so the 16-bit array header always suffices.
        pack_into(">BH", self._array, 0, _ARRAY_16, n)
        return Raw(self._view[: _HEAD_BYTES + n * _ELEMENT_BYTES])


def _encode_blocks(hashes: Hashes) -> Raw | UnsetType:
    """Return up to BLOCK_HASHES_MAX hashes as a msgpack array; UNSET for none."""
    if not len(hashes):
        return UNSET
    hashes = hashes[:BLOCK_HASHES_MAX]
    return Raw(_encode(hashes.tolist()) if len(hashes) < _MANY else _long_array(hashes))


def _long_array(hashes: Hashes) -> bytes:
    n = len(hashes)
    elements = np.empty(n, _U64_ELEMENT)
    elements["mark"] = _U64_MARK
    elements["value"] = hashes
    head = b"\xdc" + n.to_bytes(2, "big") if n < 2**16 else b"\xdd" + n.to_bytes(4, "big")
    return head + elements.tobytes()


def _decode_hashes(sequence: Raw) -> Hashes:
    """Return uint64[n] of a msgpack array; nil is empty. Raises ValueError."""
    raw = bytes(sequence)
    width = {_ARRAY_16: 3, _ARRAY_32: 5}.get(raw[0])
    if width is not None:
        n = int.from_bytes(raw[1:width], "big")
        if n > SEQUENCE_BLOCKS_MAX:
            raise PeerFrameError(f"{n} blocks, at most {SEQUENCE_BLOCKS_MAX} expected")
        # The length alone proves nothing about the form: the markers are compared as well.
        if len(raw) == width + n * _ELEMENT_BYTES:
            elements = np.frombuffer(raw, _U64_ELEMENT, offset=width)
            # All hashes in 64-bit form: one vectorised copy instead of a Python object per hash.
            if (elements["mark"] == _U64_MARK).all():
                return elements["value"].astype(np.uint64)
        if n > MIXED_BLOCKS_MAX:
            raise PeerFrameError(f"{n} blocks, at most {MIXED_BLOCKS_MAX} expected in this form")
    integers = _integers_of(raw)
    return np.array(integers, np.uint64) if integers else _NO_HASHES


def decode_event(payload: bytes) -> LoadEvent:
    """Decode the event of a payload frame. Raises PeerFrameError for malformed input."""
    if len(payload) > FRAME_BYTES_MAX:
        raise PeerFrameError(f"{len(payload)} bytes, at most {FRAME_BYTES_MAX} expected")
    try:
        # Structures as maps are usual; arrays are only tried if this fails.
        return _event_of(_frame_of(payload))
    except _UNREADABLE as error:
        reason = str(error)
    # The slow path below would block the event loop for larger frames.
    if len(payload) > ARRAY_FORM_BYTES_MAX:
        raise PeerFrameError(reason[:DETAIL_CHARS_MAX])
    try:
        return _event_of(_frame_of_arrays(payload))
    except _UNREADABLE:
        raise PeerFrameError(reason[:DETAIL_CHARS_MAX]) from None


def _event_of(frame: _Frame) -> LoadEvent:
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
        return ReservationFreed(**common, by_caller=body.by_caller is not False)
    assert isinstance(body.data, _Add)
    given = body.data.AddRequest
    hint = given.prefill_load_hint
    tokens = None if hint is None else hint.initial_effective_prefill_tokens
    work = None if given.work is UNSET else given.work
    # Sums of load are int64: an unbounded number of a faulty peer could overflow them.
    moving = 0 if given.move_tokens is UNSET else given.move_tokens
    pair = None if given.pair is UNSET else given.pair
    of_pair = (0,) if pair is None else (pair.isl_tokens, pair.move_tokens)
    if max(tokens or 0, work or 0, moving, *of_pair) > ISL_TOKENS_MAX:
        raise PeerFrameError(
            f"a prefill load of {tokens} tokens, work of {work}, a move of {moving}, "
            f"at most {ISL_TOKENS_MAX} expected"
        )
    return ReservationAdmitted(
        **common,
        sequence_hashes=_decode_hashes(given.token_sequence),
        prefill_tokens_hint=tokens,
        track_prefill_tokens=given.track_prefill_tokens,
        expected_output_tokens=given.expected_output_tokens,
        work=work,
        session_id=None if given.session_id is UNSET else given.session_id,
        block_hashes=_NO_HASHES
        if given.block_hashes is UNSET
        else _decode_hashes(given.block_hashes)[:BLOCK_HASHES_MAX],
        move_tokens=moving,
        pair=pair,
    )


def _tenant_of(frame: _Frame) -> str:
    """Return the tenant. If both fields are present they must be equal, as choosing would be a
    guess.
    """
    names = {name for name in (frame.tenant_id, frame.routing_group) if name is not UNSET}
    # An event for the wrong tenant would change load that another tenant pays for.
    if len(names) != 1:
        raise PeerFrameError(
            "`tenant_id` and `routing_group` differ" if names else "no `tenant_id`"
        )
    name = names.pop()
    assert isinstance(name, str)
    return name


class _FrameOfAny(_Frame, kw_only=True, gc=False):
    event: Raw  # type: ignore[assignment]


class _FrameArray(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    model_name: _Name
    tenant_id: _Name
    block_size: _Unsigned
    event: Raw


class _BodyOfAny(Struct, gc=False):
    request_id: _Id
    worker: Raw
    data: Raw
    router_id: _Unsigned
    lora_name: _Name | None = None


class _BodyArray(_BodyOfAny, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class _WorkerArray(_Worker, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class _AddOfAny(Struct, gc=False):
    AddRequest: Raw


class _AddRequestOfAny(Struct, gc=False):
    token_sequence: Raw = _NIL
    track_prefill_tokens: bool = True
    expected_output_tokens: U32 | None = None
    prefill_load_hint: Raw = _NIL
    work: _Unsigned | UnsetType = UNSET
    session_id: _SessionId | UnsetType = UNSET
    block_hashes: Raw | UnsetType = UNSET


class _AddRequestArray(_AddRequestOfAny, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class _HintArray(_Hint, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


S = TypeVar("S")


class _Form(Generic[S]):
    """Decoder of a structure, encoded as a map or as an array."""

    def __init__(self, as_map: type[S], as_array: type[S]) -> None:
        self._of_map = msgspec.msgpack.Decoder(as_map).decode
        self._of_array = msgspec.msgpack.Decoder(as_array).decode

    def decode_form(self, raw: bytes | Raw) -> S:
        first = int.from_bytes(memoryview(raw)[:1])
        is_array = first & 0xF0 == _FIX_ARRAY or first in (_ARRAY_16, _ARRAY_32)
        return (self._of_array if is_array else self._of_map)(raw)


_ENDINGS: Mapping[bytes, Literal["MarkPrefillCompleted", "Free"]] = {
    _encode(form): name
    for name in ("MarkPrefillCompleted", "Free")
    for form in (name, {name: None})
}
_FRAME = _Form[Any](_FrameOfAny, _FrameArray)
_BODY = _Form[_BodyOfAny](_BodyOfAny, _BodyArray)
_WORKER = _Form[_Worker](_Worker, _WorkerArray)
_ADD_REQUEST = _Form[_AddRequestOfAny](_AddRequestOfAny, _AddRequestArray)
_HINT = _Form[_Hint](_Hint, _HintArray)
_add_of_any = msgspec.msgpack.Decoder(_AddOfAny).decode


def _frame_of_arrays(payload: bytes) -> _Frame:
    """Decode a frame with array structures. Raises ValueError, RecursionError."""
    frame = _FRAME.decode_form(payload)
    body = _BODY.decode_form(frame.event)
    return _Frame(
        model_name=frame.model_name,
        tenant_id=frame.tenant_id,
        block_size=frame.block_size,
        event=_Body(
            body.request_id,
            _WORKER.decode_form(body.worker),
            _ENDINGS.get(bytes(body.data)) or _add_of(body.data),
            body.router_id,
            body.lora_name,
        ),
        routing_group=getattr(frame, "routing_group", UNSET),
    )


def _add_of(data: Raw) -> _Add:
    given = _ADD_REQUEST.decode_form(_add_of_any(data).AddRequest)
    hint = None if given.prefill_load_hint == _NIL else _HINT.decode_form(given.prefill_load_hint)
    return _Add(
        _AddRequest(
            token_sequence=given.token_sequence,
            track_prefill_tokens=given.track_prefill_tokens,
            expected_output_tokens=given.expected_output_tokens,
            prefill_load_hint=hint,
            work=given.work,
            session_id=given.session_id,
            block_hashes=given.block_hashes,
        )
    )
