"""Rules that a selector with health always obeys, checked naively from outside.

A twin of each process gets the selector's notifications (health effects, load changes), and
knows the engines' true state from the world.
"""

from collections import Counter
from math import floor

from select_service.base.errors import Conflict, NotFound
from select_service.core.health.health_effects import RankReset, SparePromoted, StateChanged
from select_service.core.health.health_kinds import (
    EJECTION_LIMITED,
    WRONG_ANSWERS,
    CheckKind,
    RankHealthState,
)
from select_service.core.health.rank_state.rank_registry import SILENT_CHECKS_MIN
from select_service.core.load.compiled import load_layout as layout
from tests.models.level_model import naive_levels

CHECK_S = 1.2
"""Duration in s of a check with a wrong answer: three attempts with pauses.
"""
QUESTION_S = 3.0
"""Time in s that a verdict waits for peers, including a second until the result is seen.
"""
OUT_S = 30.0 + 3 * (CHECK_S + QUESTION_S) + 1.0
"""Longest time in s until a corrupt rank is ejected: its turn, and three consecutive checks."""
LEARNT_S = 120.0
"""Longest time in s until a new process knows the right answers.

The process sends each prompt once, in rounds of 30 s, and perhaps again if too few ranks answer.
"""
MOVED_S = 3.0
"""Longest time in s until a plan is carried out and its events are published."""
REFUSED = Conflict, NotFound


class HealthTwin:
    """Follower of the health and the ledger of a process."""

    def __init__(self, node, rules):
        self._node, self._rules = node, rules
        self.states, self.spares = {}, {}
        self.serving_since, self.changed_at = {}, {}
        self.moves, self.given_up = [], set()
        self._left = {}
        """Rank that a reservation has just left, by reservation."""

    @property
    def rules(self):
        return self._rules

    def state(self, rank):
        """Return the last notified state; all consequences of this state are complete."""
        return self.states.get(rank, RankHealthState.HEALTHY)

    @property
    def _roster(self):
        (_, partition), *_ = self._node.health.monitor.iterate_partitions()
        return partition.health.registry

    # --- health

    def on_effect(self, effect, now):
        match effect:
            case StateChanged(rank, was, state, cause):
                assert self.state(rank) is was, (rank, was, self.state(rank))
                self.states[rank], self.changed_at[rank] = state, now
                if state.is_serving and not was.is_serving:
                    self.serving_since[rank] = self._node.world.time
                elif state is RankHealthState.UNHEALTHY:
                    self._ejected(rank, cause)
            case RankReset(rank):
                self.states[rank] = RankHealthState.HEALTHY
                self.serving_since[rank] = self._node.world.time
            case SparePromoted(spare, failed):
                self.spares[spare], self.spares[failed] = False, True

    def _ejected(self, rank, cause):
        world, roster = self._node.world, self._roster
        assert world.explains(self._node, rank, cause), (
            f"{rank} is out for {cause} at {self._node.number}, at {world.time:.1f}"
        )
        if cause not in EJECTION_LIMITED or roster[rank].is_drained_by_operator:
            return
        here = [record.rank for record in roster if not self._is_spare(record.rank)]
        out = [other for other in here if not self.state(other).is_serving]
        is_silent = cause is CheckKind.TIMEOUT and roster[rank].silent_checks >= SILENT_CHECKS_MIN
        if rank in here and not is_silent:
            assert len(out) <= max(1, floor(self._rules.max_eject * len(here))), (rank, cause, out)
        assert len(out) < len(here) or rank not in here or self._rules.max_eject * len(here) < 2
        if cause is CheckKind.LATENCY_SPIKE and rank in here:
            assert len(out) < len(here)

    def _is_spare(self, rank):
        return self.spares.get(rank, self._node.world.is_spare(rank))

    def run_turn(self, now):
        """Called in every turn; the twin has no deferred work."""

    def run_every_second(self, now):
        """Forget the state of ranks that have left."""
        monitor = self._node.health.monitor
        for rank in [rank for rank in self.states if not monitor.is_registered(rank)]:
            for of in (self.states, self.spares, self.serving_since):
                of.pop(rank, None)

    # --- load

    def on_booked(self, booking, cause, now):
        if cause == "moved":
            source = self._left.pop(booking.reservation_id)
            if source != booking.rank:  # a prefill without a move restarts on its own rank
                self.moves.append((booking.reservation_id, source, booking.rank))

    def on_prefill_completed(self, booking, cause, now):
        """Ignore the end of a prefill."""

    def on_released(self, booking, cause, now):
        if cause == "moved":
            self._left[booking.reservation_id] = booking.rank
        elif cause == "given_up":
            self.given_up.add(booking.reservation_id)


def check_loads(node):
    """Check that the load of each rank is the sum of its reservations."""
    for partition in node.selector.fleet.partitions.values():
        load = partition.load
        active, totals = load.compute_active_blocks(), load.totals
        requests, tokens, outputs, blocks = Counter(), Counter(), Counter(), {}
        for booking in node.selector.ledger.reservations:
            if booking.account is partition.account:
                requests[booking.slot] += 1
                tokens[booking.slot] += booking.prefill_tokens
                outputs[booking.slot] += booking.output_blocks
                blocks.setdefault(booking.slot, set()).update(booking.hashed_blocks.tolist())
        for slot in range(load.n_slots):
            assert totals[slot, layout.REQUESTS] == requests[slot]
            assert totals[slot, layout.PREFILL_TOKENS] == tokens[slot]
            assert active[slot] == len(blocks.get(slot, ())) + outputs[slot]


def check_ranks_out(node, now):
    """Check that an ejected rank has only permitted reservations, for no longer than permitted.

    now: time by the clock of the node, in s
    """
    monitor, twin = node.health.monitor, node.twin
    for booking in node.selector.ledger.reservations:
        rank = booking.rank
        if booking.origin is not None or twin.state(rank).is_serving:
            continue
        if not monitor.is_registered(rank):
            continue
        record = monitor.record_of(rank)
        if now - twin.changed_at[rank] <= MOVED_S:
            continue
        assert record.state is not RankHealthState.DEAD, (rank, booking.reservation_id)
        if record.state is RankHealthState.DRAINING:
            assert now - record.draining_since <= twin.rules.drain_s + MOVED_S, rank
        if record.cause is not CheckKind.LATENCY_SPIKE and rank.worker_id not in node.world.stays:
            event = node.mover.move_log.latest_move_of(booking.reservation_id)
            assert event is not None, (node.number, rank, record, booking.reservation_id)
            assert (event.source, event.target) == (rank, None)


def check_deaths(node, now):
    """Check that ranks that are out for too long are dead, and that ejected ranks have weight 0."""
    for key, partition in node.health.monitor.iterate_partitions():
        table = node.selector.fleet.partitions[key].table
        for record in partition.health.registry:
            slot = table.find_slot(record.rank)
            if slot is not None and not node.twin.state(record.rank).is_serving:
                assert table.columns.weight[slot] == 0.0, record
            if (
                record.state in (RankHealthState.UNHEALTHY, RankHealthState.DRAINING)
                and not record.is_drained_by_operator
            ):
                assert now - record.unhealthy_since <= node.twin.rules.dead_after_s + 1.5, record


def check_corrupt(node):
    """Check that a rank with wrong answers is ejected in time and stays out."""
    world = node.world
    if world.time - world.uncertain.get(node.number, 0.0) <= OUT_S:
        return
    for rank, since in world.corrupt.items():
        if not node.health.monitor.is_registered(rank):
            continue
        begin = max(since, node.born + LEARNT_S, node.twin.serving_since.get(rank, 0.0))
        if node.health.monitor.record_of(rank).state.is_serving:
            assert world.time - begin <= OUT_S, f"{rank} at {node.number}, corrupt since {since}"


def causes_of(fault):
    """Return the causes for which an engine with a fault may be ejected."""
    return {
        "wrong": WRONG_ANSWERS,
        "drift": WRONG_ANSWERS,
        "nan": WRONG_ANSWERS,
        "connect": {CheckKind.CONNECT, CheckKind.PASSIVE, CheckKind.FATAL},
        "hang": {CheckKind.TIMEOUT, CheckKind.PASSIVE},
        "500": {CheckKind.HTTP_5XX, CheckKind.PASSIVE},
        "truncated": {CheckKind.MALFORMED, CheckKind.PASSIVE},
        "busy": {CheckKind.TIMEOUT},
        "slow": {CheckKind.LATENCY_SPIKE},
        "cut": {CheckKind.TIMEOUT},
        "refuses": set(),
    }[fault]


def check_received(node, gateway):
    """Check that a poller sees every event of a process once, or learns that events are missing."""
    events = gateway.heard.get(node, [])
    numbers, first = [event.seq for event in events], int(1000.0 * node.born) + 1
    is_whole, is_lazy = numbers == list(range(first, first + len(numbers))), gateway.is_lazy
    assert is_whole or (is_lazy and node in gateway.gaps), (gateway.number, node.number, numbers)
    heard = [(e.reservation_id, e.source, e.target) for e in events if e.target is not None]
    moves = node.twin.moves
    assert heard == moves[: len(heard)] or not is_whole, (gateway.number, node.number)
    assert len(heard) == len(moves) or is_lazy or not node.is_running


def check_levels(node):
    """Check that every level follows from the observed ratios."""
    looks = node.levels.looks
    expected = list(naive_levels([look[:2] for look in looks], 5.0, 30.0, 0.05))
    assert [level for _, _, level in looks] == expected
