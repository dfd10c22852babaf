"""Placing and booking of prompts, shared by immediate requests and queued requests."""

from random import Random
from typing import NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from indexer.hashing.block_hashing import Hashes
from indexer.index.prefix_index import ReuseMatch
from select_service.base.errors import BadRequest
from select_service.core.identity import Rank
from select_service.core.load.ledger import Ledger
from select_service.core.load.new_reservation import (
    NO_PROMPT,
    MoveConstraints,
    NewReservation,
    count_untracked_blocks,
)
from select_service.core.placement.candidate_explanation import CandidateTerms
from select_service.core.placement.decision_ring import DecisionRing, QueueWait
from select_service.core.placement.placer import PINNED_RANK
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.partition import Partition, RankPlacement
from select_service.schemas.reservations import Reservation, ReservationRequest
from select_service.schemas.selection import (
    Overlap,
    SelectAndReserveRequest,
    Selection,
    SelectRequest,
)

_NO_HASHES: Hashes = np.zeros(0, np.uint64)
RETURNED_HASHES_MAX = 131_072
"""Maximum number of sequence hashes in one answer, some milliseconds of work."""


class PlacementRequest(NamedTuple):
    """Checked request for a rank.

    reserves: whether the choice books load, under `reservation_id` or, if None, under a new id
    explains: whether the decision lists the costs of every candidate
    queue_wait: time and place in the queue, if the request was queued
    """

    partition: Partition
    prompt: Prompt
    request: SelectRequest
    config: RouterConfig
    reserves: bool = False
    reservation_id: str | None = None
    explains: bool = False
    queue_wait: QueueWait | None = None


class PlacementDecision(NamedTuple):
    """Selection and, if requested, the candidates with their cost terms.

    number: decision number in the ring; None means the decision was not recorded
    """

    selection: Selection
    candidates: list[CandidateTerms] | None = None
    queue_wait: QueueWait | None = None
    number: int | None = None


class PlacedPrefill(NamedTuple):
    """Prefill of a prompt on the slot it is booked on.

    tokens: prefill tokens; None means prefill is not tracked
    own_work: tokens the rank would compute; None means all booked tokens
    cached_blocks: prompt blocks present on the rank
    """

    slot: int
    tokens: int | None
    own_work: int | None = None
    cached_blocks: int = 0


class DecisionMaker:
    """Decision maker of one process: chooses ranks and books load."""

    def __init__(
        self, ledger: Ledger, rng: Random, config: RouterConfig, ring: DecisionRing | None = None
    ) -> None:
        """Build the decision maker.

        config: default configuration, of which a request may override a part
        ring: ring that records decisions, or None
        """
        self._ledger = ledger
        self.rng = rng
        self.config = config
        self.ring = ring
        self.keeps_move_constraints = False
        """Whether bookings carry the request's migration constraints."""

    def decide(
        self, job: PlacementRequest, eligible: npt.NDArray[np.bool_], now: float
    ) -> PlacementDecision:
        """Choose a rank, and book the load there if the request reserves.

        eligible: bool[n_slots], at least one set
        Raises Conflict or CapacityExceeded, without having changed anything.
        """
        partition, prompt, request, config = job[:4]
        reservation_id = None
        if job.reserves:
            # All checks precede the placement: an error after booking would need an undo.
            reservation_id = self._free_id(job)
            self._ledger.reservations.check_room(len(prompt.sequence_hashes))
        draw, candidates = self.rng.random(), None
        placement = partition.place_prompt(prompt, request, config, eligible, draw)
        if job.explains:
            candidates = partition.explain_placement(
                prompt, request, config, eligible, placement.slot
            )
        if reservation_id is not None:
            prefill = _placed_prefill(placement, config)
            tracked = self.track_prompt(prompt, config)
            self.book_prompt(partition, tracked, request, prefill, reservation_id, now)
        partition.placer.count_placement(prompt, placement.slot, job.reserves)
        number = None
        if self.ring is not None:
            self.ring.commit_decision(
                now, job.reserves, request.selection_id, reservation_id, job.queue_wait
            )
            number = self.ring.newest_number
        return PlacementDecision(
            _make_placed_selection(job, placement, reservation_id),
            candidates,
            job.queue_wait,
            number,
        )

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
            self._ledger.check_id_free(reservation_id)
        self._ledger.reservations.check_room(len(prompt.sequence_hashes))
        prefill = _placed_prefill(RankPlacement(slot, *partition.placer.last_summary()), config)
        tracked = self.track_prompt(prompt, config)
        self.book_prompt(partition, tracked, request, prefill, reservation_id, now)
        return reservation_id

    def book_prompt(
        self,
        partition: Partition,
        prompt: Prompt,
        request: SelectRequest | ReservationRequest,
        prefill: PlacedPrefill,
        reservation_id: str,
        now: float,
    ) -> None:
        """Book a prompt on a slot.  These are the only writes of an admission, after all checks.

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
            move_constraints=move_constraints_of(request, blocks)
            if self.keeps_move_constraints
            else None,
        )
        self._ledger.book(booking, "client", now)

    def is_ready_for_max_booking(self, partition: Partition) -> bool:
        """Return whether the next booking in the partition is a bounded step, whatever its size.

        On False, try again in the next turn of the event loop.
        """
        return self._ledger.is_ready_for_max_booking(partition.account.load)

    def new_reservation_id(self) -> str:
        return str(UUID(int=self.rng.getrandbits(128), version=4))

    def _free_id(self, job: PlacementRequest) -> str:
        """Return the id to book, free at this moment.  Raises Conflict."""
        if job.reservation_id is None:
            return self.new_reservation_id()
        # Ids of immediate requests were checked on arrival, and nothing else has booked since.
        if job.queue_wait is not None:
            self._ledger.check_id_free(job.reservation_id)
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


def _placed_prefill(placement: RankPlacement, config: RouterConfig) -> PlacedPrefill:
    tokens = placement.effective_prefill_tokens if config.track_prefill_tokens else None
    return PlacedPrefill(placement.slot, tokens, placement.own_work, placement.external)


def move_constraints_of(
    request: SelectRequest | ReservationRequest, block_hashes: Hashes
) -> MoveConstraints:
    """Return the migration constraints of a request.

    block_hashes: uint64[n], block hashes of the prompt
    """
    if isinstance(request, ReservationRequest):
        return MoveConstraints(block_hashes, migratable=request.migratable)
    pinned, allowed = request.pinned_worker, request.allowed_worker_ids
    required, priority = request.routing_constraints.required_taints, request.strict_priority or 0
    migratable = not isinstance(request, SelectAndReserveRequest) or request.migratable
    if migratable and not (priority or pinned is not None or allowed is not None or required):
        return MoveConstraints(block_hashes)
    return MoveConstraints(
        block_hashes,
        priority=priority,
        migratable=migratable,
        pinned=None if pinned is None else Rank(pinned.worker_id, pinned.dp_rank),
        allowed=None if allowed is None else frozenset(allowed),
        required=frozenset(required),
    )


def _make_placed_selection(
    job: PlacementRequest, placement: RankPlacement, reservation_id: str | None
) -> Selection:
    overlap = _overlap_of_placement(job.partition, placement)
    tokens = placement.effective_prefill_tokens
    selection = make_selection(job.partition, placement.slot, overlap, tokens)
    if reservation_id is not None:
        selection.reservation_id = reservation_id
    return echo_request_fields(selection, job.request, job.prompt)


def echo_request_fields(selection: Selection, request: SelectRequest, prompt: Prompt) -> Selection:
    """Add the request's own id and, if requested, the hashes of the prompt."""
    if request.selection_id is not None:
        selection.selection_id = request.selection_id
    if request.include_hashes:
        selection.sequence_hashes = prompt.sequence_hashes.tolist()
        selection.isl_tokens = prompt.isl_tokens
    return selection


def check_hash_limit(request: SelectRequest, prompt: Prompt) -> None:
    """Raise BadRequest when a request needs more hashes than an answer may have."""
    if request.include_hashes and len(prompt.sequence_hashes) > RETURNED_HASHES_MAX:
        raise BadRequest(
            f"include_hashes: the prompt has {len(prompt.sequence_hashes)} blocks; "
            f"at most {RETURNED_HASHES_MAX} hashes are returned; leave include_hashes out"
        )


def make_selection(
    partition: Partition, slot: int, overlap: Overlap, effective_prefill_tokens: int
) -> Selection:
    """Return a selection without ids."""
    row = partition.table.row_at(slot)
    return Selection(
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        worker_id=row.rank.worker_id,
        dp_rank=row.rank.dp_rank,
        endpoint=row.worker.registration.endpoint or "",
        block_size=partition.block_size,
        overlap=overlap,
        effective_prefill_tokens=effective_prefill_tokens,
    )


def _overlap_of_placement(partition: Partition, placement: RankPlacement) -> Overlap:
    """Return the matched tokens of the worker: GPU tokens by rank, and cumulative best-rank
    values.
    """
    size, table = partition.block_size, partition.table
    rank = table.row_at(placement.slot).rank
    if len(table.slots_of(rank.worker_id)) > 1 or partition.index.has_layouts:
        reuse = partition.index.last_reuse(partition.placer.scratch.matched)
        return overlap_of_worker(partition, rank, reuse)
    gpu, cpu, disk = placement.gpu, placement.cpu, placement.external
    dp = {rank.dp_rank: size * gpu}
    return Overlap(
        longest_matched=size * disk, gpu=size * gpu, dp=dp, cpu=size * cpu, disk=size * disk
    )


def overlap_of_worker(partition: Partition, rank: Rank, reuse: ReuseMatch) -> Overlap:
    """Return the overlap of a rank's worker."""
    table = partition.table
    slots = table.slots_of(rank.worker_id)
    tokens = partition.block_size * reuse.matched[slots].astype(np.int64)
    if reuse.inside is not None:
        tokens += reuse.inside[slots, np.newaxis]
    rows = tokens.tolist()
    ranks = (table.row_at(slot).rank.dp_rank for slot in slots)
    dp = {dp_rank: row[0] for dp_rank, row in zip(ranks, rows, strict=True)}
    gpu, cpu, _, disk = map(max, zip(*rows, strict=True))
    overlap = Overlap(longest_matched=disk, gpu=gpu, dp=dp, cpu=cpu, disk=disk)
    slot = table.find_slot(rank)
    if reuse.bounded is not None and reuse.layouts is not None and reuse.layouts[slot]:
        overlap.certainty = "at_most" if reuse.bounded[slot] else "exact"
    return overlap


def booked_tokens(request: ReservationRequest, prompt: Prompt, config: RouterConfig) -> int | None:
    """Return the prefill tokens of a reservation.

    The caller's number wins; otherwise the whole prompt counts, if prefill is tracked.
    """
    tokens = request.effective_prefill_tokens
    if tokens is None:
        return prompt.isl_tokens if config.track_prefill_tokens else None
    if tokens > prompt.isl_tokens:
        raise BadRequest(
            f"effective_prefill_tokens ({tokens}) must not exceed isl_tokens ({prompt.isl_tokens})"
        )
    return tokens


def estimate_prefill(
    partition: Partition, slot: int, prompt: Prompt, config: RouterConfig, tokens: int | None
) -> PlacedPrefill:
    """Return the prefill of a prompt on the rank chosen by the caller.

    tokens: booked prefill tokens, the upper limit of the own work
    """
    placing = partition.placer
    if tokens is None or not placing.policy.follows_prefills:
        return PlacedPrefill(slot, tokens)
    # A placement with a single candidate gives the overlap on that rank.
    there = np.zeros(partition.table.n_slots, np.bool_)
    there[slot] = True
    placing.place_prompt(prompt, config, there, PINNED_RANK)
    found = RankPlacement(slot, *placing.last_summary())
    return PlacedPrefill(slot, tokens, min(tokens, found.own_work), found.external)


def make_reservation_answer(reservation_id: str, partition: Partition, slot: int) -> Reservation:
    row = partition.table.row_at(slot)
    return Reservation(
        reservation_id=reservation_id,
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        worker_id=row.rank.worker_id,
        dp_rank=row.rank.dp_rank,
        endpoint=row.worker.registration.endpoint or "",
    )
