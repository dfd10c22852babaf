"""Tests of role sizes under more demand, a higher target and misses."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from select_service.planner.core.final_counts import CountSettler, DesiredScale
from select_service.planner.core.forecast_contracts import LatencyTargets, MeanRequest
from select_service.planner.core.proposers.throughput_proposer import (
    RoleEngine,
    SizedDemand,
    size_role,
)
from select_service.planner.core.reasons import Reason
from select_service.planner.core.replicas.replica_counts import ReplicaCounts, RoleCounts
from select_service.planner.core.replicas.startups import StartUpProgress
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import LengthBins, Role, TrafficWindow
from tests.planner.core.deployments import (
    FORWARD,
    LIMITS,
    a_deployment,
    both,
    passes,
    replicas,
    tick_input,
)
from tests.planner.core.deployments import traffic as a_window
from tests.vectors.planner_given import given_model

ENGINE = RoleEngine(
    given_model("prefill", FORWARD["prefill"]),
    LIMITS,
    LatencyTargets(ttft_ms=500.0, itl_ms=20.0),
    False,
)


def demand(long: float, rate: float, promised: float, correction: float = 1.0) -> SizedDemand:
    """Return a demand in which a share `long` of the prompts takes longer than the target."""
    lengths = LengthBins(means=(400.0, 16000.0), counts=(1.0 - long, long))
    mean = 400.0 * (1.0 - long) + 16000.0 * long
    traffic = TrafficWindow(duration_s=60.0, requests=60.0 * rate, uncached_isl=lengths)
    return SizedDemand(rate, MeanRequest(mean, 150.0), traffic, promised, correction)


def size(of: SizedDemand) -> tuple[int, Reason]:
    found = size_role(of, Role.PREFILL, ENGINE, DeploymentSettings())
    assert found.replicas is not None
    assert found.spare is not None
    assert found.spare >= found.replicas
    return found.replicas, found.reason


@given(st.floats(0.001, 0.2), st.floats(0.5, 60), st.floats(0.5, 0.97), st.floats(0.5, 1.0))
def test_more_attainment_means_no_fewer_replicas_within_reach_or_beyond(long, rate, wanted, part):
    less = size(demand(long, rate, wanted * part))[0]
    more = size(demand(long, rate, wanted))[0]
    reachable = 1.0 - long
    if (wanted <= reachable) == (wanted * part <= reachable):
        assert more >= less


def test_corrected_targets_are_within_reach():
    assert size(demand(0.04, 20.0, 0.95))[1] is Reason.SCALE
    assert size(demand(0.04, 20.0, 0.95, 3.0))[1] is Reason.SCALE
    assert size(demand(0.1, 20.0, 0.95))[1] is Reason.SLO_OUT_OF_REACH


@given(st.floats(0.0, 0.2), st.floats(0.5, 0.99), st.floats(0.5, 3.0))
def test_unavoidable_misses_are_not_multiplied(long, promised, correction):
    """Avoidable misses are: with `long` 2 %, `promised` 95 %, `correction` 3, 1 % is allowed."""
    of = demand(long, 20.0, promised, correction)
    reachable = 1.0 - long
    wanted = of.attainment_to_size_for(reachable)
    if reachable <= promised:
        assert 1.0 - wanted == pytest.approx((1.0 - promised) / correction)
        return
    assert wanted <= reachable
    assert (reachable - wanted) * correction == pytest.approx(reachable - promised)


def test_misses_during_starts_do_not_change_sizes():
    deployment = a_deployment()
    moving = both(2, 2) | {Role.PREFILL: replicas(2, 2)}
    late = a_window(300.0, ttft_met=0.1)
    first = deployment.run_tick(tick_input(60.0, moving, of=late))
    second = deployment.run_tick(tick_input(120.0, both(4, 2), of=late))
    third = deployment.run_tick(tick_input(180.0, both(4, 2), of=late))
    factors = [each.diagnostics.miss_correction for each in (first, second, third)]
    assert factors[:2] == [1.0, 1.0]
    assert factors[2] > 1.0


@given(st.floats(0.0, 0.04), st.floats(0.5, 60))
def test_sizes_are_rounded_up(long, rate):
    found = size_role(demand(long, rate, 0.95), Role.PREFILL, ENGINE, DeploymentSettings())
    assert found.replicas is not None
    assert found.exact is not None
    assert found.replicas - 1 <= found.exact <= found.replicas


def test_a_quantile_is_margin_enough_for_a_step_down():
    plain = demand(0.0, 20.0, 0.95)
    assert plain._replace(expected=20.0).with_slack().rate == 20.0 / 0.9
    assert plain._replace(expected=15.0).with_slack().rate == 20.0


def test_a_little_more_than_there_is_starts_no_replica():
    """The size is 3.2 replicas: three are within the stabiliser's tolerance, two need two more."""
    for have, wanted in ((3, 3), (2, 4)):
        now = RoleCounts(have, 0, False, False, StartUpProgress(0.0, False, None, 0))
        wish = DesiredScale({Role.DECODE: 4}, {Role.DECODE: 4}, {Role.DECODE: 3.2}, None)
        settled = CountSettler(DeploymentSettings(mode="agg")).settle_counts(
            5.0, wish, ReplicaCounts({Role.DECODE: now})
        )
        assert settled.counts == {Role.DECODE: wanted}


def test_steps_down_that_load_allows_follow_each_other():
    """The steps need no stabiliser window each, because the forecast limits the total."""
    deployment = a_deployment(enable_load_scaling=True, load_adjustment_interval_seconds=5.0)
    count, changes = 8, []
    idle = {Role.PREFILL: passes(Role.PREFILL, ["idle"] * 2)}
    for at in range(1, 181):
        now = 5.0 * at
        engines = {**idle, Role.DECODE: passes(Role.DECODE, ["idle"] * count)}
        of = a_window(60.0) if at % 12 == 0 else a_window(5.0, 5.0)
        effects = deployment.run_tick(tick_input(now, both(2, count), of=of, engines=engines))
        after = (effects.scale_to or {}).get(Role.DECODE, count)
        if after != count:
            changes.append(now)
        count = after
    assert count <= 2
    gaps = [after - before for before, after in pairwise(changes)]
    assert max(gaps) <= 65.0


def test_while_the_promise_is_broken_sizes_are_rounded_up():
    kept = demand(0.0, 20.0, 0.95)
    missed = kept._replace(traffic=structs.replace(kept.traffic, ttft_met=0.9))
    assert (kept.has_missed_target, missed.has_missed_target) == (False, True)
    found = size_role(missed, Role.PREFILL, ENGINE, DeploymentSettings())
    assert found.exact == found.replicas
