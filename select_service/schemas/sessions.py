"""Sessions in requests and answers, and bodies of /sessions."""

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from select_service.schemas.common import U32, U64, RequestBody, check_u64_fields

SESSION_ID_BYTES_MAX = 256
"""Longest session id in bytes of UTF-8, as in Dynamo."""


def is_session_id(text: str) -> bool:
    """Return whether a text is short enough for a session id."""
    # Most ids are short enough in any encoding, and encoding costs more than this comparison.
    return len(text) <= SESSION_ID_BYTES_MAX // 4 or len(text.encode()) <= SESSION_ID_BYTES_MAX


AffinityMode: TypeAlias = Literal["hard", "soft"]

NotFollowedReason: TypeAlias = Literal[
    "new",
    "gone",
    "unavailable",
    "not_allowed",
    "busy",
    "cost",
    "pinned",
    "target",
    "table_full",
    "id_too_long",
]
"""Reason why a request did not run on the rank of its session."""


class SessionContext(RequestBody, kw_only=True):
    """Session of a request, as frontends of Dynamo describe it."""

    session_id: str
    """Id of the session; takes precedence over the field `session_id` of the request."""
    parent_session_id: str | None = None
    """Session from which this one branched off. While this one has no rank, the cache of the
    parent's rank counts, as that of a session does; not with `affinity: hard`.
    """
    session_final: bool | None = None
    """Whether this is the last turn: the session ends with its last reservation. Ignored where
    `--session-affinity-mode` is `hard`, as in Dynamo.
    """
    input_trigger: Literal["user_message", "tool_result", "other"] | None = None
    """Accepted for compatibility with Dynamo and ignored."""
    agent_headers: dict[str, list[str]] | None = None
    """Accepted for compatibility with Dynamo and ignored."""


class AffinityTarget(RequestBody, kw_only=True):
    """Rank that a request should use if it may."""

    worker_id: U64
    """Id of the worker."""
    dp_rank: U32 | None = None
    """Data-parallel rank of the worker; any rank when omitted."""

    def __post_init__(self) -> None:
        check_u64_fields(self, "worker_id")


class SessionRank(Struct, kw_only=True):
    """Rank of a session."""

    worker_id: int
    """Id of the worker."""
    dp_rank: int | None
    """Data-parallel rank of the worker; null: any rank of the worker."""


class SessionAnswer(Struct, kw_only=True):
    """What the session of a request meant for its rank."""

    bound: SessionRank | None
    """Rank of the session when the request was decided; null: none. A booking binds the session to
    the rank of the answer, unless `reason` is one of `pinned`, `target`, `table_full` and
    `id_too_long`.
    """
    followed: bool
    """Whether the rank of the answer is the rank of the session."""
    reason: NotFollowedReason | UnsetType = UNSET
    """Reason for another rank: `new` the session has none; `gone` its rank is not registered;
    `unavailable` it takes no requests; `not_allowed` the request excludes it; `busy` it has no
    room; `cost` another rank is better; `pinned`, `target` the request names a rank; `table_full`
    too many sessions live; `id_too_long` the id has more than 256 bytes.
    """


class SessionRow(Struct, kw_only=True):
    """One session."""

    session_id: str
    """Id of the session, unique in its model and tenant."""
    model_name: str
    """Model of the session."""
    tenant_id: str
    """Tenant of the session."""
    routing_group: str
    """The tenant, by the name of Dynamo 1.6."""
    worker_id: int
    """Worker of the last turn."""
    dp_rank: int | None
    """Data-parallel rank of the worker; null: any."""
    present: bool
    """Whether the rank is registered here."""
    leases: int
    """Live reservations of the session."""
    idle_seconds: float
    """Seconds since the last use; 0 while a reservation lives."""
    expires_in_seconds: float | None
    """Seconds until the session ends unless used; null while a reservation lives."""
    context_tokens: int
    """Tokens of the last turn: its prompt, after its end with the reported output; 0: unknown."""
    turns: int
    """Bookings of the session here."""
    sequence: int
    """Version of the binding; of two replicas' bindings the higher (sequence, writer_id) counts."""
    writer_id: int
    """Id of the process that made the binding."""


class SessionPage(Struct, kw_only=True):
    """Page of sessions."""

    sessions: list[SessionRow]
    """Rows of this page."""
    total: int
    """Number of all sessions that the caller may see, regardless of the filter."""
    next: str | None
    """Value of `after` for the next page; null on the last page."""
    router_id: int
    """Id of the responding process, valid for the lifetime of that process."""


class SessionEnd(Struct, kw_only=True):
    """Response to the end of a session."""

    status: Literal["ok"] = "ok"
    """Constant."""
    session: SessionRow
    """The session as it was."""
