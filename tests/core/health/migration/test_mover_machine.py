"""Tests of the mover against a naive twin: reservations and ranks come and go, turn by turn."""

from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from select_service.core.health.health_kinds import CheckKind
from select_service.core.health.migration import migrator as moving
from select_service.core.identity import Rank
from select_service.core.load.compiled import load_layout as layout
from tests.builders import a_select_and_reserve
from tests.builders.hypothesis_profiles import explored
from tests.core.health.migration.scenes import Scene
from tests.core.health.migration.test_mover import SMALL
from tests.models.mover_model import Booked, MoverModel

WORKERS = (1, 2, 3, 4)
NAMES = st.integers(0, 30)
ONES = st.sampled_from(WORKERS)
CAUSES = st.sampled_from([CheckKind.OPERATOR, CheckKind.TIMEOUT, CheckKind.TOKEN_MISMATCH])


class MoverMatchesModel(RuleBasedStateMachine):
    @initialize(has_layout=st.booleans())
    def start(self, has_layout):
        self.scene = Scene(len(WORKERS), kv_layout=SMALL if has_layout else None)
        self.model = MoverModel(WORKERS)
        self.seen, self.now = 0, 1.0
        for name, value in (("PER_TURN", 3), ("MOVED_PER_TURN", 2), ("PLANNED_MAX", 4)):
            patch.object(moving, name, value).start()

    def teardown(self):
        patch.stopall()

    # --- callers

    @rule(
        number=NAMES,
        tokens=st.integers(1, 10).map(lambda blocks: 4 * blocks),
        migratable=st.sampled_from([True, True, False]),
        allowed=st.sampled_from([(), (), (1, 2), (3,)]),
    )
    def reserve(self, number, tokens, migratable, allowed):
        name = f"r{number}"
        goals = self.model.serving.intersection(allowed) if allowed else self.model.serving
        if name in self.model.held or not goals:
            return
        request = a_select_and_reserve(
            tokens,
            reservation_id=name,
            cache_salt=name,
            migratable=migratable,
            allowed_worker_ids=list(allowed) or None,
        )
        answer = self.scene.selector.select_and_reserve(request, self.now)
        booked = Booked(answer.selection.worker_id, tokens, migratable, allowed)
        booked.prefill_tokens = tokens
        self.model.held[name] = booked

    def pick_reservation(self, number):
        """Return the name of one reservation, or None without reservations."""
        names = sorted(self.model.held)
        return names[number % len(names)] if names else None

    @rule(number=NAMES)
    def complete(self, number):
        if (name := self.pick_reservation(number)) is not None:
            self.scene.selector.complete_prefill(name, self.now)
            held = self.model.held[name]
            held.prefilling, held.prefill_tokens = False, 0

    @rule(number=NAMES)
    def output(self, number):
        if (name := self.pick_reservation(number)) is not None:
            self.scene.selector.add_output_block(name, None, self.now)
            self.model.held[name].outputs += 1

    @rule(number=NAMES)
    def free(self, number):
        if (name := self.pick_reservation(number)) is not None:
            self.scene.selector.free_reservation(name, self.now)
            del self.model.held[name]

    @rule(number=NAMES, ok=st.booleans())
    def plan_confirmation(self, number, ok):
        name = self.pick_reservation(number)
        event = None if name is None else self.scene.mover.find_unconfirmed_move(name)
        if event is None:
            return
        confirmed = self.scene.mover.confirm_move(name, ok, None, self.now)
        held, was_carried = self.model.held[name], event.method.value == "transfer"
        if ok and confirmed.method.value == "reprefill":
            held.prefilling, held.prefill_tokens = False, 0
        elif not ok and was_carried:
            held.prefilling, held.prefill_tokens = True, held.all_tokens

    # --- ranks

    @rule(worker_id=ONES, cause=CAUSES)
    def leave(self, worker_id, cause):
        if worker_id in self.model.asked:  # a second time, after the first is done
            self.all_turns()
        self.scene.leave(worker_id, cause)
        self.model.leave(worker_id)

    @rule(worker_id=ONES)
    def serve_again(self, worker_id):
        table = self.scene.partition.table
        table.set_weight(table.find_slot(Rank(worker_id, 0)), 1.0, "healthy")
        self.model.serving.add(worker_id)

    @rule(worker_id=ONES)
    def give_up(self, worker_id):
        """Give up the worker at once, so that the twin knows which reservations are affected."""
        self.all_turns()
        self.scene.mover.release_reservations(self.scene.partition.key, Rank(worker_id, 0))
        self.all_turns()
        here = [n for n, held in self.model.held.items() if held.worker_id == worker_id]
        for name in here:
            del self.model.held[name]

    @precondition(lambda self: self.scene.mover.is_busy)
    @rule()
    def turn(self):
        self.now += 0.001
        self.scene.touched.begin_turn()
        self.scene.mover.run_turn(self.now)
        page = self.scene.mover.move_log.events_after(self.seen, 1000)
        assert not page.gap
        self.seen = page.next
        for event in page.events:
            target = None if event.target is None else event.target.worker_id
            name, source = event.reservation_id, event.source.worker_id
            self.model.follow(name, source, target, event.method.value)

    @rule()
    def all_turns(self):
        while self.scene.mover.is_busy:
            self.turn()
        assert self.model.is_done()

    # --- comparison

    @invariant()
    def reservations_agree(self):
        found = {
            b.reservation_id: (b.rank.worker_id, b.prefill_tokens, b.is_prefilling, b.output_blocks)
            for b in self.scene.selector.ledger.reservations
        }
        assert found == {
            name: (held.worker_id, held.prefill_tokens, held.prefilling, held.outputs)
            for name, held in self.model.held.items()
        }

    @invariant()
    def loads_agree(self):
        partition = self.scene.partition
        active, totals = partition.load.compute_active_blocks(), partition.load.totals
        for worker_id in WORKERS:
            slot = partition.table.find_slot(Rank(worker_id, 0))
            tokens, requests = totals[slot, [layout.PREFILL_TOKENS, layout.REQUESTS]].tolist()
            assert (tokens, requests, int(active[slot])) == self.model.totals(worker_id)
        self.scene.check()


TestMoverMatchesModel = explored(MoverMatchesModel)
