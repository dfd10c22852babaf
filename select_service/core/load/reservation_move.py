"""State of a reservation on the way from one rank of the partition to another.

Id, age, lease, blocks and output move along.  The prefill moves along only if the cache is carried
over.  Otherwise the target must compute the prompt, and the reservation is prefilling again.
"""

from typing import NamedTuple

from indexer.hashing.block_hashing import Hashes
from select_service.core.identity import Rank
from select_service.core.load.compiled import ledger_layout as layout
from select_service.core.load.compiled.prefill_kernels import FOLLOWED_BLOCKS_MAX
from select_service.core.load.ledger_memory import LedgerMemory
from select_service.core.load.new_reservation import NO_PROMPT, NewReservation
from select_service.core.load.reservation_view import ReservationView
from select_service.schemas.pairs import PairRecord


class MoveTarget(NamedTuple):
    """Target of a move, in the same partition.

    prefill_tokens: tokens computed on the target; None means an unchanged prefill
    cached_blocks: prompt blocks present on the target
    prompt: uint64[n], block hashes for progress estimates on the target; None means unchanged
    assumable: uint64[n], block hashes, if the target may be assumed to hold them
    pair: request behind the pair of a moving decode leg; None for other reservations
    """

    rank: Rank
    slot: int
    prefill_tokens: int | None = None
    cached_blocks: int = 0
    prompt: Hashes | None = None
    assumable: Hashes = NO_PROMPT
    pair: PairRecord | None = None


class MovedValues(NamedTuple):
    """Row values of a booking on the target.

    own_work: 0 means that the prefill is not in the account
    """

    prefill_tokens: int
    is_prefilling: bool
    own_work: int
    cached_blocks: int
    prompt: Hashes


def values_after_move(
    memory: LedgerMemory, booking: ReservationView, to: MoveTarget
) -> MovedValues:
    """Return the row values of a booking on the target, without any change."""
    at = booking.row * layout.FIELDS
    fields, work = memory.fields, booking.prefill_work
    prompt = to.prompt
    if prompt is None:
        prompt = booking.prompt_beginning(FOLLOWED_BLOCKS_MAX) if work else NO_PROMPT
    if to.prefill_tokens is not None:
        tokens = to.prefill_tokens
        return MovedValues(tokens, True, max(1, tokens), to.cached_blocks, prompt)
    tokens, prefilling = fields[at + layout.TOKENS], bool(fields[at + layout.IS_PREFILLING])
    return MovedValues(tokens, prefilling, work, fields[at + layout.CACHED], prompt)


def as_new_reservation(booking: ReservationView, to: MoveTarget) -> NewReservation:
    """Return a moved booking as a new booking, for followers that receive a move as a booking.

    booking: the reservation on its new rank
    """
    return NewReservation(
        booking.reservation_id,
        booking.account,
        booking.rank,
        booking.slot,
        booking.sequence_hashes,
        booking.isl_tokens,
        booking.prefill_tokens,
        booking.booked_at,
        booking.origin,
        tracks_prefill=booking.prefill_work > 0 or not booking.is_prefilling,
        is_prefilling=booking.is_prefilling,
        untracked_blocks=booking.untracked_blocks,
        own_work=booking.prefill_work,
        cached_blocks=booking.cached_blocks,
        block_hashes=to.assumable,
        pair=to.pair,
    )
