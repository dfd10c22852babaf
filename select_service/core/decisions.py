"""Placing a prompt and booking it: what every way to a rank shares, at once or after waiting."""

from random import Random
from typing import NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from indexer.hashing.hashes import Hashes
from select_service.bodies.reservations import Reservation, ReservationRequest
from select_service.bodies.selection import (
    Overlap,
    SelectAndReserveRequest,
    Selection,
    SelectRequest,
)
from select_service.core.decide.decision_ring import DecisionRing, Waited
from select_service.core.decide.explain import Candidate
from select_service.core.decide.prompt import Prompt
from select_service.core.decide.router_config import RouterConfig
from select_service.core.fleet.partition import Partition, Placement
from select_service.core.identity import Rank
from select_service.core.load.booking import NO_PROMPT, MoveWishes, NewBooking, nameless
from select_service.core.load.ledger import Ledger
from select_service.errors import BadRequest

_NO_HASHES: Hashes = np.zeros(0, np.uint64)
TOLD_HASHES_MAX = 131_072
"""Sequence hashes in one answer; some milliseconds of work."""


class Job(NamedTuple):
    """A checked request for a rank.

    reserves: load is booked with the choice, under `reservation_id` or, when that is None, a new id
    explains: the decision is to say what every candidate would have cost
    waited:   how it has waited, if it had to
    """

    partition: Partition
    prompt: Prompt
    request: SelectRequest
    config: RouterConfig
    reserves: bool = False
    reservation_id: str | None = None
    explains: bool = False
    waited: Waited | None = None


class Decision(NamedTuple):
    """A selection and, if the job asked for it, the candidates with their terms.

    number: of the decision in the ring;  None: it is kept in none
    """

    selection: Selection
    candidates: list[Candidate] | None = None
    waited: Waited | None = None
    number: int | None = None


class Wanted(NamedTuple):
    """What is to be booked besides the prompt.

    prefill_tokens: None: prefill is not tracked
    own_work:       tokens that the rank would compute;  None: as many as are booked
    cached_blocks:  of the prompt that the rank has
    asked_by:       the request, if there is one
    """

    reservation_id: str
    prefill_tokens: int | None
    expected_output_tokens: int | None
    lora_name: str | None
    own_work: int | None = None
    cached_blocks: int = 0
    asked_by: SelectRequest | ReservationRequest | None = None


class Decisions:
    """Makes the decisions and bookings of one process."""

    def __init__(self, ledger: Ledger, rng: Random, ring: DecisionRing | None = None) -> None:
        """ring: keeps them"""
        self._ledger = ledger
        self._rng = rng
        self._ring = ring
        self.keeps_wishes = False
        """Is what requests say about being moved told with their bookings?"""

    def decide(self, job: Job, eligible: npt.NDArray[np.bool_], now: float) -> Decision:
        """Choose a rank, and book the load on it if the request asks for that.

        eligible: bool[n_slots], at least one
        Raises Conflict, CapacityExceeded, and then has changed nothing.
        """
        reservation_id = None
        if job.reserves:
            reservation_id = self._free_id(job.reservation_id)
            self._ledger.held.refuse_unless_room(len(job.prompt.sequence_hashes))
        partition, draw, candidates = job.partition, self._rng.random(), None
        placement = partition.place(job.prompt, job.request, job.config, eligible, draw)
        if job.explains:
            candidates = partition.explain(
                job.prompt, job.request, job.config, eligible, placement.slot
            )
        if reservation_id is not None:
            self._book(job, placement, reservation_id, now)
        partition.placing.count(job.prompt, placement.slot, job.reserves)
        number = None
        if self._ring is not None:
            selection_id = job.request.selection_id
            self._ring.keep(now, job.reserves, selection_id, reservation_id, job.waited)
            number = self._ring.newest
        return Decision(_selection(job, placement, reservation_id), candidates, job.waited, number)

    def _book(self, job: Job, placement: Placement, reservation_id: str, now: float) -> None:
        tokens = placement.effective_prefill_tokens if job.config.track_prefill_tokens else None
        request = job.request
        wanted = Wanted(
            reservation_id,
            tokens,
            request.expected_output_tokens,
            request.lora_name,
            placement.own_work,
            placement.external,
            request,
        )
        self.book(job.partition, placement.slot, job.prompt, job.config, wanted, now)

    def book_placed(
        self,
        partition: Partition,
        slot: int,
        prompt: Prompt,
        config: RouterConfig,
        reservation_id: str | None,
        expected_output_tokens: int | None,
        now: float,
    ) -> str:
        """Book the last placement of the partition, under a new id unless one is given; the id.

        Raises Conflict, CapacityExceeded, and then has changed nothing.
        """
        reservation_id = self._free_id(reservation_id)
        self._ledger.held.refuse_unless_room(len(prompt.sequence_hashes))
        placed = Placement(slot, *partition.placing.summary())
        tokens = placed.effective_prefill_tokens if config.track_prefill_tokens else None
        own = placed.own_work, placed.external
        wanted = Wanted(reservation_id, tokens, expected_output_tokens, None, *own)
        self.book(partition, slot, prompt, config, wanted, now)
        return reservation_id

    def book(
        self,
        partition: Partition,
        slot: int,
        prompt: Prompt,
        config: RouterConfig,
        what: Wanted,
        now: float,
    ) -> None:
        """The only writes of an admission, after every refusal."""
        hashes = self._tracked(prompt.sequence_hashes, config)
        booking = NewBooking(
            reservation_id=what.reservation_id,
            account=partition.account,
            rank=partition.table.row(slot).rank,
            slot=slot,
            sequence_hashes=hashes,
            isl_tokens=prompt.isl_tokens,
            prefill_tokens=what.prefill_tokens or 0,
            booked_at=now,
            tracks_prefill=what.prefill_tokens is not None,
            expected_output_tokens=what.expected_output_tokens,
            lora_name=what.lora_name,
            nameless=nameless(len(hashes)),
            own_work=what.own_work,
            cached_blocks=what.cached_blocks,
            prompt=prompt.block_hashes if partition.placing.policy.follows else NO_PROMPT,
            wishes=wishes_of(what.asked_by, prompt.block_hashes) if self.keeps_wishes else None,
        )
        self._ledger.book(booking, "client", now)

    def keeps_up(self, partition: Partition) -> bool:
        """Is whatever is booked there next a bounded step?  If not, ask again in the next turn."""
        return self._ledger.keeps_up(partition.account.load)

    def new_id(self) -> str:
        return str(UUID(int=self._rng.getrandbits(128), version=4))

    def _free_id(self, wanted: str | None) -> str:
        if wanted is None:
            return self.new_id()
        self._ledger.refuse_unless_free(wanted)
        return wanted

    def _tracked(self, sequence_hashes: Hashes, config: RouterConfig) -> Hashes:
        """The block identities that a booking counts under.

        Without KV reuse between requests no two of them share a block: each gets identities of its
        own.
        """
        if not config.track_active_blocks:
            return _NO_HASHES
        if config.assume_kv_reuse:
            return sequence_hashes
        return np.frombuffer(bytearray(self._rng.randbytes(8 * len(sequence_hashes))), np.uint64)


def wishes_of(
    request: SelectRequest | ReservationRequest | None, block_hashes: Hashes
) -> MoveWishes:
    """What a request says that counts when its reservation is moved; None: nothing.

    block_hashes: uint64[n], of its prompt
    """
    if request is None:
        return MoveWishes(block_hashes)
    if isinstance(request, ReservationRequest):
        return MoveWishes(block_hashes, migratable=request.migratable)
    pinned, allowed = request.pinned_worker, request.allowed_worker_ids
    required, priority = request.routing_constraints.required_taints, request.strict_priority or 0
    migratable = not isinstance(request, SelectAndReserveRequest) or request.migratable
    if migratable and not (priority or pinned is not None or allowed is not None or required):
        return MoveWishes(block_hashes)
    return MoveWishes(
        block_hashes,
        priority=priority,
        migratable=migratable,
        pinned=None if pinned is None else Rank(pinned.worker_id, pinned.dp_rank),
        allowed=None if allowed is None else frozenset(allowed),
        required=frozenset(required),
    )


def _selection(job: Job, placement: Placement, reservation_id: str | None) -> Selection:
    partition = job.partition
    overlap = _overlap(partition, partition.table.row(placement.slot).rank, placement)
    tokens = placement.effective_prefill_tokens
    selection = selection_of(partition, placement.slot, overlap, tokens)
    if reservation_id is not None:
        selection.reservation_id = reservation_id
    return with_what_was_asked(selection, job.request, job.prompt)


def with_what_was_asked(selection: Selection, request: SelectRequest, prompt: Prompt) -> Selection:
    """Besides the rank: the id that the request gave itself, and what its prompt hashes to."""
    if request.selection_id is not None:
        selection.selection_id = request.selection_id
    if request.include_hashes:
        selection.sequence_hashes = prompt.sequence_hashes.tolist()
        selection.isl_tokens = prompt.isl_tokens
    return selection


def refuse_unless_told(request: SelectRequest, prompt: Prompt) -> None:
    """Raises BadRequest when more hashes are asked for than are told."""
    if request.include_hashes and len(prompt.sequence_hashes) > TOLD_HASHES_MAX:
        raise BadRequest(
            f"include_hashes: the prompt has {len(prompt.sequence_hashes)} blocks; "
            f"at most {TOLD_HASHES_MAX} are told"
        )


def selection_of(
    partition: Partition, slot: int, overlap: Overlap, effective_prefill_tokens: int
) -> Selection:
    """Without ids."""
    row = partition.table.row(slot)
    return Selection(
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        worker_id=row.rank.worker_id,
        dp_rank=row.rank.dp_rank,
        endpoint=row.worker.given.endpoint or "",
        block_size=partition.block_size,
        overlap=overlap,
        effective_prefill_tokens=effective_prefill_tokens,
    )


def _overlap(partition: Partition, rank: Rank, placement: Placement) -> Overlap:
    """Matched tokens of the worker: per rank on GPU, and the best rank's cumulative values."""
    size, table = partition.block_size, partition.table
    slots = table.slots_of(rank.worker_id)
    if len(slots) > 1:
        return overlap_in(partition, rank, partition.placing.scratch.matched)
    gpu, cpu, disk = placement.gpu, placement.cpu, placement.external
    dp = {rank.dp_rank: size * gpu}
    return Overlap(
        longest_matched=size * disk, gpu=size * gpu, dp=dp, cpu=size * cpu, disk=size * disk
    )


def overlap_in(partition: Partition, rank: Rank, matched: npt.NDArray[np.int32]) -> Overlap:
    """Of the worker of a rank.  matched: int32[n_slots, N_TIERS], blocks, tiers cumulated"""
    size, table = partition.block_size, partition.table
    slots = table.slots_of(rank.worker_id)
    rows = matched[slots].tolist()
    ranks = (table.row(slot).rank.dp_rank for slot in slots)
    dp = {dp_rank: size * row[0] for dp_rank, row in zip(ranks, rows, strict=True)}
    gpu, cpu, _, disk = map(max, zip(*rows, strict=True))
    return Overlap(
        longest_matched=size * disk, gpu=size * gpu, dp=dp, cpu=size * cpu, disk=size * disk
    )


def booked_tokens(request: ReservationRequest, prompt: Prompt, config: RouterConfig) -> int | None:
    """Prefill tokens of a reservation: the caller's number, else the whole prompt when tracked."""
    tokens = request.effective_prefill_tokens
    if tokens is None:
        return prompt.isl_tokens if config.track_prefill_tokens else None
    if tokens > prompt.isl_tokens:
        raise BadRequest(
            f"effective_prefill_tokens ({tokens}) must not exceed isl_tokens ({prompt.isl_tokens})"
        )
    return tokens


def work_on(
    partition: Partition, slot: int, prompt: Prompt, config: RouterConfig, tokens: int | None
) -> tuple[int | None, int]:
    """(own work, cached blocks) of a prompt on the rank that its caller chose, as `Wanted` has it.

    tokens: those that are booked, and the most that there is to do
    """
    placing = partition.placing
    if tokens is None or not placing.policy.follows:
        return None, 0
    there = np.zeros(partition.table.n_slots, np.bool_)
    there[slot] = True
    placing.place(prompt, config, there, pinned=True)
    found = Placement(slot, *placing.summary())
    return min(tokens, found.own_work), found.external


def booked_answer(reservation_id: str, partition: Partition, slot: int) -> Reservation:
    row = partition.table.row(slot)
    return Reservation(
        reservation_id=reservation_id,
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        worker_id=row.rank.worker_id,
        dp_rank=row.rank.dp_rank,
        endpoint=row.worker.given.endpoint or "",
    )
