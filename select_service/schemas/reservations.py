"""Bodies of reservations and their lifecycle."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.schemas.common import U32, U64, Id, RequestBody, check_u64_fields
from select_service.schemas.prompts import PromptQuery


class ReservationRequest(PromptQuery, kw_only=True):
    """Body of POST /reservations: books a rank chosen by the caller."""

    reservation_id: Id
    """Id of the new reservation, unique over all models and tenants."""
    worker_id: U64
    """Worker that runs the request."""
    dp_rank: U32 = 0
    """Data-parallel rank of the worker."""
    expected_output_tokens: U32 | None = None
    """Forwarded to other replicas; otherwise unused."""
    effective_prefill_tokens: U64 | None = None
    """Prompt tokens that are not cached and must be computed; the whole prompt when omitted."""
    migratable: bool = True
    """Whether the request may continue on another rank when its worker fails or is drained. Set
    false for requests that cannot, such as several answers to a prompt, guided decoding and
    embeddings. Used with `--health-checks on`.
    """
    repeat: bool = False
    """Whether this request is a retry. If the reservation exists already, in this model and tenant
    and for this prompt, the response is the existing reservation and nothing is booked.
    """

    def __post_init__(self) -> None:
        check_u64_fields(self, "isl_tokens", "worker_id", "effective_prefill_tokens")


class Reservation(Struct, kw_only=True):
    """Response with a new reservation."""

    reservation_id: str
    """Id of the reservation in later calls."""
    model_name: str
    """Model of the worker."""
    tenant_id: str
    """Tenant of the worker."""
    worker_id: int
    """Worker that holds the load."""
    dp_rank: int
    """Data-parallel rank of the worker."""
    endpoint: str
    """Request endpoint of the worker, as registered."""


class OutputBlockRequest(RequestBody, kw_only=True):
    """Report of an output block.

    The service checks the range of `decay_fraction` (400), this schema only the type (422).
    """

    decay_fraction: float | None = None
    """Weight from now on of the blocks held only by this reservation: 0 nothing, 1 a full block;
    unchanged when omitted.
    """


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


class ReservationPage(Struct, kw_only=True):
    """Page of live reservations, oldest first."""

    reservations: list[ReservationRow]
    """Rows of this page."""
    total: int
    """Number of all live reservations, regardless of the filter."""
    next: str | None
    """Value of `after` for the next page; null on the last page."""
    router_id: int
    """Id of the responding process, valid for the lifetime of that process."""
