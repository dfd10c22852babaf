"""Records of pairs, which let every replica move the legs of a pair."""

from msgspec import UNSET

from indexer.hashing.block_hashing import Hashes
from select_service.core.load.reservation_view import ReservationView
from select_service.core.pairs.pair_links import PairRequest
from select_service.core.placement.prompt import Prompt
from select_service.schemas.pairs import PairRecord, SelectPairAndReserveRequest
from select_service.schemas.prompts import RoutingConstraints


def make_pair_record(request: PairRequest, isl_tokens: int, move_tokens: int) -> PairRecord:
    """Return the record of a pair: what another replica needs to place a leg again."""
    is_migratable = not isinstance(request, SelectPairAndReserveRequest) or request.migratable
    return PairRecord(
        isl_tokens=isl_tokens,
        move_tokens=move_tokens,
        pinned_worker=request.pinned_worker,
        allowed_worker_ids=request.allowed_worker_ids,
        required_taints=request.routing_constraints.required_taints,
        prefill=request.prefill,
        decode=request.decode,
        local=request.local,
        topology=request.topology,
        migratable=is_migratable,
    )


def request_of_record(record: PairRecord, booking: ReservationView) -> SelectPairAndReserveRequest:
    """Return the request behind a pair that a peer booked, without the prompt.

    booking: decode leg
    """
    return SelectPairAndReserveRequest(
        model_name=booking.key.model_name,
        tenant_id=booking.key.tenant_id,
        routing_group=UNSET,
        reservation_id=booking.reservation_id,
        pinned_worker=record.pinned_worker,
        allowed_worker_ids=record.allowed_worker_ids,
        routing_constraints=RoutingConstraints(required_taints=record.required_taints),
        prefill=record.prefill,
        decode=record.decode,
        local=record.local,
        topology=record.topology,
        migratable=record.migratable,
    )


def prompt_of_record(record: PairRecord, booking: ReservationView, blocks: Hashes) -> Prompt:
    """Return the prompt of a pair that a peer booked.

    blocks: uint64[n], block hashes; if empty, no rank counts as holding a part of the prompt
    """
    return Prompt(blocks, booking.sequence_hashes, record.isl_tokens)
