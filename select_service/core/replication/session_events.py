"""Messages about sessions between replicas, in the form of Dynamo 1.6.

Topic `dynamo.session-affinity.v1`, a msgpack map.  Dynamo sends `routing_group`, other versions of
this product may send `tenant_id`; both are written, either is read.  Further fields of this product
are ignored by Dynamo: the length of the last turn, and whether the session has ended, for which
Dynamo has no message.

Source: messages recorded from Dynamo 1.6.1 (tests/wire).
"""

from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.core.identity import PartitionKey
from select_service.core.placement.prompt import ISL_TOKENS_MAX
from select_service.core.replication.load_events import DETAIL_CHARS_MAX, PeerFrameError
from select_service.core.sessions.session_directory import SessionUse
from select_service.core.sessions.session_table import BindingVersion, SessionBinding
from select_service.schemas.common import NAME_CHARS_MAX, U32
from select_service.schemas.sessions import SESSION_ID_BYTES_MAX

SESSION_TOPIC = b"dynamo.session-affinity.v1"
SESSION_FRAME_BYTES_MAX = 8192
"""Three names and an id of the longest form, and the numbers."""

_Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_Unsigned = Annotated[int, Meta(ge=0)]  # msgpack has no wider integers than 64 bits
_Tokens = Annotated[int, Meta(ge=0, le=ISL_TOKENS_MAX)]


class _Frame(Struct, kw_only=True, gc=False):
    """Frame; fields in the order in which they are written."""

    model_name: _Name
    routing_group: _Name | UnsetType = UNSET
    session_id: str
    worker_id: _Unsigned
    dp_rank: U32 | None = None
    sequence: _Unsigned
    writer_id: _Unsigned
    tenant_id: _Name | UnsetType = UNSET
    context_tokens: _Tokens | UnsetType = UNSET
    ended: bool | UnsetType = UNSET


class SessionEvent(NamedTuple):
    """Use or end of a session."""

    use: SessionUse
    is_ended: bool = False


_encode = msgspec.msgpack.Encoder().encode
_frame_of = msgspec.msgpack.Decoder(_Frame).decode


def encode_session_event(event: SessionEvent) -> bytes:
    """Return the payload frame."""
    use, bound = event.use, event.use.binding
    frame = _Frame(
        model_name=use.key.model_name,
        routing_group=use.key.tenant_id,
        session_id=use.session_id,
        worker_id=bound.worker_id,
        dp_rank=bound.dp_rank,
        sequence=bound.version.sequence,
        writer_id=bound.version.writer_id,
        tenant_id=use.key.tenant_id,
        context_tokens=min(bound.context_tokens, ISL_TOKENS_MAX),
    )
    if event.is_ended:
        frame.ended = True
    return _encode(frame)


def decode_session_event(payload: bytes) -> SessionEvent:
    """Decode a payload frame.  Raises PeerFrameError."""
    if len(payload) > SESSION_FRAME_BYTES_MAX:
        raise PeerFrameError(f"{len(payload)} bytes, at most {SESSION_FRAME_BYTES_MAX} expected")
    try:
        frame = _frame_of(payload)
    except (ValueError, RecursionError) as error:
        raise PeerFrameError(str(error)[:DETAIL_CHARS_MAX]) from None
    if len(frame.session_id.encode()) > SESSION_ID_BYTES_MAX:
        raise PeerFrameError(f"`session_id` is longer than {SESSION_ID_BYTES_MAX} bytes")
    binding = SessionBinding(
        frame.worker_id,
        frame.dp_rank,
        BindingVersion(frame.sequence, frame.writer_id),
        0 if isinstance(frame.context_tokens, UnsetType) else frame.context_tokens,
    )
    key = PartitionKey(frame.model_name, _tenant_of(frame))
    return SessionEvent(SessionUse(key, frame.session_id, binding), frame.ended is True)


def _tenant_of(frame: _Frame) -> str:
    """Return the tenant; two different tenants are refused, as choosing would be a guess."""
    names = [n for n in (frame.routing_group, frame.tenant_id) if not isinstance(n, UnsetType)]
    if not names or len(set(names)) > 1:
        raise PeerFrameError(
            "`tenant_id` and `routing_group` differ" if names else "no `routing_group`"
        )
    return names[0]
