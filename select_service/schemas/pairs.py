"""Bodies of /select_pair and /select_pair_and_reserve: prefill and decode on two ranks."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from select_service.schemas.common import (
    ALLOWED_WORKERS_MAX,
    TAINTS_MAX,
    U64,
    U64_MAX,
    Fraction,
    Name,
    RequestBody,
)
from select_service.schemas.kv_transfer import TransferKind
from select_service.schemas.prompts import PinnedWorker
from select_service.schemas.selection import Overlap, SelectAndReserveRequest, SelectRequest
from select_service.schemas.sessions import SessionAnswer

PairPath = Literal["remote", "local"]
LocalRule = Literal["auto", "never", "always"]
HandoffOrder = Literal["sequential", "concurrent"]


class LegConstraints(RequestBody, kw_only=True):
    """Constraints of one leg of a pair."""

    allowed_worker_ids: Annotated[list[U64], Meta(max_length=ALLOWED_WORKERS_MAX)] | None = None
    """Ids of the eligible workers; all workers when omitted."""

    def __post_init__(self) -> None:
        # A limit of the type would exclude integers above 2**63.
        if self.allowed_worker_ids and max(self.allowed_worker_ids) > U64_MAX:
            raise ValueError("allowed_worker_ids: not all fit in an unsigned 64-bit integer")


class PairTopology(RequestBody, kw_only=True):
    """Rule about the topology domain of both legs, instead of the rules of the workers."""

    domain: Name
    """Kind of domain, a key of `topology_domains`."""
    enforcement: Literal["required", "preferred"] = "preferred"
    """`required`: both legs in the same domain, or one rank; `preferred`: moves within are
    cheaper.
    """
    weight: Fraction = 0.5
    """Share of the price of a move that is saved within the domain; for `preferred`."""


class SelectPairRequest(SelectRequest, kw_only=True):
    """Body of POST /select_pair."""

    prefill: LegConstraints | None = None
    """Constraints of the prefill leg, besides those of the request."""
    decode: LegConstraints | None = None
    """Constraints of the decode leg, besides those of the request."""
    local: LocalRule = "auto"
    """Whether one rank may do both: `auto` if it is cheaper, `never`, or `always`."""
    topology: PairTopology | None = None
    """Rule about the topology domain of both legs; that of the workers when omitted."""


class SelectPairAndReserveRequest(SelectAndReserveRequest, kw_only=True):
    """Body of POST /select_pair_and_reserve."""

    prefill: LegConstraints | None = None
    """Constraints of the prefill leg, besides those of the request."""
    decode: LegConstraints | None = None
    """Constraints of the decode leg, besides those of the request."""
    local: LocalRule = "auto"
    """Whether one rank may do both: `auto` if it is cheaper, `never`, or `always`."""
    topology: PairTopology | None = None
    """Rule about the topology domain of both legs; that of the workers when omitted."""


class PairRecord(Struct, kw_only=True, omit_defaults=True):
    """Request behind a pair, as replicas need it to move a leg."""

    isl_tokens: Annotated[int, Meta(ge=0)]
    """Length of the prompt in tokens."""
    move_tokens: Annotated[int, Meta(ge=0)] = 0
    """Tokens whose KV blocks have to move and still count; 0 for one rank."""
    pinned_worker: PinnedWorker | None = None
    """The only rank."""
    allowed_worker_ids: Annotated[list[U64], Meta(max_length=ALLOWED_WORKERS_MAX)] | None = None
    """Eligible workers; null: all."""
    required_taints: Annotated[list[Name], Meta(max_length=TAINTS_MAX)] = field(
        default_factory=list
    )
    """Taints that a worker must have."""
    prefill: LegConstraints | None = None
    """Constraints of the prefill leg."""
    decode: LegConstraints | None = None
    """Constraints of the decode leg."""
    local: LocalRule = "auto"
    """Whether one rank may do both."""
    topology: PairTopology | None = None
    """Rule about the topology domain."""
    migratable: bool = True
    """Whether selectors may move a leg without being asked."""

    def __post_init__(self) -> None:
        # Lists of peers are JSON, whose integers have any size; a move would fail at such an id.
        if self.allowed_worker_ids and max(self.allowed_worker_ids) > U64_MAX:
            raise ValueError("allowed_worker_ids: not all fit in an unsigned 64-bit integer")


class ExplainRequest(SelectPairRequest, kw_only=True):
    """Body of POST /explain."""

    pair: bool = False
    """Whether a pair is chosen, as by /select_pair; `prefill`, `decode`, `local` and `topology`
    have no effect otherwise.
    """


class LegMove(RequestBody, kw_only=True):
    """Body of POST /reservations/{reservation_id}/move."""

    leg: Literal["prefill", "decode"]
    """Leg that leaves its rank."""


class PairLeg(Struct, kw_only=True):
    """One leg of a pair."""

    leg: Literal["prefill", "decode"]
    """Part of the request."""
    worker_id: int
    """Id of the worker."""
    dp_rank: int
    """Data-parallel rank of the worker, to be passed on to the engine."""
    endpoint: str
    """Request endpoint of the worker, as registered."""
    overlap: Overlap
    """Leading part of the prompt held by the worker."""
    cached_tokens: int
    """Prompt tokens that the rank holds."""
    own_work: int
    """Prompt tokens that the rank would compute for this request alone."""


class Handoff(Struct, kw_only=True):
    """Hand-over of the KV blocks, as the engines' connector needs it."""

    order: HandoffOrder
    """`sequential`: call the decode worker with the prefill worker's reply; `concurrent`: call both
    at once.
    """
    peer_binding: bool
    """Whether the calls need parameters that name the other worker (`requires_peer_binding` of
    Ray).
    """
    kind: TransferKind | UnsetType = UNSET
    """Connector of the workers; absent when not registered."""
    prefill_params: dict[str, Any] | UnsetType = UNSET
    """Fields to add to the body of the call to the prefill worker."""
    decode_params: dict[str, Any] | UnsetType = UNSET
    """Fields to add to the body of the call to the decode worker; to the fields of an object that
    was passed on.
    """
    pass_on: str | UnsetType = UNSET
    """Field of the body of the call to the decode worker that takes the object at `reply_path`."""
    reply_path: str | UnsetType = UNSET
    """Path of the object in the prefill worker's reply, with dots; it is passed on verbatim."""
    missing: list[str] = field(default_factory=list)
    """Fields of `kv_transfer` whose values the parameters need and no registration gives; the
    caller fills in the parameters.
    """


class PairSelection(Struct, kw_only=True):
    """Response with a chosen pair, or with one rank for both legs."""

    selection_id: str | UnsetType = UNSET
    """Id sent with the request; absent without an id."""
    reservation_id: str | UnsetType = UNSET
    """Id of the reservation of both legs; absent when nothing was booked."""
    model_name: str
    """Model of the workers."""
    tenant_id: str
    """Tenant of the workers."""
    routing_group: str
    """The same, under Dynamo's name."""
    block_size: int
    """Tokens in a block."""
    path: PairPath
    """`remote`: two ranks; `local`: the decode rank also computes the prompt."""
    reason: str
    """Reason for the path: `cheaper`, `only_choice` or `requested`; `threshold` with `--policy
    reference`, which decides by Dynamo's conditional rule and compares no costs.
    """
    legs: list[PairLeg]
    """Prefill, then decode; for `local` both are the same rank."""
    effective_prefill_tokens: int
    """Prompt tokens that the prefill leg has to compute."""
    move_tokens: int
    """Prompt tokens whose KV blocks move to the decode rank; 0 for `local`."""
    move_cost: float
    """Price of the move, in tokens of prefill work."""
    local_cost: float | None
    """Smallest cost of one rank for both legs, tokens of prefill work; null without such a rank."""
    remote_cost: float | None
    """Smallest cost of two ranks; null without such a pair."""
    handoff: Handoff | UnsetType = UNSET
    """Hand-over of the KV blocks; absent for `local`."""
    session: SessionAnswer | UnsetType = UNSET
    """Session of the request and the rank it is bound to, that of the decode leg; absent without a
    session.
    """
