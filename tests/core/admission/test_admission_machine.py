"""Tests of the admission stage of a whole selector against its naive twin, in virtual time."""

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from select_service.base.errors import SelectError
from select_service.core.admission import partition_queue, turn_budget
from select_service.core.admission.policy_classes import single_class_profile
from select_service.core.decision_maker import PlacementDecision
from select_service.core.identity import Rank
from select_service.core.replication.load_events import (
    PrefillCompleted,
    ReservationAdmitted,
    ReservationFreed,
)
from select_service.schemas.admission import BusyThresholdChange
from tests.builders import a_reservation
from tests.builders.hypothesis_profiles import explored
from tests.builders.ticks import ticked
from tests.core.admission.cases import (
    ANY,
    ANYWHERE,
    FOUR_CLASSES,
    PATHS,
    PLACES,
    PROMPTS,
    SECONDS,
    URGENCIES,
    body_of,
    with_policy,
)
from tests.core.admission.twins import Twins
from tests.models.admission import TIERS, names
from tests.models.waiting import ModelRequest

PEER = 7
ISL = 9
"""Length in tokens of a prompt that a caller books."""
RUSH_MAX = 12


class AdmissionMatchesModel(Twins):
    """Machine in which requests arrive, wait, are served and leave while load changes."""

    # --- requests

    @precondition(lambda self: self.ranks())
    @rule(
        key=st.integers(0, 3),
        prompt=PROMPTS,
        place=PLACES,
        urgency=URGENCIES,
        reserves=st.booleans(),
        own_id=st.sampled_from(["new", "new", "taken", None]),
    )
    def ask(self, key, prompt, place, urgency, reserves, own_id):
        self.count += 1
        key = self.keys[key == 0 and len(self.keys) - 1]
        asked = ModelRequest(
            name=f"{key[0]}{self.count}",
            key=key,
            path=prompt["path"],
            isl=4 * len(prompt["path"]) + prompt["more"],
            **place,
            strict=urgency["strict"],
            jump=urgency["jump"],
            tier=urgency["tier"],
            flow=urgency["flow"],
            due_s=float("inf") if urgency["deadline_ms"] is None else urgency["deadline_ms"] / 1000,
            timeout_s=float("inf")
            if urgency["timeout_ms"] is None
            else urgency["timeout_ms"] / 1000,
            reserves=reserves,
            reservation_id=self.some_id(own_id) if reserves else None,
            header=urgency["header"],
        )
        got = self.answer(asked, urgency["timeout_ms"])
        assert self.model.arrive(asked, self.now) == got
        self.agree_on_departures()
        if got == "waits":
            assert self.tickets[asked.name].position == self.model.position

    @precondition(lambda self: self.ranks())
    @rule(
        asks=st.lists(st.tuples(PROMPTS, PLACES, URGENCIES), min_size=4, max_size=10),
        key=st.integers(0, 3),
    )
    def many_ask(self, asks, key):
        for number, (prompt, place, urgency) in enumerate(asks):
            self.ask(key, prompt, place, urgency, number % 3 < 2, None)

    def some_id(self, which):
        taken = [w.asked.reservation_id for w in self.model.line.waiters] + list(self.model.held)
        taken = [name for name in taken if name is not None]
        if which == "taken" and taken:
            return taken[self.count % len(taken)]
        return None if which is None else f"r{self.count}"

    def answer(self, asked, timeout_ms):
        verb = self.selector.select_and_reserve if asked.reserves else self.selector.select
        try:
            outcome = verb(body_of(asked, timeout_ms), self.now, asked.header)
        except SelectError as error:
            return type(error).__name__
        if isinstance(outcome, PlacementDecision):
            self.pass_choice(asked.name, outcome)
            return "served"
        self.tickets[asked.name] = outcome
        outcome.on_settled = lambda: self.record_outcome(asked.name)
        return "waits"

    @rule(
        number=ANY, path=PATHS, tokens=st.integers(0, 9), own_id=st.sampled_from(["new", "taken"])
    )
    def a_caller_reserves_where_it_went(self, number, path, tokens, own_id):
        found = self.some_rank(number)
        if not found:
            return
        self.count += 1
        (rank, key), name = found, self.some_id(own_id)
        request = a_reservation(
            name,
            rank[0],
            dp_rank=rank[1],
            token_ids=None,
            sequence_hashes=names(path),
            isl_tokens=ISL,
            effective_prefill_tokens=tokens,
            model_name=key[0],
            tenant_id=key[1],
        )
        # As in Dynamo, an id in use is reported first.
        if name != f"r{self.count}":
            assert self.refusal(self.selector.reserve, request, self.now) == "Conflict"
            return
        if self.model.health.get(rank) == 0.0:
            assert self.refusal(self.selector.reserve, request, self.now) == "NoEligibleRank"
            return
        self.selector.reserve(request, self.now)
        self.model.reserve(name, key, rank, names(path), tokens, ISL, self.now)

    # --- load ends

    def some_held(self, number):
        held = sorted(self.model.held)
        return held[number % len(held)]

    @precondition(lambda self: self.model.held)
    @rule(
        number=ANY,
        verb=st.sampled_from(
            ["free_reservation", "free_reservation", "complete_prefill", "renew_reservation"]
        ),
    )
    def a_reservation_goes_on(self, number, verb):
        name = self.some_held(number)
        getattr(self.selector, verb)(name, self.now)
        self.goes_on(name, verb)

    def goes_on(self, name, verb):
        self.model.held[name].renewed_at = self.now
        if verb == "free_reservation":
            self.model.free(name)
        elif verb == "complete_prefill":
            self.model.held[name].prefill_tokens = 0

    @precondition(lambda self: len(self.model.held) > 1)
    @rule(verb=st.sampled_from(["free_reservation", "complete_prefill"]), some=st.integers(1, 9))
    def many_reservations_go_on(self, verb, some):
        for name in sorted(self.model.held)[-some:]:
            getattr(self.selector, verb)(name, self.now)
            self.goes_on(name, verb)

    @precondition(lambda self: self.model.held)
    @rule(number=ANY, fraction=st.none() | st.sampled_from([0.0, 0.5]))
    def output_block(self, number, fraction):
        name = self.some_held(number)
        self.selector.add_output_block(name, fraction, self.now)
        self.model.held[name].renewed_at = self.now
        self.model.output_block(name, fraction)

    @precondition(lambda self: self.model.held)
    @rule(number=ANY, kind=st.sampled_from([ReservationFreed, PrefillCompleted]))
    def a_peer_ends_load(self, number, kind):
        name = self.some_held(number)
        held = self.model.held[name]
        assert self.apply(kind, name, held.key, held.rank) is None
        self.goes_on(name, "free_reservation" if kind is ReservationFreed else "complete_prefill")

    @rule(
        number=ANY, path=PATHS, tokens=st.integers(1, 9), own_id=st.sampled_from(["new", "taken"])
    )
    def a_peer_admits(self, number, path, tokens, own_id):
        self.count += 1
        found, name = self.some_rank(number), self.some_id(own_id)
        if not found or name in self.model.held:
            return
        rank, key = found
        fields = {
            "sequence_hashes": np.array(names(path), np.uint64),
            "prefill_tokens_hint": tokens,
        }
        assert self.apply(ReservationAdmitted, name, key, rank, **fields) is None
        self.model.reserve(name, key, rank, names(path), tokens, ISL, self.now)

    def apply(self, kind, name, key, rank, **fields):
        return self.selector.followers.replicas.apply_event(
            kind(
                model_name=key[0],
                tenant_id=key[1],
                block_size=self.model.block_size(key),
                reservation_id=name,
                rank=Rank(*rank),
                router_id=PEER,
                **fields,
            ),
            self.now,
        )

    # --- service of the queue

    @rule()
    def settle(self):
        while self.woken:
            self.woken = False
            self.selector.run_pending(self.now)
        self.model.serve_all(self.now)
        self.agree_on_departures()
        assert not self.model.may_leave()

    @rule(seconds=SECONDS)
    def time_passes(self, seconds):
        self.now += seconds

    @rule(seconds=SECONDS)
    def tick(self, seconds):
        self.now += seconds
        ended = set(ticked(self.selector, self.now))
        while self.woken:
            self.woken = False
            self.selector.run_pending(self.now)
        assert ended == set(self.model.tick(self.now))
        self.agree_on_departures()

    @precondition(lambda self: self.tickets)
    @rule(number=ANY, gone=st.booleans())
    def one_gives_up(self, number, gone):
        waiters = self.model.line.waiters
        waiter = waiters[number % len(waiters)]
        ticket = self.tickets[waiter.asked.name]
        if gone:
            self.selector.gate.remove_disconnected(ticket)
            self.model.settle(waiter, "QueueTimeout", "client_gone")
        elif waiter.deadline <= self.now:
            self.selector.gate.time_out_ticket(ticket, self.now)
            self.model.time_out(waiter)
        self.agree_on_departures()

    # --- changes by operators

    @rule(
        key=st.integers(0, 3),
        blocks=st.sampled_from([None, "keep", 0.9, 0.5, 0.3, 0.0]),
        tokens=st.sampled_from([None, "keep", 20, 6, 0]),
    )
    def set_thresholds(self, key, blocks, tokens):
        model = self.keys[key == 0 and len(self.keys) - 1][0]
        given = {
            "active_decode_blocks_threshold": blocks,
            "active_prefill_tokens_threshold": tokens,
        }
        change = {name: value for name, value in given.items() if value != "keep"}
        body = msgspec.convert({"model": model, **change}, BusyThresholdChange)
        if not any(worker.key[0] == model for worker in self.model.workers.values()):
            assert self.refusal(self.selector.set_thresholds, body) == "NotFound"
            return
        self.selector.set_thresholds(body)
        old = self.model.thresholds(model)
        self.model.own_thresholds[model] = tuple(
            was if new == "keep" else new for was, new in zip(old, (blocks, tokens), strict=True)
        )

    @precondition(lambda self: self.tickets or self.model.shed_from)
    @rule(tier=st.sampled_from([None, None, None, "best_effort", *TIERS]))
    def shed(self, tier):
        self.set_shed_tier(tier)
        self.agree_on_departures()

    def set_shed_tier(self, tier):
        self.selector.set_shed_tier(tier)
        self.model.shed(tier)


class ShortestUncachedFirst(AdmissionMatchesModel):
    """One class, least uncached tokens first, with a common timeout."""

    document = with_policy({"queue_policy": "wspt", "prefill_busy_threshold_frac": 0.0})
    profile = single_class_profile("wspt", 0.0)
    timeout_s = 2.0


class ClassesShareTheRoom(AdmissionMatchesModel):
    """Two families in two buckets and an explicit class; limits; one partition."""

    document = FOUR_CLASSES
    profile = None
    keys = (("m", "default"),)

    @precondition(lambda self: self.ranks() and len(self.tickets) < RUSH_MAX)
    @rule(asks=st.lists(st.tuples(PROMPTS, URGENCIES), min_size=6, max_size=RUSH_MAX), left=ANY)
    def a_rush_meets_full_ranks_that_become_free(self, asks, left):
        """Queue requests of several classes so that each class can pay more than once."""
        blockers = []
        for number in range(3 * len(self.ranks())):
            self.a_caller_reserves_where_it_went(number, (1,), 9, "new")
            blockers.append(f"r{self.count}")
        for prompt, urgency in asks:
            self.ask(0, prompt, ANYWHERE, urgency, False, None)
        for name in blockers if left % 4 else blockers[1:]:
            self.a_reservation_ends(name)
        self.settle()

    def a_reservation_ends(self, name):
        if name in self.model.held:
            self.selector.free_reservation(name, self.now)
            self.goes_on(name, "free_reservation")


class ThresholdsOnly(AdmissionMatchesModel):
    """Configuration without a queue: requests without a free rank are rejected."""

    document = None
    thresholds = (0.5, 6)


class ThresholdsAndSmallTurns(AdmissionMatchesModel):
    """Busy thresholds beside the queue; two requests leave per turn; small bounds."""

    document = with_policy({"prefill_busy_threshold_frac": 0.0})
    profile = single_class_profile("fcfs", 0.0)
    keys = (("m", "default"),)
    thresholds = (0.9, None)
    bounds = (6, 80)
    turn_max = 2


class ClassesInSmallTurns(ClassesShareTheRoom):
    """Turns that reject, rebind and refresh one or two requests.

    The twin does all at once, so the comparison follows the last turn.
    """

    # Ends of waits take several turns, too, and room that appears between these turns would be
    # used.
    ttl_s = stale_s = 1e9

    def limit_turns(self):
        self.patched.setattr(turn_budget, "SERVED_PER_TURN_MAX", 4)
        self.patched.setattr(turn_budget, "REFUSE_WORK", 2 * turn_budget.SERVE_WORK - 1)
        self.patched.setattr(turn_budget, "SWEEP_WORK", 1)
        self.patched.setattr(partition_queue, "CLASS_WORK", 1)
        self.patched.setattr(partition_queue, "REFRESHED_PER_TURN_MAX", 1)
        self.patched.setattr(partition_queue, "REBOUND_PER_TURN_MAX", 1)

    @rule(seconds=SECONDS)
    def tick(self, seconds):
        self.settle()
        super().tick(seconds)

    def answer(self, asked, timeout_ms):
        self.settle()
        return super().answer(asked, timeout_ms)

    def set_shed_tier(self, tier):
        self.settle()
        self.selector.set_shed_tier(tier)
        assert len(self.log) <= 1
        self.model.shed(tier)
        self.settle()


TestFirstComeFirstServed = explored(AdmissionMatchesModel)
TestShortestUncachedFirst = explored(ShortestUncachedFirst)
TestClassesShareTheRoom = explored(ClassesShareTheRoom)
TestClassesInSmallTurns = explored(ClassesInSmallTurns)
TestThresholdsOnly = explored(ThresholdsOnly)
TestThresholdsAndSmallTurns = explored(ThresholdsAndSmallTurns)
