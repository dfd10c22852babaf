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

from collections.abc import Mapping
from struct import pack_into
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from indexer.hashing.hashes import Hashes
from select_service.bodies.common import ID_CHARS_MAX, NAME_CHARS_MAX, U32
from select_service.core.decide.prompt import ISL_TOKENS_MAX
from select_service.core.identity import PartitionKey, Rank

TOPIC = b"dynamo.slot-tracker.v1"
FRAME_BYTES_MAX = 1280 * 1024
PATIENT_BYTES_MAX = 512 * 1024
"""Longest frame whose structures may be arrays: it is gone over once for every level."""
SEQUENCE_BLOCKS_MAX = 131_072
"""Prompt blocks of one admission; 9 bytes each, so that every admission fits into a frame."""
MIXED_BLOCKS_MAX = 32_768
"""The same where not every hash has those 9 bytes: then each becomes a Python object first.  Of so
many hashes, one is short by chance in one of 100,000 prompts."""
DETAIL_CHARS_MAX = 200

_NO_HASHES: Hashes = np.zeros(0, np.uint64)
_FIX_ARRAY, _ARRAY_16, _ARRAY_32 = 0x90, 0xDC, 0xDD
_U64_MARK = 0xCF
_U64_ELEMENT = np.dtype([("mark", "u1"), ("value", ">u8")])
_ELEMENT_BYTES = _U64_ELEMENT.itemsize
_MANY = 24
"""From so many hashes on, numpy is faster than a loop over Python integers."""
KEPT_BLOCKS = 8192
"""Prompt blocks that an encoder has memory for; longer sequences get their own each time."""
_HEAD_BYTES = 3
"""Of a msgpack array of up to 65,535 elements."""


class FrameError(ValueError):
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
    work:                tokens that the rank computes for it, other prompts on their way there
                         considered; None: as many as are to prefill, or the sender does not say
    """

    sequence_hashes: Hashes
    prefill_tokens_hint: int | None = None
    track_prefill_tokens: bool = True
    expected_output_tokens: int | None = None
    work: int | None = None

    @property
    def prefill_tokens(self) -> int:
        """What a receiver books."""
        return (self.prefill_tokens_hint or 0) if self.track_prefill_tokens else 0


class PrefillCompleted(_Event, frozen=True, kw_only=True, gc=False):
    """The prefill load of a reservation is over.  `rank` is where the sender has it."""


class Freed(_Event, frozen=True, kw_only=True, gc=False):
    """A reservation has ended, or goes on elsewhere.

    by_caller: its caller said so, and would have said that its prefill was over
    """

    by_caller: bool = True


LoadEvent: TypeAlias = Admitted | PrefillCompleted | Freed

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
    work: _Unsigned | UnsetType = UNSET
    """Ours; others ignore it."""


class _Add(Struct, gc=False):
    AddRequest: _AddRequest


class _Body(Struct, gc=False):
    request_id: _Id
    worker: _Worker
    data: Literal["MarkPrefillCompleted", "Free"] | _Add
    router_id: _Unsigned
    lora_name: _Name | None = None
    by_caller: bool | UnsetType = UNSET
    """Ours, of an end, and only where it is not so; others ignore it."""


class _Frame(Struct, kw_only=True, gc=False):
    """Fields in the order in which they are written."""

    model_name: _Name
    tenant_id: _Name | UnsetType = UNSET
    block_size: _Unsigned
    event: _Body
    routing_group: _Name | UnsetType = UNSET


_encode = msgspec.msgpack.Encoder().encode
_frame_of = msgspec.msgpack.Decoder(_Frame).decode
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

    def encode(self, event: LoadEvent) -> bytes:
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
        if type(event) is Freed and not event.by_caller:
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

    def _add(self, event: Admitted) -> _Add:
        hint = event.prefill_tokens_hint
        return _Add(
            _AddRequest(
                token_sequence=self._written(event.sequence_hashes),
                track_prefill_tokens=event.track_prefill_tokens,
                expected_output_tokens=event.expected_output_tokens,
                prefill_load_hint=None if hint is None else _Hint(hint),
                work=UNSET if event.work is None else event.work,
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
        pack_into(">BH", self._array, 0, _ARRAY_16, n)
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
    width = {_ARRAY_16: 3, _ARRAY_32: 5}.get(raw[0])
    if width is not None:
        n = int.from_bytes(raw[1:width], "big")
        if n > SEQUENCE_BLOCKS_MAX:
            raise FrameError(f"{n} blocks, at most {SEQUENCE_BLOCKS_MAX} expected")
        if len(raw) == width + n * _ELEMENT_BYTES:
            elements = np.frombuffer(raw, _U64_ELEMENT, offset=width)
            if (elements["mark"] == _U64_MARK).all():
                return elements["value"].astype(np.uint64)
        if n > MIXED_BLOCKS_MAX:
            raise FrameError(f"{n} blocks, at most {MIXED_BLOCKS_MAX} expected in this form")
    integers = _integers_of(raw)
    return np.array(integers, np.uint64) if integers else _NO_HASHES


def decode(payload: bytes) -> LoadEvent:
    """The event of a payload frame.  Raises FrameError for anything that is none."""
    if len(payload) > FRAME_BYTES_MAX:
        raise FrameError(f"{len(payload)} bytes, at most {FRAME_BYTES_MAX} expected")
    try:
        return _event_of(_frame_of(payload))
    except _UNREADABLE as error:
        reason = str(error)
    if len(payload) > PATIENT_BYTES_MAX:
        raise FrameError(reason[:DETAIL_CHARS_MAX])
    try:
        return _event_of(_frame_of_arrays(payload))
    except _UNREADABLE:
        raise FrameError(reason[:DETAIL_CHARS_MAX]) from None


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
        return Freed(**common, by_caller=body.by_caller is not False)
    assert isinstance(body.data, _Add)
    given = body.data.AddRequest
    hint = given.prefill_load_hint
    tokens = None if hint is None else hint.initial_effective_prefill_tokens
    work = None if given.work is UNSET else given.work
    if max(tokens or 0, work or 0) > ISL_TOKENS_MAX:
        raise FrameError(
            f"a prefill load of {tokens} tokens, work of {work}, at most {ISL_TOKENS_MAX} expected"
        )
    return Admitted(
        **common,
        sequence_hashes=_read(given.token_sequence),
        prefill_tokens_hint=tokens,
        track_prefill_tokens=given.track_prefill_tokens,
        expected_output_tokens=given.expected_output_tokens,
        work=work,
    )


def _tenant_of(frame: _Frame) -> str:
    """Both keys must agree where both are there: acting on one of two tenants would be a guess."""
    names = {name for name in (frame.tenant_id, frame.routing_group) if name is not UNSET}
    if len(names) != 1:
        raise FrameError("`tenant_id` and `routing_group` differ" if names else "no `tenant_id`")
    name = names.pop()
    assert isinstance(name, str)
    return name


# --- structures written as arrays, each read once and its members left as they are


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


class _AddRequestArray(_AddRequestOfAny, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class _HintArray(_Hint, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


S = TypeVar("S")


class _Form(Generic[S]):
    """One structure, as a map or as an array."""

    def __init__(self, as_map: type[S], as_array: type[S]) -> None:
        self._of_map = msgspec.msgpack.Decoder(as_map).decode
        self._of_array = msgspec.msgpack.Decoder(as_array).decode

    def read(self, raw: bytes | Raw) -> S:
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
    """Raises ValueError, RecursionError."""
    frame = _FRAME.read(payload)
    body = _BODY.read(frame.event)
    return _Frame(
        model_name=frame.model_name,
        tenant_id=frame.tenant_id,
        block_size=frame.block_size,
        event=_Body(
            body.request_id,
            _WORKER.read(body.worker),
            _ENDINGS.get(bytes(body.data)) or _add_of(body.data),
            body.router_id,
            body.lora_name,
        ),
        routing_group=getattr(frame, "routing_group", UNSET),
    )


def _add_of(data: Raw) -> _Add:
    given = _ADD_REQUEST.read(_add_of_any(data).AddRequest)
    hint = None if given.prefill_load_hint == _NIL else _HINT.read(given.prefill_load_hint)
    return _Add(
        _AddRequest(
            token_sequence=given.token_sequence,
            track_prefill_tokens=given.track_prefill_tokens,
            expected_output_tokens=given.expected_output_tokens,
            prefill_load_hint=hint,
            work=given.work,
        )
    )
