"""Bookings of a placed pair: the prefill and decode leg, the record for peers, the transfer."""

from indexer.hashing.block_hashing import Hashes
from select_service.core.booking_numbers import PlacedPrefill
from select_service.core.decision_maker import PlacementRequest
from select_service.core.load.compiled.ledger_layout import OTHER_PART, WHOLE_REQUEST
from select_service.core.load.new_reservation import NO_PROMPT
from select_service.core.pairs.pair_book import BookedTransfer
from select_service.core.pairs.pair_links import PairRequest
from select_service.core.pairs.pair_placer import PairPlacement, PairPlacer
from select_service.core.pairs.pair_records import make_pair_record
from select_service.schemas.pairs import (
    PairRecord,
    SelectPairAndReserveRequest,
    SelectPairRequest,
)
from select_service.schemas.selection import SelectRequest


def assumable_blocks_of(job: PlacementRequest) -> Hashes:
    """Return the block hashes of a prompt where ranks may be assumed to hold the blocks."""
    return NO_PROMPT if job.partition.assumed is None else job.prompt.assumable_blocks


def record_of_job(job: PlacementRequest, move_tokens: int) -> PairRecord:
    """Return the record of a pair for peers.  move_tokens: tokens that move between the legs"""
    return make_pair_record(as_pair_request(job.request), job.prompt.isl_tokens, move_tokens)


def make_transfer(
    placer: PairPlacer, slots: tuple[int, int], tokens: float, cost: float | None = None
) -> BookedTransfer:
    """Return the transfer between the slots of a prefill and a decode leg.

    cost: price of the move; None means that no duration is predicted
    """
    (route, level), speed = placer.link_between(*slots), placer.groups.speed
    predicted_s = cost / speed if speed and cost is not None else None
    return BookedTransfer(placer, route, tokens, level, predicted_s)


def as_pair_request(request: SelectRequest) -> PairRequest:
    """Return the request behind a pair with the exact type."""
    assert isinstance(request, SelectPairRequest | SelectPairAndReserveRequest)
    return request


def count_uncached(job: PlacementRequest, placement: PairPlacement) -> int:
    """Return the prompt tokens that the rank of the prefill has to compute."""
    cached = round(placement.cached_tokens) + round(placement.credit)
    return max(0, job.prompt.isl_tokens - cached)


def prefill_of(job: PlacementRequest, placement: PairPlacement) -> PlacedPrefill:
    """Return the prefill of a placement, on the prefill rank or on the rank of both legs."""
    return PlacedPrefill(
        placement.prefill_slot,
        count_uncached(job, placement) if job.config.track_prefill_tokens else None,
        round(placement.own_work),
        round(placement.cached_tokens) // job.partition.block_size,
    )


def count_observed(isl_tokens: int, cached_tokens: float, own_work: float) -> int:
    """Return the tokens to compute that the ledger observes of a rank with both legs."""
    return min(isl_tokens, max(isl_tokens - round(cached_tokens), round(own_work), 1))


def decode_of(job: PlacementRequest, placement: PairPlacement) -> PlacedPrefill:
    """Return the booking of the decode leg, with the prefill if both legs share a rank."""
    record = record_of_job(job, round(placement.move_tokens))
    if placement.prefill is None:
        return prefill_of(job, placement)._replace(pair=record, request_part=WHOLE_REQUEST)
    return PlacedPrefill(placement.decode, None, pair=record, request_part=OTHER_PART)
