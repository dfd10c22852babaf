"""Bodies of reservations and their life."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.bodies.common import U32, U64, Id, RequestBody, check_u64
from select_service.bodies.prompts import PromptQuery


class ReservationRequest(PromptQuery, kw_only=True):
    """POST /reservations: the caller already chose the rank."""

    reservation_id: Id
    """Name of the new reservation, unique over all models and tenants."""
    worker_id: U64
    """Worker that runs the request."""
    dp_rank: U32 = 0
    """Data-parallel rank of the worker."""
    expected_output_tokens: U32 | None = None
    """Told to other replicas; not used here."""
    effective_prefill_tokens: U64 | None = None
    """Prompt tokens that are not cached and must be computed; the whole prompt when left out."""
    migratable: bool = True
    """May it go on elsewhere when its worker fails or is drained? False for what cannot, as several
    answers to one prompt, guided decoding and embeddings; counts with `--health-checks on`."""
    repeat: bool = False
    """Was it sent before? If it stands already, in this model and tenant and for this prompt, the
    answer is that booking, wherever it is now, and nothing is booked."""

    def __post_init__(self) -> None:
        check_u64(self, "isl_tokens", "worker_id", "effective_prefill_tokens")


class Reservation(Struct, kw_only=True):
    """A new reservation."""

    reservation_id: str
    """Its name in later calls."""
    model_name: str
    """Model of the worker."""
    tenant_id: str
    """Tenant of the worker."""
    worker_id: int
    """Worker that holds the load."""
    dp_rank: int
    """Data-parallel rank of the worker."""
    endpoint: str
    """Where the worker takes requests, as it was registered."""


class OutputBlockRequest(RequestBody, kw_only=True):
    """The range of `decay_fraction` is checked by the service (400), its type here (422)."""

    decay_fraction: float | None = None
    """What blocks that only this reservation holds count from now on: 0 nothing, 1 a full block;
    no change when left out."""


class ReservationRow(Struct, kw_only=True):
    """One live reservation."""

    reservation_id: str
    """Its name."""
    model_name: str
    """Model of the worker."""
    tenant_id: str
    """Tenant of the worker."""
    worker_id: int
    """Worker that holds the load."""
    dp_rank: int
    """Data-parallel rank of the worker."""
    block_size: int | UnsetType = UNSET
    """Tokens in a block of the worker; left out only by versions that do not know this field."""
    state: Literal["prefill", "decode"]
    """`prefill` until the call of prefill_complete, then `decode`."""
    isl_tokens: int
    """Length of the prompt in tokens."""
    prompt_blocks: int
    """Blocks of the prompt that count as load."""
    output_blocks: int
    """Output blocks that were reported."""
    prefill_tokens: int
    """Prompt tokens booked as prefill load; given back at the first token."""
    work: int | UnsetType = UNSET
    """Prompt tokens that its rank computes for it, without those that are on their way there for
    others; 0 when its prefill is over or not counted; left out only by versions that do not know
    this field."""
    age_seconds: float
    """Seconds since it was booked."""
    expires_in_seconds: float | None
    """Seconds until it expires unless it is renewed; null: never."""
    origin: Literal["local", "peer"]
    """Was it booked here, or told by another replica?"""
    router_id: int
    """The process that admitted it, named from its start to its end."""
    sequence_hashes: list[int] | UnsetType = UNSET
    """Identities of the prompt blocks; only when asked for."""


class ReservationPage(Struct, kw_only=True):
    """Some live reservations, oldest first."""

    reservations: list[ReservationRow]
    """The rows of this page."""
    total: int
    """All live reservations, whatever the filter."""
    next: str | None
    """The `after` of the following page; null on the last one."""
    router_id: int
    """The process that answers, named from its start to its end."""
