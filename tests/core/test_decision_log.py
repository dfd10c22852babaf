"""Tests of the decision log: a line per decision with a replay's inputs, off the request path."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from indexer.hashing.block_hashing import compute_block_hashes, compute_sequence_hashes
from select_service.core.analysis import decision_log
from select_service.core.analysis.decision_log import DecisionLogWriter, parse_hashes
from select_service.core.analysis.decision_log_lines import (
    LoggedDecision,
    LoggedFleet,
    blocks_of_hash,
)
from select_service.core.placement.router_config import RouterConfig
from tests.builders import a_select, a_select_and_reserve, a_selector, a_worker
from tests.builders.hypothesis_profiles import explored

BLOCK, UNIX_S = 4, 1e9
RESERVED, SELECTED = "reserved", "selected"


class Scene:
    """Selector with two workers, and the lines of its log."""

    def __init__(self, policy="work", room=10**6, decisions_kept=256):
        config = RouterConfig(policy=policy)
        self.selector = a_selector(config, decisions_kept=decisions_kept)
        for worker_id in (1, 2):
            self.selector.register_worker(a_worker(worker_id, total_kv_blocks=1000 * worker_id))
        self.lines = []
        self.room = room
        kept = (
            self.selector.decisions.ring,
            self.selector.ledger.reservations,
            self.selector.fleet.partitions,
        )
        self.log = DecisionLogWriter(*kept, self.offer, UNIX_S)

    def offer(self, line):
        if len(self.lines) >= self.room:
            return False
        self.lines.append(line)
        return True

    def reserve(self, name, tokens, now):
        request = a_select_and_reserve(0, reservation_id=name, token_ids=tokens)
        return self.selector.select_and_reserve(request, now).selection

    @property
    def decisions(self):
        return [line for line in self.lines if isinstance(line, LoggedDecision)]

    def finish(self, now):
        self.lines += self.log.drain_lines(now)


def hashes_of(tokens):
    """Return the logged hashes of a prompt: every 16th sequence hash."""
    hashes = compute_sequence_hashes(compute_block_hashes(np.array(tokens, np.uint32), BLOCK))
    every = blocks_of_hash(BLOCK)
    return hashes[every - 1 :: every].tolist()


def test_a_line_has_the_prompt_as_hashes_and_the_answer_as_it_was_reported():
    for policy in ("work", "reference"):
        scene = Scene(policy)
        tokens = list(range(1000, 1150))
        chosen = scene.reserve("a", tokens, 5.0)
        scene.log.write_step(5.01)
        assert [type(line) for line in scene.lines] == [LoggedFleet]
        scene.selector.complete_prefill("a", 6.0)
        for _ in range(3):
            scene.selector.add_output_block("a", None, 6.5)
        scene.selector.free_reservation("a", 7.0)
        scene.log.write_step(7.01)
        (line,) = scene.decisions
        assert (line.at, line.isl_tokens, line.policy) == (UNIX_S + 5.0, 150, policy)
        assert (line.worker_id, line.dp_rank) == (chosen.worker_id, chosen.dp_rank)
        assert parse_hashes(line.hashes).tolist() == hashes_of(tokens)
        assert len(parse_hashes(line.hashes)) == 150 // 64
        assert line.output_tokens == 3 * BLOCK
        assert (line.candidates, line.waited_s, line.reserved) == (2, 0.0, True)


def test_the_fleet_is_logged_before_its_first_decision_and_after_changes():
    scene = Scene()
    for number in range(2):
        scene.reserve(str(number), [1] * 8, 1.0)
        scene.log.write_step(1.0)
    scene.selector.register_worker(a_worker(3))
    scene.reserve("2", [1] * 8, 1.0)
    scene.log.write_step(1.0)
    fleets = [line for line in scene.lines if isinstance(line, LoggedFleet)]
    assert [[rank.worker_id for rank in fleet.ranks] for fleet in fleets] == [[1, 2], [1, 2, 3]]
    assert [rank.total_kv_blocks for rank in fleets[0].ranks] == [1000, 2000]


def test_a_fleet_line_dropped_for_lack_of_room_is_repeated():
    scene = Scene(room=0)
    scene.reserve("0", [1] * 8, 1.0)
    scene.log.write_step(1.0)
    scene.room = 10
    scene.reserve("1", [1] * 8, 1.0)
    scene.log.write_step(1.0)
    assert [type(line) for line in scene.lines] == [LoggedFleet]


def test_decisions_that_ended_early_or_were_overwritten_are_counted_as_missed():
    scene = Scene(decisions_kept=8)
    scene.reserve("a", [1] * 8, 1.0)
    scene.selector.free_reservation("a", 1.0)
    scene.log.write_step(1.0)
    assert scene.log.missed == 1
    for number in range(20):
        scene.selector.select(a_select(8, selection_id=str(number)), 2.0)
    scene.log.write_step(2.0)
    assert scene.log.missed == 1 + 20 - 8
    assert [line.decision for line in scene.decisions] == list(range(14, 22))


def test_a_new_reservation_in_the_same_row_is_not_mistaken_for_the_ended_one():
    scene = Scene()
    scene.reserve("a", [1] * 8, 1.0)
    scene.log.write_step(1.0)
    scene.selector.free_reservation("a", 2.0)
    scene.reserve("b", [2] * 8, 3.0)
    scene.selector.add_output_block("b", None, 3.0)
    scene.log.write_step(3.0)
    assert [line.output_tokens for line in scene.decisions] == [None]


def test_a_booking_a_moment_after_the_decision_is_not_missed():
    scene = Scene()
    scene.reserve("a", [1] * 200, 1.0)
    booked = scene.selector.ledger.reservations.find_reservation("a")
    with patch.object(type(booked), "booked_at", 1.5):
        scene.log.write_step(1.6)
    assert (scene.log.missed, scene.log.pending) == (0, 1)


@pytest.mark.parametrize(("n", "again_at"), [(200, 3.0), (100, 1.1)])
def test_a_later_reservation_of_the_same_name_is_not_mistaken_for_the_decided_one(n, again_at):
    scene = Scene()
    scene.reserve("a", [1] * 200, 1.0)
    scene.selector.free_reservation("a", 1.05)
    scene.reserve("a", [2] * n, again_at)
    scene.log.write_step(again_at)
    scene.finish(again_at)
    assert scene.log.missed == 1
    assert [line.at for line in scene.decisions] == [UNIX_S + again_at]


class LogMachine(RuleBasedStateMachine):
    """Comparison with a client's record of its requests, in few steps and with little room."""

    @initialize(policy=st.sampled_from(["work", "least_work", "reference"]))
    def begin(self, policy):
        self.scene = Scene(policy)
        self.now, self.next = 1.0, 0
        self.live: dict[str, int] = {}
        self.asked: dict[int, tuple[str, list[int], str]] = {}
        self.blocks: dict[str, int] = {}
        self.followed: set[str] = set()

    @rule(n=st.integers(1, 300), family=st.integers(0, 2), reserves=st.booleans())
    def ask(self, n, family, reserves):
        self.now += 0.5
        self.next += 1
        name, tokens = f"r{self.next}", [family] * n
        kind = RESERVED if reserves else SELECTED
        self.asked[self.next] = name, tokens, kind
        if reserves:
            self.scene.reserve(name, tokens, self.now)
            self.live[name], self.blocks[name] = self.next, 0
        else:
            self.scene.selector.select(a_select(0, token_ids=tokens), self.now)

    @rule(pick=st.integers(0, 99))
    def output(self, pick):
        if self.live:
            name = sorted(self.live)[pick % len(self.live)]
            self.scene.selector.add_output_block(name, None, self.now)
            self.blocks[name] += 1

    @rule(pick=st.integers(0, 99))
    def free(self, pick):
        if self.live:
            name = sorted(self.live)[pick % len(self.live)]
            self.scene.selector.free_reservation(name, self.now)
            del self.live[name]

    @rule()
    def step(self):
        with patch.object(decision_log, "ROWS_MAX", 3):
            while self.scene.log.write_step(self.now):
                self.scene.log.check_invariants()

    @invariant()
    def holds(self):
        if hasattr(self, "scene"):
            self.scene.log.check_invariants()

    def teardown(self):
        if not hasattr(self, "scene"):
            return
        self.scene.finish(self.now)
        lines = {line.decision: line for line in self.scene.decisions}
        assert len(lines) == len(self.scene.decisions)
        assert len(lines) + self.scene.log.missed == len(self.asked)
        for number, line in lines.items():
            name, tokens, kind = self.asked[number]
            assert (line.isl_tokens, line.reserved) == (len(tokens), kind == RESERVED)
            assert parse_hashes(line.hashes).tolist() == (
                hashes_of(tokens) if kind == RESERVED else []
            )
            told = line.output_tokens or 0
            most = self.blocks.get(name, 0) * BLOCK
            assert told == most if name in self.live else told <= most
        missed = self.asked.keys() - lines.keys()
        assert not any(self.asked[number][0] in self.live for number in missed)


TestLogMachine = explored(LogMachine)
