"""Admission gate: passes, queues or refuses requests, in this order.

1. A request of a shed priority tier is refused.
2. Ranks above a busy threshold are excluded; a request without other ranks is refused.
3. With queueing on, a request waits until a candidate has room for its policy class.

A passed request is placed and booked at once by `DecisionMaker`, on ranks that passed 2 and 3.  A
waiting request is a `WaitingTicket`, settled by `serve_waiting`, by its deadline, by the end of the
partition, or by `remove_disconnected` after a disconnect.

Freed capacity is recorded in `DirtyPartitions`, and the owner of the event loop then calls
`serve_waiting`.  A request arriving in between lets earlier requests go first.
"""

from collections.abc import Mapping
from itertools import count
from math import inf
from typing import NamedTuple

import numpy as np

from indexer.index.header_kernels import CHANGED
from select_service.base.errors import QueueTimeout, SelectError
from select_service.core.admission import turn_budget
from select_service.core.admission.busy_check import BusyCheck
from select_service.core.admission.flow_clock import compute_burst
from select_service.core.admission.headroom import Headroom, compute_headroom
from select_service.core.admission.load_shed_rule import LoadShedRule
from select_service.core.admission.outcome_counters import AdmissionCounters
from select_service.core.admission.partition_queue import PartitionQueue
from select_service.core.admission.policy_classes import QueueBounds, QueueRules
from select_service.core.admission.priority_tiers import PriorityTiers
from select_service.core.admission.queue_headroom import QueueHeadroom, leave_awaited
from select_service.core.admission.session_admission import follow_session_again, unpin_ticket
from select_service.core.admission.shed_sweep import ShedSweep
from select_service.core.admission.shed_tiers import ShedTiers
from select_service.core.admission.turn_budget import TurnBudget
from select_service.core.admission.wait_limits import WaitLimits
from select_service.core.admission.waiting_list import NO_BACKLOG, Backlog, WaitingList
from select_service.core.admission.waiting_ticket import (
    RequestSize,
    WaitingTicket,
    booked_blocks,
    extra_work,
    lane_of,
    measure_request,
    score_of,
)
from select_service.core.array_types import Mask
from select_service.core.decision_maker import DecisionMaker, PlacementDecision, PlacementRequest
from select_service.core.dirty_partitions import DirtyPartitions
from select_service.core.identity import PartitionKey
from select_service.core.placement.candidates import find_candidates
from select_service.core.placement.decision_ring import QueueWait
from select_service.core.placement.prompt import drop_prompt
from select_service.core.registry.fleet.partition import Partition
from select_service.schemas.selection import SelectRequest

ROOMS_AT_ONCE_MAX = 8
"""Classes with different room compared for one request, some microseconds each."""


class AdmissionPreview(NamedTuple):
    """Result that admission would have for a request.

    eligible: bool[n_slots], the ranks that it would pass on
    wait_s: estimated wait, seconds; None means unknown
    refusal: error of a request that could not wait
    """

    eligible: Mask
    would_wait: bool = False
    wait_s: float | None = None
    refusal: SelectError | None = None


class AdmissionGate:
    """Admission gate for every request for a rank."""

    def __init__(
        self,
        partitions: Mapping[PartitionKey, Partition],
        busy_check: BusyCheck,
        tiers: PriorityTiers,
        rules: QueueRules | None,
        decisions: DecisionMaker,
        dirty: DirtyPartitions,
    ) -> None:
        """Build the gate.

        rules: queue rules; None means queueing is off
        """
        self.busy_check = busy_check
        self.rules = rules
        self.waits_for_work = rules is not None and rules.waits_for_work
        """Whether requests wait for remaining work, with progress shown by KV events only."""
        self.tally = AdmissionCounters()
        self.shedding = ShedTiers(tiers, self.tally)
        self._partitions = partitions
        self._decisions = decisions
        self.waiting = WaitingList(QueueBounds() if rules is None else rules.bounds)
        timeout_s = 0.0 if rules is None else rules.timeout_s
        self._limits = WaitLimits(self.waiting, timeout_s, busy_check, self.shedding, self.tally)
        self._dirty = dirty
        self._sweep = ShedSweep(self.waiting, self.shedding, dirty)
        dirty.watch_partitions(self.waiting.queues)
        self._arrivals = count()
        self.is_open_flag = np.zeros(1, np.int64)
        """int64[1], `is_open` for kernels; the array is never replaced."""
        self.refresh_mode()

    # Arrivals

    def check_shed_tier(self, request: SelectRequest) -> None:
        """Raise BadRequest for an unknown tier, CapacityShed for a shed tier."""
        if request.priority_tier is not None or (not self.is_open and self.shedding.is_active):
            self.shedding.check_request(request)

    def refresh_mode(self) -> None:
        """Recompute `is_open` after a tier, a threshold or a queue was switched on or off."""
        is_off = not self.shedding.is_active and self.busy_check.thresholds.is_off
        self.is_open = self.rules is None and is_off
        self.is_open_flag[0] = self.is_open

    def admit_request(
        self, job: PlacementRequest, allowed: Mask, now: float, policy_class: str | None
    ) -> PlacementDecision | WaitingTicket:
        """Pass or queue a request.

        allowed:      bool[n_slots], at least one set
        policy_class: policy class from the request
        Raises Overloaded, QueueFull, QueueTimeout, and the errors of `decide`.
        """
        if not self.is_open:
            # Otherwise an arrival could take room that a waiting request is about to get.
            if self._has_waiting_first(job.partition.key):
                self._serve_partition(job.partition.key, now, TurnBudget())
                self._dirty.request_turn_if(self._dirty.partitions)
            if self.rules is not None:
                return self._admit_or_queue(job, allowed, now, policy_class)
            allowed = self._free_ranks(job, allowed)
        return self._decide_now(job, allowed, now)

    def _has_waiting_first(self, key: PartitionKey) -> bool:
        """Return whether a waiting request may be served now; progress of prefills makes room
        silently.
        """
        if self._dirty.partitions and key in self._dirty.partitions:
            return True
        return self.waits_for_work and key in self.waiting.queues

    def preview_admission(
        self, job: PlacementRequest, allowed: Mask, now: float, policy_class: str | None
    ) -> AdmissionPreview:
        """Return what `admit_request` would do, without changes or counts.

        Arguments as for `admit_request`.  Raises Overloaded.
        """
        free = self.busy_check.free_candidates(job.partition, job.request, allowed)
        if self.rules is None:
            return AdmissionPreview(free)
        key = job.partition.key
        profile, size = self.rules.profile_of(key.model_name), measure_request(job, free)
        index = profile.find_class(policy_class, size.isl_tokens - size.cached_tokens)
        headroom = compute_headroom(job.partition, free, profile.classes[index])
        if self._has_room(job, allowed, headroom):
            return AdmissionPreview(self._eligible_ranks(key, free, headroom))
        ticket = self._make_ticket(job, index, size, now)
        queue = self.waiting.queues.get(key) or PartitionQueue(profile.classes)
        wait_s = self._limits.estimate_wait(queue, ticket)
        refusal = self._limits.find_refusal(queue, ticket, wait_s)
        return AdmissionPreview(free, refusal is None, wait_s, refusal)

    def ranks_without_waiting(self, partition: Partition, is_bound: bool = False) -> Mask | None:
        """Return the ranks `admit_request` would pass on for a request with a prompt only.

        is_bound: whether the request may be bound to one of the ranks, as by its session
        None means that `admit_request` might refuse or queue the request, or serve others first.
        """
        key = partition.key
        if key in self._dirty.partitions or self.shedding.restricts_model(key.model_name):
            return None
        free = self.busy_check.all_free_ranks(partition)
        if self.rules is None:
            return free if free.any() else None
        classes = self.rules.profile_of(key.model_name).headroom_classes
        # The comparison below must stay cheaper than the usual way through the gate.
        if key in self.waiting.queues or len(classes) > ROOMS_AT_ONCE_MAX:
            return None
        # With room for every class, the class of the request does not matter.  A bound request
        # waits for its own rank, whatever room others have.
        needed = max(1, int(np.count_nonzero(free))) if is_bound else 1
        rooms = (compute_headroom(partition, free, each).n_ranks for each in classes)
        return free if all(n_ranks >= needed for n_ranks in rooms) else None

    def _eligible_ranks(self, key: PartitionKey, free: Mask, headroom: Headroom) -> Mask:
        """Return the ranks among which a request with room chooses.

        free: its candidates that are not busy
        """
        queue = self.waiting.queues.get(key)
        return free if queue is None else leave_awaited(free, headroom.ranks, queue.awaited_bits())

    def _free_ranks(self, job: PlacementRequest, allowed: Mask) -> Mask:
        """Return the allowed ranks that are not busy.  Raises Overloaded."""
        partition, request = job.partition, job.request
        try:
            for leg in self._leg_masks(job, allowed):
                self.busy_check.free_candidates(partition, request, leg)
            return self.busy_check.free_candidates(partition, request, allowed)
        except SelectError:
            self.tally.count_refusal("busy", job.partition.key)
            raise

    @staticmethod
    def _leg_masks(job: PlacementRequest, allowed: Mask) -> list[Mask]:
        """Return the allowed ranks for each leg that a pair needs; nothing for other requests."""
        if job.pairs is None:
            return []
        return job.pairs.leg_masks(job.partition, job.request, allowed)

    def _has_room(self, job: PlacementRequest, allowed: Mask, headroom: Headroom) -> bool:
        """Return whether a request need not wait."""
        legs = self._leg_masks(job, allowed)
        return headroom.n_ranks > 0 and all((leg & headroom.ranks).any() for leg in legs)

    def _admit_or_queue(
        self, job: PlacementRequest, allowed: Mask, now: float, policy_class: str | None
    ) -> PlacementDecision | WaitingTicket:
        assert self.rules is not None
        partition, key = job.partition, job.partition.key
        profile = self.rules.profile_of(key.model_name)
        free = self._free_ranks(job, allowed)
        size, class_index = None, 0
        if profile.only_class is None:
            size = measure_request(job, free)
            class_index = profile.find_class(policy_class, size.isl_tokens - size.cached_tokens)
        headroom = compute_headroom(partition, free, profile.classes[class_index])
        if key not in self._dirty.partitions and self._has_room(job, allowed, headroom):
            return self._decide_now(job, self._eligible_ranks(key, free, headroom), now)
        return self._enqueue_request(job, class_index, size or measure_request(job, free), now)

    def _decide_now(self, job: PlacementRequest, eligible: Mask, now: float) -> PlacementDecision:
        decision = self._decisions.decide(job, eligible, now)
        self.tally.admitted += 1
        return decision

    def _enqueue_request(
        self, job: PlacementRequest, class_index: int, size: RequestSize, now: float
    ) -> WaitingTicket:
        ticket = self._make_ticket(job, class_index, size, now)
        queue = self.waiting.queues.get(job.partition.key) or PartitionQueue(ticket.classes)
        self._limits.check_entry(queue, ticket)
        self.waiting.add(queue, ticket)
        return ticket

    def _make_ticket(
        self, job: PlacementRequest, class_index: int, size: RequestSize, now: float
    ) -> WaitingTicket:
        assert self.rules is not None
        request, partition = job.request, job.partition
        profile = self.rules.profile_of(partition.key.model_name)
        rules = profile.classes[class_index]
        due_at = inf if request.deadline_ms is None else now + request.deadline_ms / 1000.0
        token_s = self._seconds_per_token(partition) if rules.waits_for_work else 0.0
        score = score_of(rules.queue_policy, request.priority_jump or 0.0, now, size, token_s)
        return WaitingTicket(
            # A queue of thousands of requests must not hold their token lists.
            placement_request=job._replace(request=drop_prompt(request)),
            request=request,
            lane=lane_of(request),
            size=size,
            class_index=class_index,
            classes=profile.classes,
            policy_class=rules.name,
            tier=self.shedding.tiers.index_of(request.priority_tier),
            arrived_at=now,
            deadline=self._limits.end_of_wait(request, due_at, now),
            # The arrival number makes every order unique and keeps equal scores first-come.
            order=(-(request.strict_priority or 0), due_at, -score, next(self._arrivals)),
        )

    def _seconds_per_token(self, partition: Partition) -> float:
        """Return the seconds per prefill token of a rank at the current drain rate."""
        return self.busy_check.drain_rate(partition).seconds_per_token(
            int(partition.table.open_slots.sum())
        )

    # Departures

    def mark_all_queues(self) -> None:
        """Schedule a look at every queue after thresholds or tiers have changed."""
        self.refresh_mode()
        for key in self.waiting.queues:
            self._dirty.mark_capacity(key)

    def serve_waiting(self, now: float) -> None:
        """Serve waiting requests that have room; schedule another call for the rest."""
        self._run_turn(now, TurnBudget())

    def _run_turn(self, now: float, budget: TurnBudget) -> None:
        self._sweep.refuse_some(budget)
        for key in list(self._dirty.partitions):
            if not budget.can_serve:
                break
            self._serve_partition(key, now, budget)
        self._dirty.request_turn_if(self._dirty.partitions)

    def run_every_second(self, now: float) -> bool:
        """Update rates, expire deadlines and look at every queue, once a second.

        Returns whether the deadlines filled their half of a turn, so that another turn is due.
        """
        self.busy_check.update_rates(self._partitions, now)
        self._limits.observe_release(self._partitions, now)
        budget = TurnBudget()
        late_max = budget.count_actions(turn_budget.REFUSE_WORK, budget.left // 2)
        late = self.waiting.find_overdue(now, late_max)
        budget.spend(turn_budget.REFUSE_WORK, len(late))
        for ticket in late:
            self.time_out_ticket(ticket, now)
        self.mark_all_queues()
        self._run_turn(now, budget)
        return len(late) == late_max

    def wake_by_progress(self, now: float) -> bool:
        """Wake queues for which engines may have made room, as their KV events show."""
        for key, queue in self.waiting.queues.items():
            partition = self._partitions.get(key)
            if not queue.waits_for_work or partition is None:
                continue
            if queue.changes != _index_change_count(partition):
                self._dirty.mark_capacity(key)
        return False

    def time_out_ticket(self, ticket: WaitingTicket, now: float) -> None:
        """Refuse a ticket past its deadline, unless settled already."""
        if ticket.outcome is None:
            self.waiting.remove(ticket)
            ticket.settle(self._limits.end_wait(ticket, now))

    def remove_disconnected(self, ticket: WaitingTicket) -> None:
        """Remove the ticket of a disconnected client, unless settled already."""
        if ticket.outcome is None:
            self.waiting.remove(ticket)
            self.tally.count_refusal("client_gone", ticket.placement_request.partition.key)
            ticket.settle(QueueTimeout("client disconnected while waiting"))

    def withdraw_ticket(self, ticket: WaitingTicket, error: SelectError) -> None:
        """Remove a ticket with an error, unless settled already."""
        if ticket.outcome is None:
            self.waiting.remove(ticket)
            self.tally.count_refusal("queue_full", ticket.placement_request.partition.key)
            ticket.settle(error)

    def set_shed_tier(self, tier: str | None) -> None:
        """Set the shed tier and refuse waiting requests of shed tiers.  Raises BadRequest."""
        self.shedding.tiers.set_shed_tier(tier)
        self._sweep.schedule(self.waiting.queues)
        self._sweep.refuse_some(TurnBudget())
        self.mark_all_queues()

    def set_load_shed_rule(self, model_name: str, rule: LoadShedRule | None) -> None:
        """Set or, with None, remove the load-shedding rule of a model.

        The next turn refuses waiting requests of shed tiers.
        """
        self.shedding.set_rule(model_name, rule)
        self.refresh_mode()
        batch_share = self.shedding.rule_of(model_name).batch_share
        keys = [key for key in self._partitions if key.model_name == model_name]
        for key in keys:
            self._partitions[key].effective_batch_share = batch_share
            self._dirty.mark_capacity(key)
        # None is refused at once, as the rules of many models may change in one turn.
        self._sweep.schedule(keys)

    def refuse_all_waiting(self, error: SelectError) -> None:
        """Refuse all waiting requests, at the end of the service."""
        # A copy: removing a ticket changes the queues.
        for ticket in list(self.waiting):
            self.waiting.remove(ticket)
            self.tally.count_refusal("no_rank", ticket.placement_request.partition.key)
            ticket.settle(error)

    def _serve_partition(self, key: PartitionKey, now: float, budget: TurnBudget) -> None:
        """Serve requests of a partition, as far as the budget of the turn allows.

        Searching many lanes uses up budget as well.
        """
        # Changes during the loop mark the partition again.
        self._dirty.partitions.pop(key, None)
        partition = self._partitions.get(key)
        update = self.waiting.update_queue(key, partition, budget)
        for ticket, error in update.stranded:
            if partition is not None and unpin_ticket(ticket, partition):
                self.waiting.add_again(ticket)
                self._dirty.mark_capacity(key)
            else:
                self.tally.count_refusal("no_rank", key)
                ticket.settle(error)
        if update.has_more:
            self._dirty.partitions[key] = None
        while partition is not None and update.may_serve and key in self.waiting.queues:
            if not budget.can_serve or not self._decisions.is_ready_for_max_booking(partition):
                self._dirty.partitions[key] = None
                break
            queue = self.waiting.queues[key]
            queue.changes = _index_change_count(partition)
            steps = 1 + queue.search_work // turn_budget.SERVE_WORK
            views = QueueHeadroom(self.busy_check, partition, queue)
            chosen = queue.take_next(views.headroom_bits, compute_burst(partition.table))
            if chosen is None:
                budget.spend(turn_budget.SERVE_WORK, steps)
                break
            # A large booking costs as much as several requests.
            extra = extra_work(chosen.request, booked_blocks(chosen.placement_request))
            budget.spend(turn_budget.SERVE_WORK, steps + extra)
            # The next search must fit too: it may cost as much as all of a turn.
            if budget.left < steps * turn_budget.SERVE_WORK:
                budget.left = 0
            chosen.rebind(partition)
            self._serve_ticket(chosen, views, now)

    def _serve_ticket(self, ticket: WaitingTicket, views: QueueHeadroom, now: float) -> None:
        """Decide again, with the current state."""
        room, eligible = views.ranks_for(ticket)
        job, waited_s = ticket.placement_request, now - ticket.arrived_at
        if self.shedding.is_shed(ticket.request.model_name, ticket.tier):
            self._settle_taken(ticket, self.shedding.refuse_tier(job.partition.key, ticket.tier))
            return
        waited = QueueWait(ticket.policy_class, ticket.position, waited_s)
        try:
            follow_session_again(ticket, self._decisions, now)
            job = ticket.placement_request
            # The session or, in an overtaken queue, ranks may have changed during the wait.
            allowed = find_candidates(job.partition.table, ticket.request)
            legs = self._leg_masks(job, allowed) or [allowed]
            if not all((leg & room).any() for leg in legs):
                self.waiting.return_ticket(ticket)
                return
            job = job._replace(queue_wait=waited)
            decision = self._decisions.decide(job, allowed & eligible, now)
        except SelectError as error:
            self.tally.count_refusal("no_rank", job.partition.key)
            self._settle_taken(ticket, error)
            return
        self.tally.admitted += 1
        self.tally.record_wait(ticket.policy_class, waited_s)
        self._settle_taken(ticket, decision)

    def _settle_taken(
        self, ticket: WaitingTicket, outcome: PlacementDecision | SelectError
    ) -> None:
        """Settle a ticket that was taken from its queue."""
        self.waiting.forget_ticket(ticket)
        ticket.settle(outcome)

    # Views

    def backlog_by_class(self) -> dict[str, Backlog]:
        """Return the backlog by policy class, over all partitions; classes with an emptied queue
        stay.
        """
        seen = [*self.tally.waits, *self.tally.missed_deadlines]
        return dict.fromkeys(seen, NO_BACKLOG) | self.waiting.backlog_by_class()

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        self.waiting.check_invariants()


def _index_change_count(partition: Partition) -> int:
    """Return the counter of KV event changes."""
    return int(partition.index.header[CHANGED])
