"""Decisions about pairs: eligible ranks of both legs, the choice, and the booking of both."""

from collections.abc import Collection
from copy import copy
from math import isfinite
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET

from indexer.index.prefix_index import ReuseMatch
from select_service.base.errors import CapacityExceeded, Conflict, NoEligibleRank, NotFound
from select_service.core.array_types import Mask
from select_service.core.decision_maker import (
    DecisionMaker,
    PlacementDecision,
    PlacementRequest,
)
from select_service.core.identity import Rank
from select_service.core.load.compiled.ledger_layout import (
    OTHER_PART,
    PREFILL_PART,
)
from select_service.core.load.ledger import id_in_use_error
from select_service.core.load.new_reservation import NO_PROMPT
from select_service.core.load.prefill_legs import prefill_leg_of
from select_service.core.load.reservation_move import MoveTarget
from select_service.core.load.reservation_view import ReservationView
from select_service.core.load.reservations import reservation_not_found
from select_service.core.pairs.conditional_rule import place_by_rule
from select_service.core.pairs.handoff import make_handoff
from select_service.core.pairs.pair_book import BookedPair, BookedTransfer, PairBook
from select_service.core.pairs.pair_bookings import (
    as_pair_request,
    assumable_blocks_of,
    count_observed,
    count_uncached,
    decode_of,
    make_transfer,
    prefill_of,
    record_of_job,
)
from select_service.core.pairs.pair_links import PairLinks, PairRequest, pair_masks
from select_service.core.pairs.pair_log import PairDecision, PairLog, describe_decision
from select_service.core.pairs.pair_placer import PairMasks, PairPlacement
from select_service.core.pairs.pair_traffic_kernels import count_decision
from select_service.core.pairs.pair_traffic_layout import (
    DECIDED_LOCAL,
    DECIDED_REMOTE,
    N_DECIDED,
)
from select_service.core.placement.candidates import find_candidates
from select_service.core.placement.policies.reference_policy import REFERENCE_POLICY
from select_service.core.placement.prompt import drop_prompt
from select_service.core.registry.fleet.partition import Partition
from select_service.core.selection_answers import (
    count_lookup,
    describe_shared,
    make_selection,
    mark_assumed,
    overlap_of_worker,
)
from select_service.core.workers.transfer_prices import DomainRule
from select_service.schemas.pairs import (
    PairLeg,
    PairSelection,
)
from select_service.schemas.selection import Selection, SelectRequest
from select_service.schemas.sessions import SessionAnswer

LegName: TypeAlias = Literal["prefill", "decode"]


class PairDecisions:
    """Decision maker for pairs of all partitions."""

    def __init__(self, decisions: DecisionMaker, book: PairBook, decisions_kept: int = 0) -> None:
        """Start without pairs; decisions_kept: number of recorded decisions."""
        self._decisions = decisions
        self.log = PairLog(decisions_kept)
        self.book = book
        self.decided = np.zeros(N_DECIDED, np.int64)
        """Counters of all decisions (pair_traffic_layout)."""
        self.links = PairLinks()

    @property
    def n_decided(self) -> int:
        """Number of decisions, booked or not."""
        return int(self.decided[DECIDED_REMOTE] + self.decided[DECIDED_LOCAL])

    def leg_masks(self, partition: Partition, given: SelectRequest, allowed: Mask) -> list[Mask]:
        """Return the allowed ranks for each leg without which there is no pair.

        A rank for decode can do both, unless the request excludes that.
        Raises NoEligibleRank where a leg has none.
        """
        request = as_pair_request(given)
        masks = pair_masks(partition.table, self.links.links_of(partition), request, allowed)
        needed = [masks.decode] + [masks.prefill] * (request.local == "never")
        if not all(mask.any() for mask in needed):
            raise _no_pair_error(request, masks)
        return needed

    def decide(self, job: PlacementRequest, eligible: Mask, now: float) -> PlacementDecision:
        """Choose a pair, and book both legs if the request reserves.

        eligible: bool[n_slots], ranks that the constraints of the request and admission allow
        Raises NoEligibleRank, Conflict or CapacityExceeded, having changed nothing but the rest of
        an ended pair under the same id, which is released.
        """
        reservation_id = None
        if job.reserves:
            reservation_id = self._decisions.free_id(job)
            self.book.release_left_leg(reservation_id, now)
            blocks = len(job.prompt.sequence_hashes)
            # A pair books both legs or nothing, and each leg may need all blocks.
            self._decisions.ledger.reservations.check_room(2 * blocks, reservations=2)
        placement = self._place_pair(job, eligible)
        # Both read the match of the placement, which a booking may overwrite.
        selection, pair = self._make_answer(job, placement, reservation_id)
        session = self._answer_session(job, placement, eligible)
        if reservation_id is not None:
            row = self._book_pair(job, placement, (reservation_id, pair), now)
            if job.session is not None:
                self._decisions.bind_session(job.partition, row, job.session, now, session)
        if session is not None:
            pair.session = session
        numbers = job.prompt.isl_tokens, round(placement.cached_tokens)
        count_decision(self.decided, placement.is_local, *numbers)
        count_lookup(job.partition, pair.legs[0].overlap, job.prompt.isl_tokens)
        if self.log.is_on:
            self.log.append(
                describe_decision(job, _without_handoff(pair), int(eligible.sum()), now)
            )
        return PlacementDecision(selection, queue_wait=job.queue_wait, pair=pair)

    def preview(self, job: PlacementRequest, eligible: Mask, now: float) -> PairDecision:
        """Return the decision that a request would get now; nothing is counted or kept.

        Raises NoEligibleRank.
        """
        _, pair = self._make_answer(job, self._place_pair(job, eligible), None)
        return describe_decision(job, _without_handoff(pair), int(eligible.sum()), now)

    def _answer_session(
        self, job: PlacementRequest, placement: PairPlacement, eligible: Mask
    ) -> SessionAnswer | None:
        """Return the answer about the session, which is bound to the rank of the decode leg."""
        if job.session is None:
            return None
        return self._decisions.sessions.answer_route(job.session, placement.decode, eligible)

    def _place_pair(self, job: PlacementRequest, eligible: Mask) -> PairPlacement:
        partition, request = job.partition, as_pair_request(job.request)
        masks = pair_masks(partition.table, self.links.links_of(partition), request, eligible)
        return self._place_among(job, masks)

    def _place_among(self, job: PlacementRequest, masks: PairMasks) -> PairPlacement:
        partition, request = job.partition, as_pair_request(job.request)
        placer, draw = self.links.links_of(partition).placer, self._decisions.rng.random()
        floor = None if job.session is None else job.session.floor
        rule = _domain_rule_of(request)
        if _has_conditional_rule(partition):
            found = place_by_rule(job, placer, masks, draw, rule)
        else:
            found = placer.place_pair(job.prompt, masks, draw, rule, floor)
        if found is None:
            raise _no_pair_error(request, masks)
        return found

    def _make_answer(
        self, job: PlacementRequest, placement: PairPlacement, reservation_id: str | None
    ) -> tuple[Selection, PairSelection]:
        """Return the decode leg as a selection, and the whole pair."""
        partition, request = job.partition, as_pair_request(job.request)
        reuse = partition.index.last_reuse(partition.placer.scratch.matched)
        work = (placement.cached_tokens, placement.own_work)
        prefill = self._make_leg("prefill", partition, placement.prefill_slot, reuse, work)
        work = (placement.decode_cached, placement.decode_work)
        decode = self._make_leg("decode", partition, placement.decode, reuse, work)
        if job.prompt.shared is not None:
            # Only the rank of the prefill reads the shared cache.
            shared = describe_shared(partition, placement.prefill_slot, job.prompt.shared)
            for leg in (prefill, decode) if placement.is_local else (prefill,):
                leg.overlap.shared = shared
        tokens = count_uncached(job, placement)
        selection = make_selection(partition, placement.decode, decode.overlap, tokens)
        pair = PairSelection(
            model_name=partition.key.model_name,
            tenant_id=partition.key.tenant_id,
            routing_group=partition.key.tenant_id,
            block_size=partition.block_size,
            path="local" if placement.is_local else "remote",
            reason=_reason_for(placement, request, partition),
            legs=[prefill, decode],
            effective_prefill_tokens=tokens,
            move_tokens=round(placement.move_tokens),
            move_cost=placement.move_cost,
            local_cost=_finite(placement.local_cost),
            remote_cost=_finite(placement.remote_cost),
        )
        if placement.prefill is not None:
            row_at, rng = partition.table.row_at, self._decisions.rng
            rows = row_at(placement.prefill), row_at(placement.decode)
            pair.handoff = make_handoff(*rows, rng)
        if reservation_id is not None:
            selection.reservation_id = pair.reservation_id = reservation_id
        if request.selection_id is not None:
            selection.selection_id = pair.selection_id = request.selection_id
        return selection, pair

    def _make_leg(
        self,
        leg: LegName,
        partition: Partition,
        slot: int,
        reuse: ReuseMatch,
        work: tuple[float, float],
    ) -> PairLeg:
        """Return a leg of an answer.

        work: tokens of the prompt that the rank holds, and that it would compute
        """
        row, (cached, own) = partition.table.row_at(slot), work
        overlap = overlap_of_worker(partition, row.rank, reuse)
        return PairLeg(
            leg=leg,
            worker_id=row.rank.worker_id,
            dp_rank=row.rank.dp_rank,
            endpoint=row.worker.registration.endpoint or "",
            overlap=mark_assumed(overlap, partition, partition.placer.count_assumed(slot)),
            cached_tokens=round(cached),
            own_work=round(own),
        )

    def _book_pair(
        self,
        job: PlacementRequest,
        placement: PairPlacement,
        booking: tuple[str, PairSelection],
        now: float,
    ) -> int:
        """Book both legs, or nothing; return the row of the decode leg.

        Raises CapacityExceeded, MemoryError.

        booking: id of the reservation, and the answer
        """
        reservation_id, answer = booking
        partition, prompt, request, config = job[:4]
        decisions = self._decisions
        kept = BookedPair(_without_tokens(job), answer)
        transfer = self._transfer_of(partition, placement)
        if placement.prefill is not None:
            self._book_prefill(job, placement, reservation_id, now)
        held = decode_of(job, placement)
        tracked = decisions.track_prompt(prompt, config)
        try:
            row = decisions.book_prompt(partition, tracked, request, held, reservation_id, now)
        except (CapacityExceeded, MemoryError):
            if placement.prefill is not None:
                decisions.ledger.free_by_id(prefill_leg_of(reservation_id), "client", now)
            raise
        self.book.add_pair(reservation_id, kept, transfer)
        traffic = self.links.links_of(partition).traffic
        if placement.prefill is None:
            cached = placement.cached_tokens + placement.credit
            numbers = prompt.isl_tokens, cached, placement.own_work
            traffic.count_local(count_observed(*numbers) if config.track_prefill_tokens else 0)
        else:
            slots = placement.prefill, placement.decode
            traffic.count_remote(slots, round(placement.move_tokens))
        return row

    def notify_booked(
        self, job: PlacementRequest, placement: PairPlacement, reservation_id: str, now: float
    ) -> None:
        """Notify the followers of bookings of a pair that a kernel has booked."""
        decisions = self._decisions
        partition, prompt, request, config = job[:4]
        tracked = decisions.track_prompt(prompt, config)
        legs = [(decode_of(job, placement), reservation_id)]
        if placement.prefill is not None:
            prefill = prefill_of(job, placement)._replace(request_part=PREFILL_PART)
            # The prefill leg comes first, as in `_book_pair`.
            legs.insert(0, (prefill, prefill_leg_of(reservation_id)))
        for held, name in legs:
            booking = decisions.make_booking(partition, tracked, request, held, name, now)
            decisions.ledger.notify_booked(booking, "client", now)

    def repeat_decision(self, job: PlacementRequest, booking: ReservationView) -> PlacementDecision:
        """Return the decision behind a live pair again; raises Conflict for other reservations.

        job: request like that of the pair
        """
        name, partition = booking.reservation_id, job.partition
        pair = self.book.find_pair(name)
        if pair is not None and pair.answer is not None:
            leg = pair.answer.legs[1]
            tokens = pair.answer.effective_prefill_tokens
            selection = make_selection(partition, booking.slot, leg.overlap, tokens)
            selection.reservation_id = name
            return PlacementDecision(selection, pair=pair.answer)
        if booking.origin is None and pair is None:
            raise id_in_use_error(booking)
        prefill = self._decisions.ledger.find_active(prefill_leg_of(name))
        n_slots = partition.table.n_slots
        masks = PairMasks(np.zeros((3, n_slots), np.bool_))
        (masks.both if prefill is None else masks.decode)[booking.slot] = True
        if prefill is not None:
            masks.prefill[prefill.slot] = True
        selection, answer = self._make_answer(job, self._place_among(job, masks), name)
        return PlacementDecision(selection, pair=answer)

    def move_leg(
        self, reservation_id: str, leg: LegName, now: float, avoided: Collection[Rank] = ()
    ) -> PairSelection:
        """Move a leg of a pair to another rank (POST /reservations/{reservation_id}/move).

        avoided: ranks to which the leg must not move
        The other leg stays.  If one rank for both is cheaper, the pair becomes local.
        Raises NotFound, Conflict, NoEligibleRank, without having changed anything.
        """
        ledger = self._decisions.ledger
        decode = ledger.find_active(reservation_id)
        pair = self.book.find_pair(reservation_id)
        # The decode leg carries the id of the request, so without it the request has ended.
        if decode is None:
            raise reservation_not_found(reservation_id)
        if pair is None:
            raise NotFound(f"reservation {reservation_id} is no pair, or its replica is older")
        prefill = ledger.find_active(prefill_leg_of(reservation_id))
        is_lost = prefill is None and leg == "prefill"
        if is_lost and reservation_id not in self.book.lost_legs:
            raise Conflict(
                f"reservation {reservation_id} has no prefill leg of its own (any more); "
                "move its decode leg"
            )
        job = pair.job
        masks = self._masks_without(job, leg, prefill, decode, avoided)
        placement = self._place_among(job, masks)
        _, answer = self._make_answer(job, placement, reservation_id)
        tokens = round(placement.move_tokens)
        record = record_of_job(job, tokens)
        target = self._target_of(job, placement)
        # A replica sends moves only of the reservations that it answers for.
        self.take_over(decode if leg == "decode" or placement.is_local else prefill)
        if placement.prefill is None:
            # The move can fail, the release cannot.
            ledger.move(decode, target._replace(pair=record), now)
            if prefill is not None:
                ledger.release(prefill, "client", now)
        elif leg == "prefill" and prefill is not None:
            ledger.move(prefill, target, now)
        elif prefill is None:
            self._book_prefill(job, placement, reservation_id, now, is_again=True)
        if placement.prefill is not None and leg == "decode":
            row = job.partition.table.row_at(placement.decode)
            blocks = job.prompt.assumable_blocks
            to = MoveTarget(row.rank, placement.decode, assumable=blocks, pair=record)
            ledger.move(decode, to, now)
        transfer = self._transfer_of(job.partition, placement)
        self.book.add_pair(reservation_id, BookedPair(job, answer), transfer)
        if placement.prefill is not None:
            traffic = self.links.links_of(job.partition).traffic
            traffic.count_move((placement.prefill, placement.decode), tokens)
        return answer

    def take_over(self, leg: ReservationView | None) -> None:
        """Answer for a leg that a peer has booked, from now on."""
        if leg is not None and leg.origin is not None:
            self._decisions.ledger.assign_origin(leg, None)

    def _book_prefill(
        self,
        job: PlacementRequest,
        placement: PairPlacement,
        reservation_id: str,
        now: float,
        is_again: bool = False,
    ) -> None:
        """Book the prefill leg of a pair.  Raises CapacityExceeded, MemoryError.

        is_again: whether the request has been counted by an earlier leg
        """
        partition, prompt, request, config = job[:4]
        part = OTHER_PART if is_again else PREFILL_PART
        prefill = prefill_of(job, placement)._replace(request_part=part)
        # The session belongs to the decode leg.
        apart = msgspec.structs.replace(request, session_id=None, session_context=None)
        tracked = self._decisions.track_prompt(prompt, config)
        leg = prefill_leg_of(reservation_id)
        self._decisions.book_prompt(partition, tracked, apart, prefill, leg, now)
        self.book.add_leg(reservation_id, partition.key.tenant_id)

    def _masks_without(
        self,
        job: PlacementRequest,
        leg: LegName,
        prefill: ReservationView | None,
        decode: ReservationView,
        avoided: Collection[Rank],
    ) -> PairMasks:
        """Return the ranks for a pair of which this leg leaves and the other leg stays."""
        partition, request = job.partition, as_pair_request(job.request)
        eligible = find_candidates(partition.table, request).copy()
        leaving, staying = (decode, prefill) if leg == "decode" else (prefill, decode)
        kept_slot = None if staying is None else staying.slot
        for slot in map(partition.table.find_slot, avoided):
            if slot is not None and slot != kept_slot:
                eligible[slot] = False
        if leaving is not None:
            eligible[leaving.slot] = False
        masks = pair_masks(partition.table, self.links.links_of(partition), request, eligible)
        if leg == "prefill":
            for mask in (masks.decode, masks.both):
                stays = mask[decode.slot]
                mask[:] = False
                mask[decode.slot] = stays
        else:
            # The KV blocks are gone with the decode rank: another decode rank computes the prompt,
            # or a new prefill leg does where the request excludes that.
            if prefill is not None or request.local != "never":
                masks.prefill[:] = False
            if prefill is not None:
                masks.prefill[prefill.slot] = True
        return masks

    def _target_of(self, job: PlacementRequest, placement: PairPlacement) -> MoveTarget:
        """Return the move of a prefill to the chosen rank."""
        rank = job.partition.table.row_at(placement.prefill_slot).rank
        follows = job.partition.placer.policy.follows_prefills
        return MoveTarget(
            rank,
            placement.prefill_slot,
            count_uncached(job, placement),
            prefill_of(job, placement).cached_blocks,
            job.prompt.block_hashes if follows else NO_PROMPT,
            assumable_blocks_of(job),
        )

    def _transfer_of(self, partition: Partition, placement: PairPlacement) -> BookedTransfer | None:
        if placement.prefill is None:
            return None
        placer = self.links.links_of(partition).placer
        slots = placement.prefill, placement.decode
        return make_transfer(placer, slots, placement.move_tokens, placement.move_cost)


def _without_handoff(pair: PairSelection) -> PairSelection:
    """Return an answer for explanations, without the hand-over, which may name secrets."""
    shown = copy(pair)
    shown.handoff = UNSET
    return shown


def _without_tokens(job: PlacementRequest) -> PlacementRequest:
    """Return a request without token lists, which a booked pair must not keep.

    Nor does it keep a look-up in a shared cache, which is too old when a leg moves.
    """
    prompt = job.prompt._replace(shared=None)
    return job._replace(request=drop_prompt(copy(job.request)), prompt=prompt)


def _has_conditional_rule(partition: Partition) -> bool:
    return partition.placer.policy is REFERENCE_POLICY


def _reason_for(placement: PairPlacement, request: PairRequest, partition: Partition) -> str:
    if request.local != "auto":
        return "requested"
    if _has_conditional_rule(partition):
        return "threshold"
    # Without a finite cost the other way was impossible, so nothing was cheaper.
    other = placement.remote_cost if placement.is_local else placement.local_cost
    return "cheaper" if isfinite(other) else "only_choice"


def _finite(cost: float) -> float | None:
    return cost if isfinite(cost) else None


def _domain_rule_of(request: PairRequest) -> DomainRule | None:
    if (given := request.topology) is None:
        return None
    return DomainRule(given.domain, given.enforcement == "required", given.weight)


def _no_pair_error(request: PairRequest, masks: PairMasks) -> NoEligibleRank:
    counts = f"{masks.prefill.sum()} for prefill, {masks.decode.sum()} for decode"
    # Counts show which leg lacks ranks; what excluded them is in the request or in the fleet.
    advice = "register workers of both roles, or allow more workers or `local` in the request"
    if request.topology is not None and request.topology.enforcement == "required":
        advice = f"no two of them share a `{request.topology.domain}`, which is required"
    return NoEligibleRank(f"no pair of ranks is eligible ({counts}); {advice}")
