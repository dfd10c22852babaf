"""Tests of counts over ticks."""

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from select_service.planner.connectors.connector import ConnectorStatus, same_outcome
from select_service.planner.core.diagnostics import LoadRecord, SizingRecord
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import Role, TrafficWindow
from select_service.planner.deployment_status import (
    COLUMNS,
    OBSERVED,
    DeploymentStatus,
    DeploymentStatuses,
)
from tests.planner.invariants import check_status
from tests.planner.invented_ticks import a_day, a_role, a_tick, effects

AGG = DeploymentSettings(mode="agg")
D = Role.DECODE


@pytest.fixture
def status():
    return DeploymentStatus("llama", AGG)


def tick(status, at_s, ready, starting=0, wanted=None, traffic=None, applied=None, **said):
    wished = None if wanted is None else {D: wanted}
    told = effects(at_s, {D: a_role(ready, starting, wanted, num_gpu=2)}, wished=wished, **said)
    status.add_tick(a_tick(at_s, traffic), told, applied)
    check_status(status)


def test_gpu_hours_count_replicas_between_two_ticks(status):
    tick(status, 0.0, ready=1)
    tick(status, 1800.0, ready=1, starting=2)
    tick(status, 3600.0, ready=3)
    assert status.gpu_hours == pytest.approx(0.5 * 2 + 0.5 * 6)
    assert status.gpus_now() == 6.0


def test_unknown_replicas_cost_the_last_known_count(status):
    tick(status, 0.0, ready=2)
    status.add_tick(a_tick(1800.0), effects(1800.0), None)
    tick(status, 3600.0, ready=2)
    assert status.gpu_hours == pytest.approx(4.0)
    assert status.by_reason[Reason.REPLICAS_UNKNOWN] == 1


def test_a_repeated_target_is_one_decision(status):
    tick(status, 0.0, ready=2, wanted=4)
    tick(status, 5.0, ready=2, starting=1, wanted=4)
    tick(status, 10.0, ready=2, starting=2, wanted=4)
    tick(status, 15.0, ready=4)
    assert [(each.before, each.wanted) for each in status.changes] == [(2, 4)]
    assert status.scale_ups[D] == 1


def test_a_reversal_is_a_change_against_the_last_one(status):
    tick(status, 0.0, ready=2, wanted=4)
    tick(status, 5.0, ready=4)
    tick(status, 10.0, ready=4, wanted=3)
    tick(status, 15.0, ready=3)
    tick(status, 20.0, ready=3, wanted=2)
    tick(status, 25.0, ready=2)
    tick(status, 30.0, ready=2, wanted=3)
    assert status.reversals[D] == 2
    assert (status.scale_ups[D], status.scale_downs[D]) == (2, 2)


def test_a_change_has_its_reasons_and_outcome(status):
    applied = same_outcome({D: 4}, ConnectorStatus.DRAINING)
    tick(status, 0.0, ready=2, wanted=4, applied=applied, reasons=(Reason.UP, Reason.UP))
    (change,) = status.changes
    assert change.reasons == (Reason.UP,)
    assert change.applied == "draining"


def test_the_label_of_a_step_agrees_with_its_reason(status):
    """Two replicas run, four were decided, and three are wanted: one more, not one less."""
    tick(status, 0.0, ready=2, wanted=4, reasons=(Reason.UP,))
    tick(status, 5.0, ready=2, wanted=3, reasons=(Reason.SCALE_DOWN, Reason.UP))
    tick(status, 10.0, ready=3, wanted=2, reasons=(Reason.DOWN, Reason.SELECTOR_QUEUE))
    found = [(each.before, each.wanted, each.reasons) for each in status.changes]
    assert found == [(2, 4, (Reason.UP,)), (2, 3, (Reason.UP,)), (3, 2, (Reason.DOWN,))]


def test_a_tick_counts_once_for_each_of_its_reasons(status):
    tick(status, 0.0, ready=1, reasons=(Reason.UP,), throughput_reason=Reason.UP)
    assert status.by_reason == {Reason.UP: 1}


def test_windows_that_overlap_count_their_new_part_only(status):
    def window(seconds, requests, met):
        return TrafficWindow(duration_s=seconds, requests=requests, ttft_met=met, itl_met=None)

    tick(status, 100.0, ready=1, traffic=window(100.0, 100.0, 0.5))
    tick(status, 110.0, ready=1, traffic=window(100.0, 100.0, 1.0))
    assert status.met["ttft"].requests == pytest.approx(110.0)
    assert status.met["ttft"].attained_part == pytest.approx(60 / 110)
    assert status.met["itl"].attained_part is None


def test_values_of_a_loop_stay_until_its_next_run(status):
    sized = SizingRecord(replicas=9, reason=Reason.SLO_OUT_OF_REACH)
    told = effects(0.0, {D: a_role(1, sized=sized)}, throughput_reason=Reason.SCALE)
    status.add_tick(a_tick(0.0), told, None)
    tick(status, 5.0, ready=1, run_throughput=False)
    assert status.slo_out_of_reach
    assert status.throughput_reason is Reason.SCALE


def test_a_window_of_the_load_loop_is_no_demand_beside_the_forecast(status):
    traffic = TrafficWindow(duration_s=5.0, requests=50.0)
    tick(status, 5.0, ready=1, traffic=traffic, run_throughput=False)
    assert "requests_s" not in status.latest
    tick(status, 10.0, ready=1, traffic=traffic)
    assert status.latest["requests_s"] == 10.0


def test_observed_values_are_missing_while_traffic_is_unknown(status):
    met = TrafficWindow(
        duration_s=60.0, requests=600.0, isl=100.0, ttft_s=0.2, itl_s=0.01, ttft_met=1.0
    )
    tick(status, 60.0, ready=1, traffic=met)
    assert set(OBSERVED) - set(status.latest) == {"itl_met"}
    tick(status, 65.0, ready=1, run_throughput=False)
    assert status.latest["requests_s"] == 10.0, "nobody has asked"
    for at_s, unknown in ((120.0, None), (240.0, TrafficWindow(duration_s=60.0))):
        tick(status, at_s, ready=1, traffic=met)
        assert status.traffic is met
        tick(status, at_s + 60.0, ready=1, traffic=unknown)
        assert not set(OBSERVED) & set(status.latest)
        assert status.traffic is None
    tick(status, 360.0, ready=1, traffic=TrafficWindow(duration_s=60.0, requests=0.0))
    assert status.latest["requests_s"] == 0.0
    assert "ttft_observed_ms" not in status.latest


def test_a_load_loop_without_traffic_removes_observed_values():
    status = DeploymentStatus("m", DeploymentSettings(mode="agg", enable_load_scaling=True))
    tick(status, 60.0, ready=1, traffic=TrafficWindow(duration_s=60.0, requests=600.0))
    short = TrafficWindow(duration_s=5.0, requests=5.0)
    tick(status, 65.0, ready=1, traffic=short, run_throughput=False)
    assert status.latest["requests_s"] == 10.0
    tick(status, 70.0, ready=1, run_throughput=False)
    assert "requests_s" not in status.latest


def test_unreported_replicas_and_estimates_are_missing(status):
    estimated = a_role(2, load=LoadRecord(estimate_ms=200.0, itl_ms=9.0))
    status.add_tick(a_tick(0.0), effects(0.0, {D: estimated}), None)
    assert (status.latest["decode_ready"], status.latest["itl_estimated_ms"]) == (2.0, 9.0)
    status.add_tick(a_tick(5.0), effects(5.0, run_load=False), None)
    assert "decode_ready" not in status.latest
    assert status.latest["itl_estimated_ms"] == 9.0
    tick(status, 10.0, ready=2)
    assert status.latest["decode_ready"] == 2.0
    assert "itl_estimated_ms" not in status.latest


def test_a_row_of_the_history_has_all_columns():
    status = a_day(ticks=50)
    assert status.history_table().shape == (50, len(COLUMNS))


def test_other_settings_keep_the_counts():
    statuses = DeploymentStatuses()
    statuses.changed("a", AGG, 0.0)
    told = effects(0.0, {D: a_role(1)})
    statuses.ticked("a", a_tick(0.0), told, None)
    statuses.changed("a", DeploymentSettings(mode="agg", ttft_ms=9.0), 1.0)
    (status,) = statuses
    assert (status.ticks, status.settings.ttft_ms) == (1, 9.0)


def test_many_deployments_share_the_rows_of_all_histories(monkeypatch):
    monkeypatch.setattr("select_service.planner.deployment_status.HISTORIES_ROWS_MAX", 40)
    statuses = DeploymentStatuses(4)
    statuses.changed("a", AGG, 0.0)
    for at_s in range(30):
        statuses.ticked("a", a_tick(float(at_s)), effects(float(at_s), {D: a_role(1)}), None)
    (status,) = statuses
    check_status(status)
    assert status.ticks == 30
    assert len(status.history_table()) <= 10


class CountsAsANaiveTwin(RuleBasedStateMachine):
    """Status and naive twin on a platform that follows every wish at once."""

    def __init__(self):
        super().__init__()
        self.status = DeploymentStatus("m", AGG)
        self.at_s, self.ready = 0.0, 1
        self.counts = [(0.0, 1)]
        self.directions = []
        tick(self.status, 0.0, 1)

    @rule(after_s=st.integers(1, 600), wanted=st.integers(0, 9))
    def decide(self, after_s, wanted):
        self.at_s += after_s
        tick(self.status, self.at_s, self.ready, wanted=wanted if wanted != self.ready else None)
        if wanted != self.ready:
            self.directions.append(wanted > self.ready)
        self.counts.append((self.at_s, wanted))
        self.ready = wanted
        tick(self.status, self.at_s, self.ready)

    @invariant()
    def agrees(self):
        seconds = sum(
            2 * n * (until - since)
            for (since, n), (until, _) in zip(self.counts, self.counts[1:], strict=False)
        )
        assert self.status.gpu_seconds == pytest.approx(seconds)
        turned = sum(a != b for a, b in zip(self.directions, self.directions[1:], strict=False))
        assert self.status.reversals[D] == turned
        assert self.status.scale_ups[D] == sum(self.directions)


TestCountsAsANaiveTwin = CountsAsANaiveTwin.TestCase
TestCountsAsANaiveTwin.settings = hypothesis_settings(max_examples=25, deadline=None)


def test_replicas_that_become_ready_are_never_counted_twice_in_a_thinned_history():
    """Least and greatest values of two columns must not be added up."""
    status = DeploymentStatus("m", AGG, rows_max=8)
    for at_s in range(64):
        starting = 2 if at_s % 4 == 1 else 0
        ready = 4 if at_s % 4 > 1 else 2
        tick(status, float(at_s), ready, starting)
    assert status.history_table()[:, COLUMNS.index("decode_total")].max() == 4.0
