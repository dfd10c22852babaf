"""A reservation on its way from one rank of its partition to another: what it takes along.

Its id, age and lease, its blocks and output go with it.  Its prefill does, too, if its cache is
carried over; otherwise the target has to compute it, and it is prefilling again.
"""

from typing import NamedTuple

from indexer.hashing.hashes import Hashes
from select_service.core.identity import Rank
from select_service.core.load import ledger_layout as layout
from select_service.core.load.booking import NO_PROMPT, NewBooking
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger_memory import LedgerMemory
from select_service.core.load.prefill_kernels import FOLLOWED_BLOCKS_MAX


class MoveTo(NamedTuple):
    """Where to, in the same partition.

    prefill_tokens: that are computed there; None: its prefill stays as it is
    cached_blocks:  of the prompt, that are there already
    prompt:         uint64[n], its block hashes, to be followed there; None: as it was
    """

    rank: Rank
    slot: int
    prefill_tokens: int | None = None
    cached_blocks: int = 0
    prompt: Hashes | None = None


class Moved(NamedTuple):
    """Of a booking, what its row says on the target.

    own_work: 0: its prefill is not in the account
    """

    prefill_tokens: int
    prefilling: bool
    own_work: int
    cached_blocks: int
    prompt: Hashes


def moved(memory: LedgerMemory, booking: Booking, to: MoveTo) -> Moved:
    """Reads only."""
    at = booking.row * layout.FIELDS
    fields, work = memory.fields, booking.work
    prompt = to.prompt
    if prompt is None:
        prompt = booking.first_of_prompt(FOLLOWED_BLOCKS_MAX) if work else NO_PROMPT
    if to.prefill_tokens is not None:
        tokens = to.prefill_tokens
        return Moved(tokens, True, max(1, tokens), to.cached_blocks, prompt)
    tokens, prefilling = fields[at + layout.TOKENS], bool(fields[at + layout.IS_PREFILLING])
    return Moved(tokens, prefilling, work, fields[at + layout.CACHED], prompt)


def as_new(booking: Booking) -> NewBooking:
    """A booking that has moved, for those who hear of it as of another one."""
    return NewBooking(
        booking.reservation_id,
        booking.account,
        booking.rank,
        booking.slot,
        booking.sequence_hashes,
        booking.isl_tokens,
        booking.prefill_tokens,
        booking.booked_at,
        booking.origin,
        tracks_prefill=booking.work > 0 or not booking.prefilling,
        prefilling=booking.prefilling,
        nameless=booking.nameless,
        own_work=booking.work,
        cached_blocks=booking.cached_blocks,
    )
