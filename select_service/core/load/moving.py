"""A reservation on its way from one rank of its partition to another: what it takes along.

Its id, age and lease, its blocks and output go with it.  Its prefill does, too, if its cache is
carried over; otherwise the target has to compute it, and it is prefilling again.
"""

from typing import NamedTuple

import numpy as np

from indexer.hashing.hashes import Hashes
from select_service.core.identity import Rank
from select_service.core.load import ledger_call_kernels as verbs
from select_service.core.load import ledger_layout as layout
from select_service.core.load.booking import NewBooking
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


class Lasting(NamedTuple):
    """What no booking can be told: output that counts less, and since when its lease runs."""

    whole: int
    faded: int
    fraction: float
    renewed_at: float
    ends_at: float

    @classmethod
    def of(cls, memory: LedgerMemory, row: int) -> "Lasting":
        at = row * layout.FIELDS
        return cls(
            memory.fields[at + layout.WHOLE],
            memory.fields[at + layout.FADED],
            memory.times[at + layout.FRACTION],
            memory.times[at + layout.RENEWED_AT],
            float(memory.ends[row]),
        )

    @property
    def booked_blocks(self) -> int:
        """Without a name, before `restore`."""
        return self.faded - 1 if self.faded else self.whole

    def restore(self, memory: LedgerMemory, row: int, name: bytes, now: float) -> None:
        """Let the row, which was booked with `booked_blocks`, be as it was.

        O(output blocks since the last that had a weight)
        """
        if self.faded:
            verbs.add_output_block(memory.header, name, self.fraction, now)
            for _ in range(self.whole):
                verbs.add_output_block(memory.header, name, np.nan, now)
        memory.lease(row, self.renewed_at, self.ends_at)


def moved(booking: Booking, to: MoveTo, blocks: int) -> NewBooking:
    """The booking on the target.  blocks: that have no name"""
    stays = to.prefill_tokens is None
    prefilling = booking.prefilling if stays else True
    work = booking.work
    prompt = booking.first_of_prompt(FOLLOWED_BLOCKS_MAX) if to.prompt is None else to.prompt
    return NewBooking(
        booking.reservation_id,
        booking.account,
        to.rank,
        to.slot,
        booking.sequence_hashes,
        booking.isl_tokens,
        booking.prefill_tokens if to.prefill_tokens is None else to.prefill_tokens,
        booking.booked_at,
        origin=booking.origin,
        tracks_prefill=work > 0 or not stays or not prefilling,
        prefilling=prefilling,
        nameless=blocks,
        own_work=work if stays else None,
        cached_blocks=booking.cached_blocks if stays else to.cached_blocks,
        prompt=prompt,
    )
