"""Bodies of reservations and their life."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from select_service.bodies.common import U32, U64, Id, check_u64
from select_service.bodies.prompts import PromptQuery


class ReservationRequest(PromptQuery, kw_only=True):
    """POST /reservations: the caller already chose the rank."""

    reservation_id: Id
    worker_id: U64
    dp_rank: U32 = 0
    expected_output_tokens: U32 | None = None
    effective_prefill_tokens: U64 | None = None

    def __post_init__(self) -> None:
        check_u64(self, "isl_tokens", "worker_id", "effective_prefill_tokens")


class Reservation(Struct, kw_only=True):
    reservation_id: str
    model_name: str
    tenant_id: str
    worker_id: int
    dp_rank: int
    endpoint: str


class OutputBlockRequest(Struct, kw_only=True):
    """The range of `decay_fraction` is checked by the service (400), its type here (422)."""

    decay_fraction: float | None = None


class ReservationRow(Struct, kw_only=True):
    reservation_id: str
    model_name: str
    tenant_id: str
    worker_id: int
    dp_rank: int
    state: Literal["prefill", "decode"]
    isl_tokens: int
    prompt_blocks: int
    output_blocks: int
    prefill_tokens: int
    age_seconds: float
    expires_in_seconds: float | None
    origin: Literal["local", "peer"]
    router_id: int
    sequence_hashes: list[int] | UnsetType = UNSET


class ReservationPage(Struct, kw_only=True):
    """Oldest first.  `next` is the `after` of the following page, null on the last one.  `total`
    counts all live reservations, whatever the filter.

    A router id names a process from its start to its end: in a row the one that admitted the
    reservation, in the page the one that answers.
    """

    reservations: list[ReservationRow]
    total: int
    next: str | None
    router_id: int
