"""Placing and booking of prompts, shared by immediate requests and queued requests."""

from random import Random
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from indexer.hashing.block_hashing import Hashes
from select_service.core.booking_numbers import (
    PlacedPrefill,
    move_constraints_of,
    placed_prefill,
)
from select_service.core.kv_hints import KvHints
from select_service.core.kv_sources import FetchSources
from select_service.core.load.ledger import Ledger
from select_service.core.load.new_reservation import (
    NO_PROMPT,
    NewReservation,
    count_untracked_blocks,
)
from select_service.core.placement.candidate_explanation import CandidateTerms
from select_service.core.placement.decision_ring import DecisionRing, QueueWait
from select_service.core.placement.pending_selections import (
    PendingSelection,
    PendingSelections,
    encode_key,
)
from select_service.core.placement.prompt import Prompt, end_of
from select_service.core.placement.router_config import RouterConfig, apply_override
from select_service.core.registry.fleet.partition import Partition, RankPlacement
from select_service.core.selection_answers import (
    NO_BUSY_THRESHOLDS,
    AnsweredBusyThresholds,
    add_decode_load,
    chosen_rank_load,
    count_lookup,
    describe_booking,
    describe_shared,
    echo_request_fields,
    make_selection,
    new_decode_blocks,
    overlap_of_placement,
)
from select_service.core.sessions.session_router import (
    SessionRoute,
    SessionRouter,
    SessionScope,
    leased_session_of,
)
from select_service.schemas.kv_hint import KvHint
from select_service.schemas.pairs import PairSelection
from select_service.schemas.prompts import RouterConfigOverride
from select_service.schemas.reservations import ReservationRequest
from select_service.schemas.selection import (
    SelectAndReserveRequest,
    Selection,
    SelectRequest,
)
from select_service.schemas.sessions import SessionAnswer

_NO_HASHES: Hashes = np.zeros(0, np.uint64)


class PairChooser(Protocol):
    """Chooser of two ranks instead of one (see core.pairs)."""

    def leg_masks(
        self, partition: Partition, request: SelectRequest, allowed: npt.NDArray[np.bool_]
    ) -> list[npt.NDArray[np.bool_]]:
        """Return the allowed ranks for each leg without which there is no pair.

        Raises NoEligibleRank where a leg has none.
        """
        ...

    def decide(
        self, job: "PlacementRequest", eligible: npt.NDArray[np.bool_], now: float
    ) -> "PlacementDecision": ...


class PlacementRequest(NamedTuple):
    """Checked request for a rank.

    reserves: whether the choice books load, under `reservation_id` or, if None, under a new id
    explains: whether the decision lists the costs of every candidate
    queue_wait: time and place in the queue, if the request was queued
    session: session of the request; None without one
    pairs: chooses a pair of ranks instead of one rank
    """

    partition: Partition
    prompt: Prompt
    request: SelectRequest
    config: RouterConfig
    reserves: bool = False
    reservation_id: str | None = None
    explains: bool = False
    queue_wait: QueueWait | None = None
    session: SessionRoute | None = None
    pairs: "PairChooser | None" = None


class PlacementDecision(NamedTuple):
    """Selection and, if requested, the candidates with their cost terms.

    number: decision number in the ring; None means the decision was not recorded
    pair: chosen pair, with the selection as decode leg
    """

    selection: Selection
    candidates: list[CandidateTerms] | None = None
    queue_wait: QueueWait | None = None
    number: int | None = None
    pair: PairSelection | None = None


class DecisionMaker:
    """Decision maker of a process: chooses ranks and books load."""

    def __init__(
        self,
        ledger: Ledger,
        rng: Random,
        config: RouterConfig,
        ring: DecisionRing | None = None,
        busy_thresholds: AnsweredBusyThresholds = NO_BUSY_THRESHOLDS,
        pending: PendingSelections | None = None,
    ) -> None:
        """Build the decision maker.

        config: default configuration, of which a request may override a part
        ring: ring that records decisions, or None
        busy_thresholds: thresholds by which answers call the chosen rank busy
        pending: keeps the selections that a later booking may take over; None means none
        """
        self.ledger = ledger
        self.sessions: SessionRouter
        """Router of requests by their sessions, set once by the builder."""
        self.rng = rng
        self.config = config
        self.ring = ring
        self.busy_thresholds = busy_thresholds
        self._pending = pending if pending is not None and pending.is_on else None
        self.hints: KvHints | None = None
        """Maker of the hints in answers about bookings; None means without."""
        self.kv_sources: FetchSources | None = None
        """Finder of ranks to fetch from, in answers; None means without."""
        self.keeps_move_constraints = False
        """Whether bookings carry the request's migration constraints."""

    def decide(
        self, job: PlacementRequest, eligible: npt.NDArray[np.bool_], now: float
    ) -> PlacementDecision:
        """Choose a rank, and book the load there if the request reserves.

        eligible: bool[n_slots], at least one set
        Raises Conflict or CapacityExceeded, without having changed anything.
        """
        if job.pairs is not None:
            return job.pairs.decide(job, eligible, now)
        partition, prompt, request, config = job[:4]
        reservation_id = None
        if job.reserves:
            # All checks precede the placement: an error after booking would need an undo.
            reservation_id = self.free_id(job)
            self.ledger.reservations.check_room(len(prompt.sequence_hashes))
        draw, candidates, answer = self.rng.random(), None, None
        if job.session is not None and job.session.floor is not None:
            partition.placer.set_session_floor(*job.session.floor)
        placement = partition.place_prompt(prompt, request, config, eligible, draw)
        if job.explains:
            candidates = partition.explain_placement(
                prompt, request, config, eligible, placement.slot
            )
        if job.session is not None:
            answer = self.sessions.answer_route(job.session, placement.slot, eligible)
        # Before the booking: answers show the load without this request.
        selection = self._make_placed_selection(job, placement, reservation_id)
        if job.session is not None and job.session.is_pinned:
            # A session follows its reservation, so the session's rank binds neither a move nor a
            # replay.
            request = msgspec.structs.replace(request, pinned_worker=None)
        if reservation_id is not None:
            prefill = placed_prefill(placement, config)
            tracked = self.track_prompt(prompt, config)
            row = self.book_prompt(partition, tracked, request, prefill, reservation_id, now)
            if job.session is not None:
                self.bind_session(partition, row, job.session, now, answer)
        elif self._pending is not None and request.selection_id is not None:
            self._keep_selection(self._pending, job._replace(request=request), placement, now)
        partition.placer.count_placement(prompt, placement.slot, job.reserves)
        number = None
        if self.ring is not None:
            self.ring.commit_decision(
                now, job.reserves, request.selection_id, reservation_id, job.queue_wait
            )
            number = self.ring.newest_number
        if answer is not None:
            selection.session = answer
        if reservation_id is not None and partition.hint_slots:
            # After the selection: another match overwrites what the placement left behind.
            selection.kv_hint = self.make_hint(partition, placement.slot, prompt, reservation_id)
        return PlacementDecision(selection, candidates, job.queue_wait, number)

    def make_hint(
        self, partition: Partition, slot: int, prompt: Prompt, booking_id: str
    ) -> KvHint | UnsetType:
        """Return the hint for a booking, else unset."""
        if self.hints is None or not partition.hint_slots:
            return UNSET
        return self.hints.make_hint(partition, slot, prompt.block_hashes, booking_id) or UNSET

    def _keep_selection(
        self,
        pending: PendingSelections,
        job: PlacementRequest,
        placement: RankPlacement,
        now: float,
    ) -> None:
        partition, prompt, request, config = job[:4]
        selection_id, override = request.selection_id, request.router_config_override
        assert selection_id is not None
        if config.assume_kv_reuse and not apply_override(self.config, override).assume_kv_reuse:
            # The prompt gives identities, which the entry does not show.
            shares = msgspec.structs.replace(
                override or RouterConfigOverride(), assume_kv_reuse=True
            )
            request = msgspec.structs.replace(request, router_config_override=shares)
        entry = PendingSelection(
            partition.table.row_at(placement.slot).rank,
            partition.block_size,
            prompt,
            request,
            placement.effective_prefill_tokens,
            placement.own_work,
            placement.external,
            now,
        )
        pending.put(entry.encode(encode_key(partition.key, selection_id)))

    def book_selected(
        self,
        partition: Partition,
        slot: int,
        selected: PendingSelection,
        reservation_id: str,
        now: float,
    ) -> None:
        """Book an earlier selection as it was made, after all other checks.

        slot: slot of its rank now
        Raises BadRequest for a session that is bound elsewhere, without having changed anything.
        """
        request = selected.request
        config = apply_override(self.config, request.router_config_override)
        tokens = selected.effective_prefill_tokens if config.track_prefill_tokens else None
        prefill = PlacedPrefill(slot, tokens, selected.own_work, selected.cached_blocks)
        session = self.find_session(partition, selected.prompt, request, now)
        if session is not None:
            self.sessions.check_replay(session, slot)
        prompt = self.track_prompt(selected.prompt, config)
        row = self.book_prompt(partition, prompt, request, prefill, reservation_id, now)
        if session is not None:
            self.bind_session(partition, row, session, now)

    def _make_placed_selection(
        self, job: PlacementRequest, placement: RankPlacement, reservation_id: str | None
    ) -> Selection:
        partition, prompt, request, config = job[:4]
        overlap, slot = overlap_of_placement(partition, placement), placement.slot
        if prompt.shared is not None:
            overlap.shared = describe_shared(partition, slot, prompt.shared)
            count_lookup(partition, overlap, prompt.isl_tokens)
        tokens = placement.effective_prefill_tokens
        selection = make_selection(partition, slot, overlap, tokens)
        leading = int(partition.placer.scratch.leading[slot])
        new_blocks = new_decode_blocks(partition, prompt, leading)
        add_decode_load(selection, partition, slot, new_blocks, self.busy_thresholds)
        if request.advisory and not job.reserves:
            selection.worker_load = chosen_rank_load(partition, slot, self.busy_thresholds)
        if reservation_id is not None:
            describe_booking(selection, reservation_id, prompt, config)
        if self.kv_sources is not None:
            selection.kv_source = self.kv_sources.find_source(partition, placement) or UNSET
        return echo_request_fields(selection, request, prompt)

    def book_placed(
        self,
        partition: Partition,
        slot: int,
        prompt: Prompt,
        request: SelectAndReserveRequest,
        now: float,
    ) -> str:
        """Book the partition's last placement, made with the default configuration; return the id.

        Raises Conflict or CapacityExceeded, without having changed anything.
        """
        reservation_id, config = request.reservation_id, self.config
        if reservation_id is None:
            reservation_id = self.new_reservation_id()
        else:
            self.ledger.check_id_free(reservation_id)
        self.ledger.reservations.check_room(len(prompt.sequence_hashes))
        prefill = placed_prefill(RankPlacement(slot, *partition.placer.last_summary()), config)
        session = self.find_session(partition, prompt, request, now)
        tracked = self.track_prompt(prompt, config)
        row = self.book_prompt(partition, tracked, request, prefill, reservation_id, now)
        if session is not None:
            self.bind_session(partition, row, session, now)
        return reservation_id

    def bind_session(
        self,
        partition: Partition,
        row: int,
        session: SessionRoute,
        now: float,
        answer: SessionAnswer | None = None,
    ) -> None:
        """Bind the session of the reservation in a row to its rank; completes the answer."""
        booking = self.ledger.reservations.view_row(row)
        if answer is None:
            self.sessions.bind_replay(session, booking, now)
        else:
            self.sessions.bind_booking(session, answer, booking, now)
        self.sessions.note_slot(booking, partition.table)

    def book_prompt(
        self,
        partition: Partition,
        prompt: Prompt,
        request: SelectRequest | ReservationRequest,
        prefill: PlacedPrefill,
        reservation_id: str,
        now: float,
    ) -> int:
        """Book a prompt on a slot; return the row of the reservation.

        These are the only writes of an admission besides its session, after all checks.
        Arguments as for `make_booking`.
        """
        booking = self.make_booking(partition, prompt, request, prefill, reservation_id, now)
        return self.ledger.book(booking, "client", now)

    def make_booking(
        self,
        partition: Partition,
        prompt: Prompt,
        request: SelectRequest | ReservationRequest,
        prefill: PlacedPrefill,
        reservation_id: str,
        now: float,
    ) -> NewReservation:
        """Return the booking of a prompt on a slot.

        prompt: result of `track_prompt`
        request: request behind the booking
        """
        hashes, blocks = prompt.sequence_hashes, prompt.block_hashes
        booking = NewReservation(
            reservation_id,
            partition.account,
            partition.table.row_at(prefill.slot).rank,
            prefill.slot,
            hashes,
            prompt.isl_tokens,
            prefill.tokens or 0,
            now,
            tracks_prefill=prefill.tokens is not None,
            expected_output_tokens=request.expected_output_tokens,
            lora_name=request.lora_name,
            untracked_blocks=count_untracked_blocks(len(hashes)),
            own_work=prefill.own_work,
            cached_blocks=prefill.cached_blocks,
            prompt=blocks if partition.placer.policy.follows_prefills else NO_PROMPT,
            move_constraints=move_constraints_of(request, prompt.assumable_blocks)
            if self.keeps_move_constraints
            else None,
            session_id=None
            if isinstance(request, ReservationRequest)
            else leased_session_of(request),
            pair=prefill.pair,
            # Replicas place a leg of the pair by them.
            block_hashes=NO_PROMPT if prefill.pair is None else prompt.assumable_blocks,
            request_part=prefill.request_part,
        )
        if partition.assumed is not None:
            end = prompt.end or end_of(request, partition.block_size, partition.lookahead)
            booking = booking._replace(block_hashes=prompt.assumable_blocks, prompt_end=end)
        return booking

    def find_session(
        self, partition: Partition, prompt: Prompt, request: SelectRequest, now: float
    ) -> SessionRoute | None:
        """Return what the session of a request means for its rank; None without a session."""
        if request.session_id is None and request.session_context is None:
            return None
        scope = SessionScope(partition.key, partition.table, partition.block_size)
        return self.sessions.find_route(request, scope, prompt.isl_tokens, now)

    def is_ready_for_max_booking(self, partition: Partition) -> bool:
        """Return whether the next booking in the partition is a bounded step, whatever its size.

        On False, try again in the next turn of the event loop.
        """
        return self.ledger.is_ready_for_max_booking(partition.account.load)

    def new_reservation_id(self) -> str:
        return str(UUID(int=self.rng.getrandbits(128), version=4))

    def free_id(self, job: PlacementRequest) -> str:
        """Return the id to book, free at this moment.  Raises Conflict."""
        if job.reservation_id is None:
            return self.new_reservation_id()
        # Ids of immediate requests were checked on arrival, and nothing else has booked since.
        if job.queue_wait is not None:
            self.ledger.check_id_free(job.reservation_id)
        return job.reservation_id

    def track_prompt(self, prompt: Prompt, config: RouterConfig) -> Prompt:
        """Return the prompt with the block identities under which a booking counts.

        Without KV reuse, requests share no blocks: every booking gets fresh identities.
        """
        if config.track_active_blocks and config.assume_kv_reuse:
            return prompt
        if not config.track_active_blocks:
            return prompt._replace(sequence_hashes=_NO_HASHES)
        random = bytearray(self.rng.randbytes(8 * len(prompt.sequence_hashes)))
        return prompt._replace(sequence_hashes=np.frombuffer(random, np.uint64))
