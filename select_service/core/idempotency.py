"""Idempotent retries of bookings, by a client without the answer, or by its successor.

Such a request has the flag `repeat` and gets the existing booking, if made for the same prompt.
Nothing is booked and the admission gate is skipped, because the load is booked already.
"""

from typing import NamedTuple

import numpy as np

from select_service.core.decision_maker import (
    PlacementDecision,
    PlacementRequest,
)
from select_service.core.load.ledger import Ledger, id_in_use_error
from select_service.core.load.new_reservation import BOOKED_BLOCKS_MAX
from select_service.core.load.reservation_view import ReservationView
from select_service.core.pairs.pair_decisions import PairDecisions
from select_service.core.placement.prompt import Prompt, ReadAheadPrompt, read_booked_prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.prompt_resolver import PromptResolver
from select_service.core.registry.fleet.partition import Partition
from select_service.core.selection_answers import (
    AnsweredBusyThresholds,
    add_decode_load,
    check_hash_limit,
    describe_booking,
    echo_request_fields,
    make_reservation_answer,
    make_selection,
    mark_assumed,
    new_decode_blocks,
    overlap_of_worker,
)
from select_service.schemas.pairs import SelectPairAndReserveRequest
from select_service.schemas.reservations import Reservation, ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest, Selection


class _ExistingBooking(NamedTuple):
    partition: Partition
    prompt: Prompt
    booking: ReservationView


class IdempotentRetries:
    """Handler of repeated requests."""

    def __init__(
        self, prompts: PromptResolver, ledger: Ledger, busy_thresholds: AnsweredBusyThresholds
    ) -> None:
        self._prompts = prompts
        self._ledger = ledger
        self._busy_thresholds = busy_thresholds

    def find_selection(
        self, request: SelectAndReserveRequest, read: ReadAheadPrompt | None, now: float
    ) -> Selection | None:
        """Return the existing booking as a selection and renew its lease.  None means no booking.

        Raises Conflict when the booking has another prompt, and the errors of reading a prompt.
        """
        booking = self._find_repeated(request) if request.repeat else None
        if booking is None:
            return None
        partition, prompt, config = self._prompts.read_prompt(request, read)
        check_hash_limit(request, prompt)
        held = _ExistingBooking(partition, prompt, booking)
        self._renew_matching(held, config, now)
        selection = _repeat_selection(held, config)
        # The load of the booked blocks is part of the rank's load already.
        new_blocks = new_decode_blocks(partition, prompt, booking.prompt_blocks)
        add_decode_load(selection, partition, booking.slot, new_blocks, self._busy_thresholds)
        describe_booking(selection, booking.reservation_id, prompt, config)
        return echo_request_fields(selection, request, prompt)

    def find_pair(
        self,
        request: SelectPairAndReserveRequest,
        read: ReadAheadPrompt | None,
        pairs: PairDecisions,
        now: float,
    ) -> PlacementDecision | None:
        """Return the existing pair and renew its lease; raises like `find_selection`.

        Legs and hand-over are those of the first answer, or of the latest move; a pair that a peer
        booked gets a new hand-over.
        """
        booking = self._find_repeated(request) if request.repeat else None
        if booking is None:
            return None
        partition, prompt, config = self._prompts.read_prompt(request, read)
        self._renew_matching(_ExistingBooking(partition, prompt, booking), config, now)
        job = PlacementRequest(partition, prompt, request, config)
        return pairs.repeat_decision(job, booking)

    def _find_repeated(self, request: SelectAndReserveRequest) -> ReservationView | None:
        """Return the existing booking that a request repeats; None for one that books anew."""
        name = request.booking_id
        return None if name is None else self._ledger.find_active(name)

    def find_reservation(
        self, request: ReservationRequest, read: ReadAheadPrompt | None, now: float
    ) -> Reservation | None:
        """Return the existing booking of a rank chosen by the caller; a move may have changed
        the rank.
        """
        booking = self._ledger.find_active(request.booking_id) if request.repeat else None
        if booking is None:
            return None
        partition, prompt, config = self._prompts.read_prompt(request, read, read_booked_prompt)
        self._renew_matching(_ExistingBooking(partition, prompt, booking), config, now)
        return make_reservation_answer(request, partition, booking.slot)

    def _renew_matching(self, existing: _ExistingBooking, config: RouterConfig, now: float) -> None:
        """Check that the booking has the same prompt, and renew its lease.  Raises Conflict."""
        booking = existing.booking
        if booking.account is not existing.partition.account or not _is_same_prompt(
            existing, config
        ):
            raise id_in_use_error(booking)
        self._ledger.renew_lease(booking.reservation_id, now)


def _is_same_prompt(existing: _ExistingBooking, config: RouterConfig) -> bool:
    """Return whether the booking is of this prompt, as far as stored data shows.

    config: configuration of the request.  Without tracking, no block identities are stored; without
            reuse, these differ from the prompt's.
    """
    booking, hashes = existing.booking, existing.prompt.sequence_hashes
    lengths = {existing.prompt.isl_tokens}
    if booking.origin is not None:  # peers send numbers of blocks, not of tokens
        lengths.add(len(hashes) * existing.partition.block_size)
    if booking.isl_tokens not in lengths:
        return False
    # Peers and long prompts have fewer hashes than the request.
    kept = booking.prompt_blocks
    if not config.track_active_blocks:
        return kept == 0
    if not min(len(hashes), BOOKED_BLOCKS_MAX) <= kept <= len(hashes):
        return False
    return not config.assume_kv_reuse or np.array_equal(booking.sequence_hashes, hashes[:kept])


def _repeat_selection(existing: _ExistingBooking, config: RouterConfig) -> Selection:
    """Return the original answer, with the current overlap."""
    partition, prompt, booking = existing
    reuse, assumed = partition.match_assumed(prompt, config)
    n_assumed = 0 if assumed is None else int(assumed[booking.slot])
    overlap = overlap_of_worker(partition, booking.rank, reuse)
    mark_assumed(overlap, partition, n_assumed)
    tokens = booking.prefill_tokens
    if not config.track_prefill_tokens:
        credit_blocks = partition.placer.policy.credit_blocks
        held_blocks = credit_blocks(reuse.matched[booking.slot].tolist(), config)
        # Without tracking the booking has no prefill tokens: compute the answer's number again.
        tokens = int(max(0.0, prompt.isl_tokens - held_blocks * partition.block_size))
    return make_selection(partition, booking.slot, overlap, tokens)
