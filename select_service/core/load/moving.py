"""A reservation on its way from one rank of its partition to another: what it takes along.

Its id, age and lease, its blocks and output go with it.  Its prefill does, too, if its cache is
carried over; otherwise the target has to compute it, and it is prefilling again.
"""

from math import nan
from typing import NamedTuple

from indexer.hashing.hashes import Hashes
from select_service.core.identity import Rank
from select_service.core.load import ledger_call_kernels as verbs
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


class OnTheWay(NamedTuple):
    """A booking between two ranks.

    new:     as it is booked on the target, with output that has no weight of its own
    whole, faded, fraction: its output, and what a faded block counts
    renewed_at, ends_at:    its lease
    drained: prefill tokens and prompt blocks that its end counts as done, though they are not
    """

    new: NewBooking
    whole: int
    faded: int
    fraction: float
    renewed_at: float
    ends_at: float
    drained: tuple[int, int]

    def restore(self, memory: LedgerMemory, row: int, now: float) -> None:
        """Let the row of the new booking be as the old one was.

        O(output blocks since the last that had a weight)
        """
        if self.faded:
            name = self.new.reservation_id.encode()
            verbs.add_output_block(memory.header, name, self.fraction, now)
            for _ in range(self.whole):
                verbs.add_output_block(memory.header, name, nan, now)
        memory.lease(row, self.renewed_at, self.ends_at)


def on_the_way(memory: LedgerMemory, booking: Booking, to: MoveTo) -> OnTheWay:
    """What of a booking is to be booked on the target.  Reads only"""
    at, row = booking.row * layout.FIELDS, booking.row
    fields = memory.fields[at : at + layout.FIELDS].tolist()
    times = memory.times
    whole, faded, work = fields[layout.WHOLE], fields[layout.FADED], fields[layout.WORK]
    tokens, prefilling = fields[layout.TOKENS], bool(fields[layout.IS_PREFILLING])
    stays = to.prefill_tokens is None
    prompt = to.prompt
    if prompt is None:
        prompt = booking.first_of_prompt(FOLLOWED_BLOCKS_MAX) if work else NO_PROMPT
    new = NewBooking(
        booking.reservation_id,
        booking.account,
        to.rank,
        to.slot,
        booking.sequence_hashes,
        fields[layout.ISL_TOKENS],
        tokens if to.prefill_tokens is None else to.prefill_tokens,
        times[at + layout.BOOKED_AT],
        booking.origin,
        tracks_prefill=work > 0 or not stays or not prefilling,
        prefilling=prefilling or not stays,
        nameless=faded - 1 if faded else whole,
        own_work=work if stays else None,
        cached_blocks=fields[layout.CACHED] if stays else to.cached_blocks,
        prompt=prompt,
    )
    return OnTheWay(
        new,
        whole,
        faded,
        times[at + layout.FRACTION],
        times[at + layout.RENEWED_AT],
        float(memory.ends[row]),
        (tokens, fields[layout.BLOCKS]),
    )
