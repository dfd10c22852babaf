"""Bodies of reservations and their lifecycle."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from select_service.schemas.common import U32, U64, Id, RequestBody, Token, check_u64_fields
from select_service.schemas.kv_hint import KvHint
from select_service.schemas.pairs import PairRecord
from select_service.schemas.prompts import PromptQuery

OUTPUT_TOKENS_MAX = 131_072
"""Maximum number of tokens of a reported answer."""


class ReservationRequest(PromptQuery, kw_only=True):
    """Body of POST /reservations: books a rank chosen by the caller, or an earlier selection."""

    reservation_id: Id | None = None
    """Id of the new reservation, unique over all models and tenants; when omitted, the
    `selection_id`.
    """
    selection_id: Id | None = None
    """Id returned in the response; the id of the reservation without `reservation_id`. One of the
    two ids is required. Without `worker_id`, the id of an earlier /select of this model and tenant,
    whose rank and load are booked once; the prompt and all numbers of this request are then
    ignored.
    """
    worker_id: U64 | None = None
    """Worker that runs the request; the one of the selection when omitted."""
    dp_rank: U32 = 0
    """Data-parallel rank of the worker."""
    expected_output_tokens: U32 | None = None
    """Forwarded to other replicas; otherwise unused."""
    effective_prefill_tokens: U64 | None = None
    """Prompt tokens that are not cached and must be computed. When omitted: the whole prompt, but
    with `--policy reference` 0 for a booking by `selection_id` alone, as in Dynamo 1.6.
    """
    track_prefill_tokens: bool | None = None
    """Whether prompt tokens count as load; by default as the service is configured, and always with
    `effective_prefill_tokens`.
    """
    migratable: bool = True
    """Whether the request may continue on another rank when its worker fails or is drained. Set
    false for requests that cannot, such as several answers to a prompt, guided decoding and
    embeddings. Used with `--health-checks on`.
    """
    repeat: bool = False
    """Whether this request is a retry. If the reservation exists already, in this model and tenant
    and for this prompt, the response is the existing reservation and nothing is booked.
    """

    @property
    def booking_id(self) -> str:
        """Id of the new reservation."""
        booked = self.selection_id if self.reservation_id is None else self.reservation_id
        assert booked is not None, "one of the ids was required"
        return booked

    @property
    def is_replay(self) -> bool:
        """Whether the request books an earlier selection."""
        return self.worker_id is None

    @property
    def is_selection_named(self) -> bool:
        """Whether the reservation is named by `selection_id` alone, as in Dynamo 1.6."""
        return self.reservation_id is None

    def __post_init__(self) -> None:
        check_u64_fields(self, "isl_tokens", "worker_id", "effective_prefill_tokens")
        if self.reservation_id is None and self.selection_id is None:
            raise ValueError("selection_id and reservation_id are missing: give one of them")
        if self.worker_id is None and self.selection_id is None:
            raise ValueError(
                "the field `worker_id` is missing: give the worker of the reservation, or the "
                "selection_id of an earlier /select"
            )


class Reservation(Struct, kw_only=True):
    """Response with a new reservation."""

    selection_id: str | UnsetType = UNSET
    """`selection_id` of the request, else the id of the reservation; absent only from older
    versions.
    """
    reservation_id: str
    """Id of the reservation in later calls."""
    model_name: str
    """Model of the worker."""
    tenant_id: str
    """Tenant of the worker."""
    routing_group: str | UnsetType = UNSET
    """Equal to `tenant_id`; absent only from older versions."""
    worker_id: int
    """Worker that holds the load."""
    dp_rank: int
    """Data-parallel rank of the worker."""
    endpoint: str
    """Request endpoint of the worker, as registered."""
    kv_hint: KvHint | UnsetType = UNSET
    """Other worker of the same `router_hint_worker_type` that holds more of the prompt."""


class PrefillReport(RequestBody, kw_only=True):
    """Body of POST /reservations/{reservation_id}/prefill_complete."""

    cached_tokens: U64 | None = None
    """Tokens of the prompt that the engine found in its cache, as its usage report says."""

    def __post_init__(self) -> None:
        check_u64_fields(self, "cached_tokens")


class ReservationEnd(RequestBody, kw_only=True):
    """Body of DELETE /reservations/{reservation_id}."""

    output_token_ids: Annotated[list[Token], Meta(max_length=OUTPUT_TOKENS_MAX)] | None = None
    """Tokens of the answer, whose blocks a rank without KV events is assumed to hold from now
    on.
    """


class OutputBlockRequest(RequestBody, kw_only=True):
    """Report of an output block.

    The service checks the range of `decay_fraction` (400), this schema only the type (422).
    """

    decay_fraction: float | None = None
    """Weight from now on of the blocks held only by this reservation: 0 nothing, 1 a full block;
    unchanged when omitted.
    """


class ReservationLeg(Struct, kw_only=True):
    """One leg of a pair in its row."""

    leg: Literal["prefill", "decode"]
    """Part of the request."""
    worker_id: int
    """Worker that holds the load of the leg."""
    dp_rank: int
    """Data-parallel rank of the worker."""
    prefill_tokens: int
    """Prompt tokens booked as prefill load of the leg."""
    work: int
    """Prompt tokens that the rank computes for the leg."""


class ReservationRow(Struct, kw_only=True):
    """One live reservation."""

    reservation_id: str
    """Id of the reservation."""
    model_name: str
    """Model of the worker."""
    tenant_id: str
    """Tenant of the worker."""
    worker_id: int
    """Worker that holds the load."""
    dp_rank: int
    """Data-parallel rank of the worker."""
    block_size: int | UnsetType = UNSET
    """Tokens in a block of the worker; absent only from older versions."""
    state: Literal["prefill", "decode"]
    """`prefill` until prefill_complete is called, then `decode`."""
    isl_tokens: int
    """Length of the prompt in tokens."""
    prompt_blocks: int
    """Blocks of the prompt that count as load."""
    output_blocks: int
    """Reported output blocks."""
    prefill_tokens: int
    """Prompt tokens booked as prefill load; released at the first token."""
    work: int | UnsetType = UNSET
    """Prompt tokens that the rank computes for this reservation, without those already being
    computed for others; 0 after the prefill or if the prefill does not count; absent only from
    older versions.
    """
    age_seconds: float
    """Seconds since the booking."""
    expires_in_seconds: float | None
    """Seconds until the reservation expires unless renewed; null: never."""
    origin: Literal["local", "peer"]
    """Whether the reservation was booked here or received from another replica."""
    router_id: int
    """Id of the process that admitted the reservation, valid for the lifetime of that process."""
    sequence_hashes: list[int] | UnsetType = UNSET
    """Identities of the prompt blocks; only on request."""
    session_id: str | UnsetType = UNSET
    """Session of the request; absent without one."""
    leg: Literal["prefill"] | UnsetType = UNSET
    """`prefill`: the row is the prefill leg of a pair, with `separate_legs` or while the other leg
    is unknown here; absent otherwise.
    """
    legs: list[ReservationLeg] | UnsetType = UNSET
    """Prefill and decode leg of a pair, until the prefill has ended; the row is the decode leg.
    Absent otherwise.
    """
    pair: PairRecord | UnsetType = UNSET
    """Request behind a pair, with `separate_legs`."""


class ReservationPage(Struct, kw_only=True):
    """Page of live reservations, oldest first."""

    reservations: list[ReservationRow]
    """Rows of this page."""
    total: int
    """Number of all live reservations, regardless of the filter; a pair counts once."""
    next: str | None
    """Value of `after` for the next page; null on the last page."""
    router_id: int
    """Id of the responding process, valid for the lifetime of that process."""
