"""Tests of the observation against a list of all requests."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from select_service.base.errors import NoEligibleRank, NoWorkers
from tests.builders import a_reservation, a_select
from tests.builders.hypothesis_profiles import explored
from tests.core.traffic.scenes import BLOCK, Observed
from tests.models.observation_model import ObservationModel

WORKERS = st.sampled_from([1, 2])
LENGTHS = st.integers(1, 60)
MOMENTS = st.sampled_from([0.0, 0.125, 0.5, 1.0, 1.25, 4.0, 30.0])
WINDOWS = st.sampled_from([1, 2, 5, 30, 3600])


class ObservationMatchesModel(RuleBasedStateMachine):
    roles = (None, None)

    def __init__(self):
        super().__init__()
        self.scene, self.now = Observed(roles=self.roles), 1.0
        of_role = [
            frozenset(i for i, own in enumerate(self.roles, 1) if own == role)
            for role in ("prefill", "decode")
        ]
        self.model = ObservationModel(BLOCK, *of_role)
        self.selector = self.scene.selector

    @rule(seconds=MOMENTS)
    def time_goes_on(self, seconds):
        self.now += seconds

    @rule()
    def a_second_is_over(self):
        self.scene.step(self.now)
        self.model.look(self.now)

    @rule(isl=LENGTHS)
    def select(self, isl):
        asked = a_select(0, token_ids=self.scene.prompt(isl))
        chosen = self.selector.select(asked, self.now).selection
        self.model.decided(chosen.worker_id, isl)

    @rule(isl=LENGTHS, worker_id=WORKERS)
    def select_and_reserve(self, isl, worker_id):
        name = self.scene.reserve(self.now, isl, worker_id)
        self.model.decided(worker_id, isl)
        self.model.booked(name, worker_id, isl, self.now)

    @rule(isl=LENGTHS, worker_id=WORKERS)
    def reserve(self, isl, worker_id):
        name = next(self.scene.names)
        prompt = self.scene.prompt(isl)
        self.selector.reserve(a_reservation(name, worker_id, 0, token_ids=prompt), self.now)
        self.model.booked(name, worker_id, isl, self.now)

    @rule()
    def ask_for_a_worker_that_is_not_there(self):
        with pytest.raises(NoEligibleRank):
            self.selector.select(a_select(allowed_worker_ids=[99]), self.now)
        self.model.refused("no_rank")

    @rule()
    def ask_for_a_model_that_is_not_there(self):
        with pytest.raises(NoWorkers):
            self.selector.select(a_select(model_name="another"), self.now)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def complete(self, data):
        name = data.draw(st.sampled_from(sorted(self.model.live)))
        self.selector.complete_prefill(name, self.now)
        self.model.completed(name, self.now)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def output(self, data):
        name = data.draw(st.sampled_from(sorted(self.model.live)))
        self.selector.add_output_block(name, None, self.now)
        self.model.output(name, self.now)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def free(self, data):
        name = data.draw(st.sampled_from(sorted(self.model.live)))
        self.selector.free_reservation(name, self.now)
        self.model.record_freed(name)

    @rule(window_s=WINDOWS)
    def look(self, window_s):
        seen = self.scene.observe(window_s, self.now)
        expected = self.model.expected(window_s, self.now)
        for name, value in expected.items():
            found = seen[name]
            if isinstance(found, dict) and "counts" in found:
                assert found["counts"] == value[0], name
                assert found["sum"] == pytest.approx(value[1], abs=1e-6 * (1 + sum(value[0])))
            elif name in ("prefill_s", "decode_s"):
                assert len(found) == len(value)
                for one, other in zip(found, value, strict=True):
                    assert one == pytest.approx(other, rel=1e-5, abs=1e-6)
            else:
                assert found == value, name
        self.selector.followers.traffic.check_invariants()


class ObservationOfRolesMatchesModel(ObservationMatchesModel):
    roles = ("prefill", "decode")


class ObservationOfDecodesMatchesModel(ObservationMatchesModel):
    roles = ("decode", "decode")


TestObservationMatchesModel = explored(ObservationMatchesModel)
TestObservationOfRolesMatchesModel = explored(ObservationOfRolesMatchesModel)
TestObservationOfDecodesMatchesModel = explored(ObservationOfDecodesMatchesModel)
