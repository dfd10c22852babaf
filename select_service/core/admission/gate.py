"""The admission stage: what may pass, what must wait and what is refused, in this order.

1. A request whose priority tier is shed is refused.
2. Ranks above a busy threshold are no candidates; a request that has no other is refused.
3. With queueing on, a request waits until one of its candidates has room for its policy class.

What passes is placed and booked at once by `Decisions`, on ranks that passed 2 and 3.  What waits
is a `Ticket`; it is settled by `serve`, by its deadline, by the end of its partition or by `leave`.

Whatever frees capacity is noted in `Touched`, and the owner of the event loop then lets `serve`
run.  A request that comes in between lets those before it go first.
"""

from collections.abc import Mapping
from itertools import count, islice
from math import inf

import numpy as np

from indexer.index.state_kernels import CHANGED
from select_service.bodies.selection import SelectRequest
from select_service.core.admission.brakes import NO_BRAKE, Brake
from select_service.core.admission.busy import BusyJudge, Limits, ranks_below
from select_service.core.admission.drain import retry_after_s
from select_service.core.admission.policy_classes import QueueBounds, QueueRules
from select_service.core.admission.priority_tiers import SHED_RETRY_AFTER_S, PriorityTiers
from select_service.core.admission.queue_view import QueueView
from select_service.core.admission.room import room_for
from select_service.core.admission.tally import AdmissionTally
from select_service.core.admission.waiting import (
    PartitionQueue,
    Size,
    Ticket,
    booked_blocks,
    extra_work,
    lane_of,
    score_of,
    size_of,
    without_prompt,
)
from select_service.core.admission.waiting_list import Backlog, WaitingList
from select_service.core.arrays import Mask
from select_service.core.decide.candidates import candidates
from select_service.core.decide.decision_ring import Waited
from select_service.core.decide.prompt import key_of
from select_service.core.decisions import Decision, Decisions, Job
from select_service.core.fleet.limits_layout import N_LIMITS
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey
from select_service.core.touched import Touched
from select_service.errors import CapacityShed, QueueFull, QueueTimeout, SelectError

SERVED_PER_TURN_MAX = 64
"""Requests that leave the queue before other work gets its turn."""
LANES_PER_STEP = 64
"""Looking through so many lanes counts as much as serving one request more."""

ROOMS_AT_ONCE_MAX = 8
"""Classes with different room that are compared for one request, some microseconds each."""

_NOT_SAID = (0.0,) * N_LIMITS

SETTLED_PER_TURN_MAX = 256
"""Requests that are refused in one turn because their tier was shed, or their time is over."""


class Gate:
    """Judges every request that asks for a rank."""

    def __init__(
        self,
        partitions: Mapping[PartitionKey, Partition],
        judge: BusyJudge,
        tiers: PriorityTiers,
        rules: QueueRules | None,
        decisions: Decisions,
        touched: Touched,
    ) -> None:
        """rules: None when queueing is off"""
        self.judge = judge
        self.tiers = tiers
        self.rules = rules
        self.holds = rules is not None and rules.holds
        """Do requests wait for work to be done, of which nothing but KV events tells?"""
        self.tally = AdmissionTally()
        self._partitions = partitions
        self._decisions = decisions
        self.waiting = WaitingList(QueueBounds() if rules is None else rules.bounds)
        self._touched = touched
        touched.watch(self.waiting.queues)
        self._arrivals = count()
        self.brakes: dict[str, Brake] = {}
        """Of models that are degraded."""
        self._sheds_on = False
        self._shows = False
        self.admits = np.zeros(1, np.int64)
        """[0]: `is_open`.  For kernels; the array stays."""
        self.note_switches()

    # --- arrivals

    def note_switches(self) -> None:
        """A tier, a threshold or a queue was switched on or off."""
        is_off = not self.sheds and self.judge.thresholds.off
        self.is_open = self.rules is None and is_off
        if self._shows and not self.is_open:
            for partition in self._partitions.values():
                self._show(partition)
        self.admits[0] = self.is_open

    def refuse_shed(self, request: SelectRequest) -> None:
        """Raises BadRequest for an unknown tier, CapacityShed for one that is shed."""
        wanted = request.priority_tier
        if wanted is None and (self.is_open or not self.sheds):
            return
        tier = self.tiers.index_of(wanted)
        if self._is_shed(request.model_name, tier):
            raise self._shed(key_of(request), tier)

    def admit(
        self, job: Job, allowed: Mask, now: float, policy_class: str | None
    ) -> Decision | Ticket:
        """Let a request pass or wait.

        allowed:      bool[n_slots], at least one
        policy_class: what the client asked for
        Raises Overloaded, QueueFull, QueueTimeout, and what `decide` raises.
        """
        if not self.is_open:
            if self._others_first(job.partition.key):
                self._serve_room(job.partition.key, now, SERVED_PER_TURN_MAX)
            if self.rules is not None:
                return self._admit_or_queue(job, allowed, now, policy_class)
            allowed = self._free(job, allowed)
        return self._pass(job, allowed, now)

    def _others_first(self, key: PartitionKey) -> bool:
        """May somebody who waits there go now?  That progress has made room nobody notes."""
        if self._touched.partitions and key in self._touched.partitions:
            return True
        return self.holds and key in self.waiting.queues

    def asked(self, job: Job, allowed: Mask, policy_class: str | None) -> tuple[Mask, bool]:
        """Among whom `admit` would let a request choose now, and whether it would wait instead.

        Changes and counts nothing; arguments as those of `admit`.  Raises Overloaded.
        """
        free = self.judge.free(job.partition, job.request, allowed)
        if self.rules is None:
            return free, False
        profile = self.rules.profile(job.partition.key.model_name)
        size = size_of(job, free)
        index = profile.class_of(policy_class, size.isl_tokens - size.cached_tokens)
        room = room_for(job.partition, free, profile.classes[index])
        return (room.eligible, False) if room.n_ranks else (free, True)

    def free_at_once(self, partition: Partition) -> Mask | None:
        """Among whom `admit` would let a request choose that says nothing but its prompt; None: it
        might refuse the request, let it wait, or serve others first.
        """
        if partition.key in self._touched.partitions:
            return None
        limits = self._limits_at_once(partition.key)
        if limits is None:
            return self._free_for_all(partition)
        free, n_free = ranks_below(partition, partition.table.open, limits)
        return free if n_free else None

    def _free_for_all(self, partition: Partition) -> Mask | None:
        """As `free_at_once`, where there are several classes, or one waits for work to be done:
        where all would choose among the same ranks, it does not matter of which a request is.
        """
        key = partition.key
        if self.rules is None or self._gives_up(key.model_name):
            return None
        if self.holds and key in self.waiting.queues:
            return None
        classes = self.rules.profile(key.model_name).rooms
        if len(classes) > ROOMS_AT_ONCE_MAX:
            return None
        not_busy = self.judge.free_of_all(partition)
        rooms = [room_for(partition, not_busy, each) for each in classes]
        eligible = rooms[0].eligible
        is_same = all(r.n_ranks and np.array_equal(r.eligible, eligible) for r in rooms)
        return eligible if is_same else None

    def _limits_at_once(self, key: PartitionKey) -> Limits | None:
        """Of requests that say nothing but their prompt; None: each has to be judged by itself."""
        if self._gives_up(key.model_name):
            return None
        only = None
        if self.rules is not None:
            only = self.rules.profile(key.model_name).only_by_load
            if only is None:
                return None
        return Limits.of(self.judge.thresholds.of(key.model_name), only)

    def show(self, partition: Partition) -> None:
        """Let `limits` of all partitions say from now on what kernels of other threads may judge.

        A partition that is new says nothing until it is shown, or the next tick.
        """
        self._shows = True
        self._show(partition)

    def _show(self, partition: Partition) -> None:
        """Where somebody waits nothing is said, so that nobody who comes is served before."""
        is_idle = partition.key not in self.waiting.queues
        limits = self._limits_at_once(partition.key) if is_idle else None
        said = _NOT_SAID if limits is None else (*limits, 1.0)
        if partition.limits.tolist() != [*said]:
            with partition.index.lock:
                partition.limits[:] = said

    def _free(self, job: Job, allowed: Mask) -> Mask:
        """Raises Overloaded."""
        try:
            return self.judge.free(job.partition, job.request, allowed)
        except SelectError:
            self.tally.refused("busy", job.partition.key)
            raise

    def _admit_or_queue(
        self, job: Job, allowed: Mask, now: float, wanted: str | None
    ) -> Decision | Ticket:
        assert self.rules is not None
        partition, key = job.partition, job.partition.key
        profile = self.rules.profile(key.model_name)
        by_load = profile.only_by_load
        if (
            by_load is not None
            and job.request.pinned_worker is None
            and key not in self._touched.partitions
        ):
            # The usual case in one step; what follows comes to the same.
            mask, n_free = self.judge.free_with_room(partition, allowed, by_load)
            if n_free:
                return self._pass(job, mask, now)
        free = self._free(job, allowed)
        size, class_index = None, 0
        if profile.only is None:
            size = size_of(job, free)
            class_index = profile.class_of(wanted, size.isl_tokens - size.cached_tokens)
        room = room_for(partition, free, profile.classes[class_index])
        if room.n_ranks and key not in self._touched.partitions:
            return self._pass(job, room.eligible, now)
        return self._enqueue(job, class_index, size or size_of(job, free), now)

    def _pass(self, job: Job, eligible: Mask, now: float) -> Decision:
        decision = self._decisions.decide(job, eligible, now)
        self.tally.admitted += 1
        return decision

    def _enqueue(self, job: Job, class_index: int, size: Size, now: float) -> Ticket:
        assert self.rules is not None
        request, partition = job.request, job.partition
        key = partition.key
        profile = self.rules.profile(key.model_name)
        rules = profile.classes[class_index]
        deadline = self._deadline(request, now)
        queue = self.waiting.queues.get(key) or PartitionQueue(profile.classes)
        ticket = Ticket(
            job=job._replace(request=without_prompt(request)),
            request=request,
            lane=lane_of(request),
            size=size,
            class_index=class_index,
            policy_class=rules.name,
            tier=self.tiers.index_of(request.priority_tier),
            arrived=now,
            deadline=deadline,
        )
        self._refuse_if_full(queue, ticket, deadline <= now)
        token_s = self._token_s(partition) if rules.holds else 0.0
        score = score_of(rules.queue_policy, request.priority_jump or 0.0, now, size, token_s)
        ticket.order = (-(request.strict_priority or 0), -score, next(self._arrivals))
        self.waiting.add(queue, ticket)
        if self._shows:
            self._show(partition)
        return ticket

    def _token_s(self, partition: Partition) -> float:
        """What a token of prefill takes one of its ranks, as they drain now."""
        return self.judge.rate(partition).token_s(int(partition.table.open.sum()))

    def _deadline(self, request: SelectRequest, now: float) -> float:
        """The sooner of the request's own and the common one."""
        assert self.rules is not None
        brake = self.brakes.get(request.model_name, NO_BRAKE)
        common = (self.rules.timeout_s or inf) * brake.latency_share
        own = inf if request.timeout_ms is None else request.timeout_ms / 1000.0
        return now + min(common, own)

    def _refuse_if_full(self, queue: PartitionQueue, ticket: Ticket, may_not_wait: bool) -> None:
        """Raises QueueTimeout or QueueFull; nothing is added."""
        partition = ticket.job.partition
        if may_not_wait:
            raise self._too_late(ticket, ticket.arrived)
        try:
            queue.refuse_if_full(
                ticket.class_index, ticket.lane, ticket.size, partition.table.n_workers
            )
            self.waiting.refuse_beyond_bounds(ticket)
        except QueueFull as error:
            self.tally.refused("queue_full", partition.key)
            error.retry_after_s = self._retry_after_s(partition)
            raise

    # --- departures

    def look_everywhere(self) -> None:
        """Thresholds or tiers have changed."""
        self.note_switches()
        for key in self.waiting.queues:
            self._touched.capacity(key)

    def serve(self, now: float) -> None:
        """Let waiting requests go for which there is room; asks to be woken again for the rest."""
        if self._sheds_on:
            self._refuse_waiting_shed()
        left = SERVED_PER_TURN_MAX
        for key in list(self._touched.partitions):
            left = self._serve_room(key, now, left)
            if not left:
                break
        self._touched.wake_if(self._touched.partitions)

    def tick(self, now: float) -> bool:
        """Once a second: rates, deadlines, and a look at every queue.

        Returns whether there were as many deadlines as one turn looks at; then another is due.
        """
        self.judge.tick(self._partitions, now)
        late = self.waiting.overdue(now, SETTLED_PER_TURN_MAX)
        for ticket in late:
            self.time_out(ticket, now)
        self.look_everywhere()
        self.serve(now)
        return len(late) == SETTLED_PER_TURN_MAX

    def look_for_progress(self, now: float) -> bool:
        """Let those be served for whom engines, by their KV events, may have made room."""
        for key, queue in self.waiting.queues.items():
            partition = self._partitions.get(key)
            if not queue.holds or partition is None:
                continue
            if queue.changes != _changes_of(partition):
                self._touched.capacity(key)
        return False

    def time_out(self, ticket: Ticket, now: float) -> None:
        """Its time is over; nothing happens when it is settled already."""
        if ticket.outcome is None:
            self.waiting.remove(ticket)
            ticket.settle(self._too_late(ticket, now))

    def leave(self, ticket: Ticket) -> None:
        """Its client has gone; nothing happens when it is settled already."""
        if ticket.outcome is None:
            self.waiting.remove(ticket)
            self.tally.refused("client_gone", ticket.job.partition.key)
            ticket.settle(QueueTimeout("the client has gone"))

    def withdraw(self, ticket: Ticket, error: SelectError) -> None:
        """It may not wait after all, for the error; nothing happens when it is settled already."""
        if ticket.outcome is None:
            self.waiting.remove(ticket)
            self.tally.refused("queue_full", ticket.job.partition.key)
            ticket.settle(error)

    def shed(self, tier: str | None) -> None:
        """Throw the switch; who waits and is shed now is refused.  Raises BadRequest."""
        self.tiers.shed(tier)
        self._refuse_waiting_shed()
        self.look_everywhere()

    def brake(self, model_name: str, brake: Brake | None) -> None:
        """What is given up for a model from now on; None: nothing."""
        self.brakes.pop(model_name, None)
        if brake is not None:
            self.brakes[model_name] = brake
        for key, partition in self._partitions.items():
            if key.model_name == model_name:
                partition.batch_share = (brake or NO_BRAKE).batch_share
        self._refuse_waiting_shed()
        self.look_everywhere()

    def _refuse_waiting_shed(self) -> None:
        """Those whose tier is shed now, as many as one turn may."""
        found = (t for t in self.waiting if self._is_shed(t.request.model_name, t.tier))
        refused = list(islice(found, SETTLED_PER_TURN_MAX))
        for ticket in refused:
            self.waiting.remove(ticket)
            ticket.settle(self._shed(ticket.job.partition.key, ticket.tier))
        self._sheds_on = len(refused) == SETTLED_PER_TURN_MAX
        if self._sheds_on:
            self._touched.wake_if(refused)

    def dismiss(self, error: SelectError) -> None:
        """Nobody will be served any more."""
        for ticket in list(self.waiting):
            self.waiting.remove(ticket)
            self.tally.refused("no_rank", ticket.job.partition.key)
            ticket.settle(error)

    def _serve_room(self, key: PartitionKey, now: float, left: int) -> int:
        """Serve at most `left` requests of one partition, fewer where there are many lanes to look
        through; returns what is left of that.
        """
        self._touched.partitions.pop(key, None)
        partition = self._partitions.get(key)
        stranded, more = self.waiting.take_stranded(key, partition)
        for ticket, error in stranded:
            self.tally.refused("no_rank", key)
            ticket.settle(error)
        if more:
            self._touched.partitions[key] = None
            return 0
        while partition is not None and key in self.waiting.queues:
            if not left or not self._decisions.keeps_up(partition):
                self._touched.partitions[key] = None
                break
            queue = self.waiting.queues[key]
            queue.changes = _changes_of(partition)
            left = max(0, left - 1 - queue.n_lanes // LANES_PER_STEP)
            views = QueueView(self.judge, partition, queue)
            chosen = queue.next(views.bits)
            if chosen is None:
                break
            left = max(0, left - extra_work(chosen.request, booked_blocks(chosen.job)))
            self.waiting.forget(chosen)
            pinned = chosen.lane.pinned is not None
            self._serve(chosen, views.room(chosen.class_index, pinned).eligible, now)
        if self._shows and partition is not None:
            self._show(partition)
        return left

    def _serve(self, ticket: Ticket, eligible: Mask, now: float) -> None:
        """Decide anew, with what is known now."""
        job, waited_s = ticket.job, now - ticket.arrived
        if self._is_shed(ticket.request.model_name, ticket.tier):
            ticket.settle(self._shed(job.partition.key, ticket.tier))
            return
        waited = Waited(ticket.policy_class, ticket.position, waited_s)
        try:
            allowed = candidates(job.partition.table, ticket.request) & eligible
            decision = self._decisions.decide(job._replace(waited=waited), allowed, now)
        except SelectError as error:
            self.tally.refused("no_rank", job.partition.key)
            ticket.settle(error)
            return
        self.tally.admitted += 1
        self.tally.waited(ticket.policy_class, waited_s)
        ticket.settle(decision)

    # --- refusals, counted where they are made

    @property
    def sheds(self) -> bool:
        """Is there a tier of a model that is refused, or are limits of one tighter than given?"""
        return self.tiers.shedding or bool(self.brakes)

    def _gives_up(self, model_name: str) -> bool:
        """As `sheds`, of one model."""
        return self.tiers.shedding or model_name in self.brakes

    def _is_shed(self, model_name: str, tier: int) -> bool:
        """By whichever is stricter, the operators' switch or the brake of the model."""
        brake = self.brakes.get(model_name, NO_BRAKE)
        return self.tiers.is_shed(tier) or brake.sheds(tier)

    def _shed(self, key: PartitionKey, tier: int) -> SelectError:
        name = self.tiers.names[tier]
        self.tally.refused("shed", key)
        self.tally.shed_tiers[name] += 1
        error = CapacityShed(f"capacity_shed: tier={name}")
        error.retry_after_s = SHED_RETRY_AFTER_S
        return self.brakes.get(key.model_name, NO_BRAKE).refusal(error)

    def _too_late(self, ticket: Ticket, now: float) -> QueueTimeout:
        self.tally.refused("queue_timeout", ticket.job.partition.key)
        error = QueueTimeout(
            f"queue_timeout: no worker had room within {now - ticket.arrived:.3f} s "
            f"(policy class {ticket.policy_class})"
        )
        error.retry_after_s = self._retry_after_s(ticket.job.partition)
        return error

    def _retry_after_s(self, partition: Partition) -> int:
        """Until what waits now has drained."""
        work = max(1, self.waiting.of(partition.key).isl_tokens)
        return retry_after_s(work, self.judge.rate(partition).tokens_per_s)

    # --- views

    def by_class(self) -> dict[str, Backlog]:
        """What waits, by policy class, over all partitions; classes that had waits stay."""
        return dict.fromkeys(self.tally.waits, Backlog(0, 0)) | self.waiting.by_class()

    def check_invariants(self) -> None:
        """For tests."""
        self.waiting.check_invariants()


def _changes_of(partition: Partition) -> int:
    """Counts what KV events changed."""
    return int(partition.index.header[CHANGED])
