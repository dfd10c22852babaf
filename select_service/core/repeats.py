"""Bookings that are asked for again, by a client that lost the answer or by one that took over.

Such a request says so (`repeat`), and is answered with the booking that is there, if it is of the
same prompt.  Nothing is booked and nothing has to pass the gate: the load is there already.
"""

from typing import NamedTuple

import numpy as np

from select_service.bodies.reservations import Reservation, ReservationRequest
from select_service.bodies.selection import SelectAndReserveRequest, Selection
from select_service.core.decide.prompt import Prompt, PromptRead, booked_prompt_of
from select_service.core.decide.router_config import RouterConfig, overridden
from select_service.core.decisions import (
    booked_answer,
    overlap_in,
    refuse_unless_told,
    selection_of,
    with_what_was_asked,
)
from select_service.core.fleet.partition import Partition
from select_service.core.load.booking import BOOKED_BLOCKS_MAX
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger import Ledger, in_use
from select_service.core.prompts import Prompts


class _Held(NamedTuple):
    partition: Partition
    prompt: Prompt
    booking: Booking


class Repeats:
    """Answers requests that say that they are repeated."""

    def __init__(self, prompts: Prompts, ledger: Ledger, config: RouterConfig) -> None:
        self._prompts = prompts
        self._ledger = ledger
        self._config = config

    def selection(
        self, request: SelectAndReserveRequest, read: PromptRead | None, now: float
    ) -> Selection | None:
        """None: nothing is booked under its id.

        Its lease starts anew.  Raises Conflict when the booking is another prompt's, and what
        reading a prompt raises.
        """
        if not request.repeat or request.reservation_id is None:
            return None
        booking = self._ledger.standing(request.reservation_id)
        if booking is None:
            return None
        partition, prompt = self._prompts.read(request, read)
        refuse_unless_told(request, prompt)
        config = overridden(self._config, request.router_config_override)
        held = _Held(partition, prompt, booking)
        self._take_up(held, config, now)
        selection = _selection(held, config)
        return with_what_was_asked(selection, request, prompt)

    def reservation(
        self, request: ReservationRequest, read: PromptRead | None, now: float
    ) -> Reservation | None:
        """As `selection`, of one that the caller put on a rank; it may have moved since."""
        booking = self._ledger.standing(request.reservation_id) if request.repeat else None
        if booking is None:
            return None
        partition, prompt = self._prompts.read(request, read, booked_prompt_of)
        config = overridden(self._config, request.router_config_override)
        self._take_up(_Held(partition, prompt, booking), config, now)
        return booked_answer(booking.reservation_id, partition, booking.slot)

    def _take_up(self, held: _Held, config: RouterConfig, now: float) -> None:
        """Raises Conflict."""
        booking = held.booking
        if booking.account is not held.partition.account or not _is_of(held, config):
            raise in_use(booking)
        self._ledger.renew(booking.reservation_id, now)


def _is_of(held: _Held, config: RouterConfig) -> bool:
    """Is the booking of this prompt, as far as it is kept?

    config: what the request is booked by: without tracking no identities are kept, and without
            reuse others than the prompt's
    """
    booking, hashes = held.booking, held.prompt.sequence_hashes
    lengths = {held.prompt.isl_tokens}
    if booking.origin is not None:  # replicas are told of blocks, not of tokens
        lengths.add(len(hashes) * held.partition.block_size)
    if booking.isl_tokens not in lengths:
        return False
    kept = booking.prompt_blocks
    if not config.track_active_blocks:
        return kept == 0
    if not min(len(hashes), BOOKED_BLOCKS_MAX) <= kept <= len(hashes):
        return False
    return not config.assume_kv_reuse or np.array_equal(booking.sequence_hashes, hashes[:kept])


def _selection(held: _Held, config: RouterConfig) -> Selection:
    """As it was answered, with the overlap of this moment."""
    partition, prompt, booking = held
    matched = partition.index.match(prompt.block_hashes)
    overlap = overlap_in(partition, booking.rank, matched)
    tokens = booking.prefill_tokens
    if not config.track_prefill_tokens:
        credit_blocks = partition.placing.policy.credit_blocks
        held_blocks = credit_blocks(matched[booking.slot].tolist(), config)
        tokens = int(max(0.0, prompt.isl_tokens - held_blocks * partition.block_size))
    selection = selection_of(partition, booking.slot, overlap, tokens)
    selection.reservation_id = booking.reservation_id
    return selection
