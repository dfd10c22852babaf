"""Tests of a deployment's decisions at a tick: the reference's behaviour and its extensions."""

import pytest
from msgspec.structs import replace

from select_service.planner.core.forecast_contracts import ExpectedTraffic
from select_service.planner.core.reasons import Reason
from select_service.planner.core.reconcile import BoundType, Proposal, ProposedCount
from select_service.planner.core.tick import PlannedDeployment, TickEffects
from select_service.planner.core.tick_input import ForwardPass, Role, RoleReplicas, TickInput
from tests.planner.core.deployments import (
    HOT,
    IDLE,
    LIMITS,
    WARM,
    a_deployment,
    both,
    passes,
    replicas,
    tick_input,
    traffic,
)
from tests.vectors.planner_given import LastValue

P, D = Role.PREFILL, Role.DECODE
LOAD_ONLY = {"enable_throughput_scaling": False, "enable_load_scaling": True}


def load_tick(
    deployment: PlannedDeployment, now_s: float, prefill: list[str], decode: list[str]
) -> TickEffects:
    """Run a tick in which all ready engines report."""
    engines = {P: passes(P, prefill), D: passes(D, decode)}
    return deployment.run_tick(tick_input(now_s, both(len(prefill), len(decode)), engines=engines))


def test_all_above_the_target_go_up_by_one():
    effects = load_tick(a_deployment(document=True, **LOAD_ONLY), 5.0, [HOT, HOT], [HOT, HOT])
    assert effects.scale_to == {P: 3, D: 3}
    assert effects.diagnostics.load_reason is Reason.SCALE_UP


def test_one_engine_less_must_keep_the_target():
    effects = load_tick(a_deployment(document=True, **LOAD_ONLY), 5.0, [WARM, WARM], [WARM, WARM])
    assert effects.scale_to is None
    assert effects.diagnostics.load_reason is Reason.SCALE_DOWN_REFUSED


def test_ranks_of_a_worker_count_together():
    deployment = a_deployment(document=True, **LOAD_ONLY)
    one, two = passes(P, [HOT, IDLE])
    ranks = (one, *(type(one)(worker="w0", rank=1, queued_prefill_tokens=0),))
    effects = deployment.run_tick(
        tick_input(5.0, both(1, 1), engines={P: ranks, D: passes(D, [WARM])})
    )
    assert effects.scale_to == {P: 2, D: 1}
    assert two.worker == "w1"


def test_missing_ranks_decide_nothing():
    deployment = a_deployment(document=True, **LOAD_ONLY)
    one, two = passes(P, [HOT, HOT])
    extra = type(one)(worker="w0", rank=1)
    effects = deployment.run_tick(tick_input(5.0, both(2, 1), engines={P: (one, two, extra)}))
    assert effects.diagnostics.load_reason is Reason.WORKER_COUNT_MISMATCH


def test_zero_traffic_goes_to_the_minimum_even_in_the_first_window():
    steps = {}
    for document in (True, False):
        deployment = a_deployment(document=document)
        effects = deployment.run_tick(tick_input(60.0, both(4, 4), of=traffic(0.0)))
        steps[document] = effects.diagnostics
    assert steps[True].throughput_reason is Reason.MODEL_NOT_READY
    assert steps[False].roles[P].sized is not None
    assert steps[False].roles[P].sized.reason is Reason.IDLE
    assert steps[False].roles[P].reconciled == 1


def test_a_lowered_budget_is_reached_step_by_step():
    ended = {}
    for document in (True, False):
        deployment = a_deployment(document=document, max_gpu_budget=4, **LOAD_ONLY)
        ended[document] = load_tick(deployment, 5.0, [IDLE] * 4, [IDLE] * 4).scale_to
    assert ended == {True: {P: 2, D: 2}, False: {P: 3, D: 3}}


def test_start_ups_that_are_not_needed_are_taken_back_after_two_ticks():
    deployment = a_deployment(document=True, **LOAD_ONLY)
    engines = {P: passes(P, [IDLE]), D: passes(D, [IDLE])}
    counts = both(1, replicas(1, 1))
    first = deployment.run_tick(tick_input(5.0, counts, engines=engines))
    second = deployment.run_tick(tick_input(10.0, counts, engines=engines))
    assert (first.scale_to, second.scale_to) == (None, {D: 1})


def test_start_ups_are_never_added_to():
    deployment = a_deployment(document=True, **LOAD_ONLY)
    engines = {P: passes(P, [HOT]), D: passes(D, [HOT])}
    for now in (5.0, 10.0, 15.0):
        assert (
            deployment.run_tick(tick_input(now, both(1, replicas(1, 1)), engines=engines)).scale_to
            is None
        )


def test_a_hot_engine_is_enough_after_two_ticks():
    deployment = a_deployment(**LOAD_ONLY)
    first = load_tick(deployment, 5.0, [HOT, IDLE], [WARM, WARM])
    second = load_tick(deployment, 10.0, [HOT, IDLE], [WARM, WARM])
    assert first.scale_to is None
    assert second.scale_to == {P: 3}
    load = second.diagnostics.roles[P].load
    assert load is not None
    assert Reason.HOT_ENGINE in load.notes


def test_an_engine_is_hot_by_tokens_alone():
    """Selectors report only tokens, because they do not know requests that wait for prefill."""
    deployment = a_deployment(**LOAD_ONLY)
    booked = tuple(
        ForwardPass(worker=f"w{at}", queued_prefill_tokens=tokens, booked=True)
        for at, tokens in enumerate((30_000, 0))
    )
    engines = {P: booked, D: passes(D, [WARM] * 2)}
    steps = [
        deployment.run_tick(tick_input(now, both(2, 2), engines=engines)).scale_to
        for now in (5.0, 10.0)
    ]
    assert steps == [None, {P: 3}]


class Unproven(LastValue):
    """Forecasts that have never been compared with demand."""

    def predict(self, lead_s: float) -> ExpectedTraffic:
        return replace(super().predict(lead_s), proven=False)


def test_nothing_scales_down_before_forecasts_are_proven():
    ended = {}
    for forecaster in (LastValue(), Unproven()):
        deployment, ready = a_deployment(forecaster=forecaster), 8
        for at in range(1, 16):
            effects = deployment.run_tick(tick_input(60.0 * at, both(ready, 2), of=traffic(60.0)))
            ready = (effects.scale_to or {}).get(P, ready)
        ended[type(forecaster)] = ready, Reason.NO_FORECAST_YET in effects.diagnostics.reasons
    assert ended[Unproven] == (8, True)
    assert ended[LastValue][0] < 4
    assert not ended[LastValue][1]


def test_one_silent_engine_of_five_stops_nothing():
    for document, expected in ((True, None), (False, {P: 6})):
        deployment = a_deployment(document=document, **LOAD_ONLY)
        engines = {P: passes(P, [HOT] * 4), D: passes(D, [WARM] * 2)}
        effects = deployment.run_tick(tick_input(5.0, both(5, 2), engines=engines))
        assert effects.scale_to == expected


def test_an_engine_of_which_a_rank_is_silent_is_silent():
    deployment = a_deployment(**LOAD_ONLY)
    others = tuple(one for each in passes(P, [HOT] * 4) for one in (each, replace(each, rank=1)))
    half = ForwardPass(worker="w9", wall_s=0.05, queued_prefill_tokens=0)
    engines = {P: (*others, half), D: passes(D, [WARM] * 2)}
    effects = deployment.run_tick(tick_input(5.0, both(5, 2), engines=engines))
    assert effects.scale_to == {P: 6}
    load = effects.diagnostics.roles[P].load
    assert load is not None
    assert Reason.SILENT_ENGINES in load.notes


def test_too_many_silent_engines_decide_nothing():
    engines = {P: passes(P, [HOT] * 3), D: passes(D, [WARM] * 2)}
    effects = a_deployment(**LOAD_ONLY).run_tick(tick_input(5.0, both(5, 2), engines=engines))
    assert effects.scale_to is None
    assert effects.diagnostics.load_reason is Reason.WORKER_COUNT_MISMATCH


def test_a_single_noisy_reading_is_ignored():
    deployment = a_deployment(**LOAD_ONLY)
    for now, state in ((5.0, WARM), (10.0, WARM), (15.0, HOT), (20.0, WARM)):
        assert load_tick(deployment, now, [state] * 2, [WARM] * 2).scale_to is None


@pytest.mark.parametrize("target", ["throughput", "latency", "load"])
def test_thresholds_are_not_compared_with_one_noisy_reading_either(target):
    deployment = a_deployment(mode="agg", optimization_target=target, min_endpoint=2)
    steps = []
    for at, tokens in enumerate((0, 0, 500_000, 0, 500_000, 500_000)):
        engine = ForwardPass(worker="w0", decode_kv_tokens=tokens)
        engines = {D: (engine, replace(engine, worker="w1"))}
        steps.append(
            deployment.run_tick(tick_input(5.0 * at + 5.0, {D: replicas(2)}, engines=engines))
        )
    assert [step.scale_to for step in steps] == [None] * 4 + [{D: 3}] * 2


def test_readings_before_and_after_a_silence_are_not_consecutive():
    deployment = a_deployment(**LOAD_ONLY)
    load_tick(deployment, 5.0, [WARM, WARM], [WARM, WARM])
    load_tick(deployment, 10.0, [HOT, IDLE], [WARM, WARM])
    for at in range(3, 60):
        assert deployment.run_tick(tick_input(5.0 * at, both(2, 2))).scale_to is None
    after = load_tick(deployment, 300.0, [HOT, IDLE], [WARM, WARM])
    assert after.scale_to is None
    assert load_tick(deployment, 305.0, [HOT, IDLE], [WARM, WARM]).scale_to == {P: 3}


def test_nothing_goes_down_by_load_before_the_first_forecast():
    deployment = a_deployment(enable_load_scaling=True, down_window_s=10.0)
    for now in range(5, 60, 5):
        effects = load_tick(deployment, float(now), [IDLE] * 4, [IDLE] * 4)
        assert effects.scale_to is None
    load = effects.diagnostics.roles[P].load
    assert load is not None
    assert load.reason is Reason.NO_FORECAST_YET


def test_a_ramp_is_met_in_proportional_steps_if_configured():
    deployment = a_deployment(step="proportional", max_gpu_budget=-1, **LOAD_ONLY)
    assert load_tick(deployment, 5.0, [HOT, HOT], [WARM, WARM]).scale_to == {P: 6}
    deployment = a_deployment(mode="agg", step="proportional", max_gpu_budget=-1, **LOAD_ONLY)
    late = ForwardPass(
        worker="w0", queued_prefill_tokens=6_000, decode_requests=900, decode_kv_tokens=300_000
    )
    engines = {D: (late, replace(late, worker="w1"))}
    effects = deployment.run_tick(tick_input(5.0, {D: replicas(2)}, engines=engines))
    assert effects.scale_to == {D: 6}


def test_requests_that_wait_at_the_selector_count_as_load():
    deployment = a_deployment(**LOAD_ONLY)
    engines = {P: passes(P, [WARM] * 2), D: passes(D, [WARM] * 2)}
    waiting = traffic(10.0, 5.0, queued_requests=4.0, rejected=2.0)
    ticks = [
        deployment.run_tick(tick_input(now, both(2, 2), of=waiting, engines=engines))
        for now in (5.0, 10.0)
    ]
    assert [tick.scale_to for tick in ticks] == [None, {P: 3}]


def test_the_floor_holds_while_no_engine_reports():
    deployment = a_deployment(enable_load_scaling=True)
    effects = deployment.run_tick(tick_input(60.0, both(4, 4), of=traffic(1500.0)))
    assert effects.diagnostics.load_reason is Reason.NO_FPM_DATA
    assert effects.scale_to is not None
    assert effects.scale_to[P] == 5


def test_demand_goes_up_at_once_and_down_only_after_a_window():
    deployment = a_deployment(down_window_s=120.0)
    counts, ups, downs = both(2, 2), [], []
    for at in range(1, 16):
        demand = 1800.0 if at < 4 else 60.0
        effects = deployment.run_tick(tick_input(60.0 * at, counts, of=traffic(demand)))
        for role, number in (effects.scale_to or {}).items():
            (ups if number > counts[role].ready else downs).append((at, role))
            counts[role] = replicas(number)
    assert min(at for at, _ in ups) == 1
    assert min(at for at, _ in downs) == 5
    assert [number.ready for number in counts.values()] == [1, 1]
    assert len(downs) == 6


def test_a_stuck_start_up_is_withdrawn_and_not_begun_again_for_a_while():
    deployment = a_deployment()
    stuck = both(2, 2) | {P: replicas(2, 3)}
    seen = {}
    for at in range(1, 80):
        now = 10.0 * at
        demand = traffic(1800.0) if at % 6 == 0 else None
        counts = both(2, 2) if at == 1 else stuck if now <= 320 else both(2, 4)
        seen[now] = deployment.run_tick(tick_input(now, counts, of=demand))
    assert Reason.PENDING_STUCK in seen[320.0].diagnostics.reasons
    assert (seen[320.0].scale_to or {})[P] == 2
    later = [effects.scale_to or {} for now, effects in seen.items() if 320 < now < 790]
    assert all(scaled.get(P, 2) <= 2 for scaled in later)
    assert Reason.STUCK_CEILING in seen[780.0].diagnostics.reasons


@pytest.mark.parametrize("first", [both(4, 4), None], ids=["seen before", "from the first tick on"])
@pytest.mark.parametrize("verified", [True, False])
def test_replicas_that_have_failed_or_roll_are_not_given_up(first, verified):
    deployment = a_deployment(min_endpoint=2)
    failed = RoleReplicas(ready=0, expected=4, startup_only=verified, limits=LIMITS)
    for at in range(1, 90):
        counts = first if first and at == 1 else both(4, 4) | {P: failed}
        effects = deployment.run_tick(tick_input(10.0 * at, counts, of=traffic(600.0)))
        assert (effects.scale_to or {}).get(P, 4) >= 4
    assert Reason.PENDING_STUCK in effects.diagnostics.reasons


def test_a_pod_that_never_ends_holds_nothing_up_for_ever():
    deployment = a_deployment(scaling_max_wait=600.0)
    ends = {
        role: RoleReplicas(ready=1, expected=1, in_progress=True, limits=LIMITS) for role in Role
    }
    raised = []
    for at in range(1, 20):
        effects = deployment.run_tick(tick_input(60.0 * at, ends, of=traffic(2400.0)))
        raised.append(effects.scale_to is not None)
    assert not any(raised[:9])
    assert any(raised[10:])


def test_load_scales_nothing_down_without_known_traffic():
    deployment = a_deployment(enable_load_scaling=True, down_window_s=10.0, down_cooldown_s=0.0)
    idle = {role: passes(role, [IDLE] * 6) for role in Role}
    for at in range(1, 60):
        known = traffic(60.0, 60.0) if at % 12 == 0 else None
        effects = deployment.run_tick(tick_input(5.0 * at, both(6, 6), of=known, engines=idle))
        assert effects.scale_to is None or at % 12 == 0


def test_a_late_tick_gets_a_whole_window_and_longer_windows_count():
    deployment = a_deployment()
    assert deployment.tick_needs(55.0).traffic_s is None
    assert deployment.tick_needs(64.0).traffic_s == 60.0
    effects = deployment.run_tick(tick_input(66.0, both(2, 2), of=traffic(660.0, 66.0)))
    assert effects.diagnostics.forecast is not None
    assert effects.diagnostics.forecast.requests == pytest.approx(600.0)
    punctual = a_deployment().run_tick(tick_input(60.0, both(2, 2), of=traffic(600.0, 60.0)))
    sizes = [each.diagnostics.roles[P].sized for each in (effects, punctual)]
    assert sizes[0] == sizes[1]
    assert sizes[0] is not None


def test_replicas_that_could_not_be_read_do_not_cost_the_forecast_its_turn():
    deployment = a_deployment()
    deployment.run_tick(TickInput(now_s=60.0, replicas={}, traffic=traffic(600.0)))
    assert deployment.next_tick.run_throughput
    effects = deployment.run_tick(tick_input(65.0, both(2, 2), of=traffic(600.0)))
    assert effects.diagnostics.run_throughput


def test_unknown_traffic_is_not_zero():
    deployment = a_deployment(down_window_s=60.0)
    for at in range(1, 20):
        known = traffic(600.0) if at <= 4 else None
        effects = deployment.run_tick(tick_input(60.0 * at, both(6, 6), of=known))
        if at > 4:
            assert effects.scale_to is None
            assert effects.diagnostics.throughput_reason is Reason.NO_TRAFFIC_DATA
        assert effects.diagnostics.stale == (at >= 7)


@pytest.mark.parametrize("phase", ["rolling", "stale"])
def test_nothing_goes_down_for_a_window_after_it_was_needed_while_nothing_could_be_done(phase):
    deployment = a_deployment(down_window_s=240.0)
    there = both(6, 6)
    rolls = {role: replicas(6, in_progress=True) for role in Role}
    went = []
    for at in range(1, 24):
        held = 6 <= at <= 12
        counts = rolls if held and phase == "rolling" else there
        demand = None if held and phase == "stale" else traffic(1800.0 if held else 60.0)
        if at < 6:
            demand = traffic(1800.0)
        effects = deployment.run_tick(tick_input(60.0 * at, counts, of=demand))
        if effects.scale_to is not None and P in effects.scale_to:
            went.append((at, effects.scale_to[P]))
    assert went
    assert went[0][1] < 6
    assert went[0][0] >= 12 + 4


def test_replicas_that_cannot_be_read_hold_everything():
    effects = a_deployment().run_tick(TickInput(now_s=60.0, replicas={}, traffic=traffic(9000.0)))
    assert effects.scale_to is None
    assert effects.diagnostics.reasons == (Reason.REPLICAS_UNKNOWN,)


def test_below_the_minimum_is_raised_at_once_from_the_peer():
    deployment = a_deployment(min_endpoint=2, max_gpu_budget=6, **LOAD_ONLY)
    effects = deployment.run_tick(tick_input(5.0, both(1, 5)))
    assert effects.scale_to == {P: 2, D: 4}
    assert Reason.BELOW_MINIMUM in effects.diagnostics.reasons


def test_a_role_below_its_minimum_is_raised_without_a_proposal():
    deployment = a_deployment(mode="agg", min_endpoint=2)
    assert deployment.run_tick(tick_input(5.0, {D: replicas(1)})).scale_to == {D: 2}


def test_one_role_below_its_minimum_is_raised_at_once_also_to_the_least_gpus():
    deployment = a_deployment(mode="agg", min_endpoint=4, min_gpu_budget=6)
    assert deployment.run_tick(tick_input(5.0, {D: replicas(1)})).scale_to == {D: 4}
    assert deployment.run_tick(tick_input(10.0, {D: replicas(4)})).scale_to == {D: 5}


def test_advice_is_given_and_not_done():
    effects = a_deployment(advisory=True).run_tick(tick_input(60.0, both(2, 2), of=traffic(1800.0)))
    assert effects.scale_to is None
    assert effects.wished is not None
    assert effects.wished[P] > 2
    assert Reason.ADVISORY in effects.diagnostics.reasons


def test_external_proposals_count_and_a_rejection_ends_the_tick():
    most = Proposal(
        source="quota", priority=0, targets=(ProposedCount("prefill", BoundType.AT_MOST, 4),)
    )
    no = Proposal(source="freeze", priority=9, reject="deploying")
    tick = tick_input(60.0, both(2, 2), of=traffic(1800.0))
    heard = a_deployment().run_tick(TickInput(**{**_fields(tick), "proposals": (most,)}))
    ended = a_deployment().run_tick(TickInput(**{**_fields(tick), "proposals": (most, no)}))
    assert heard.scale_to is not None
    assert heard.scale_to[P] == 4
    assert ended.scale_to is None
    assert ended.diagnostics.rejected == "freeze: deploying"


def _fields(tick: TickInput) -> dict[str, object]:
    return {name: getattr(tick, name) for name in tick.__struct_fields__}


def test_constraints_bound_and_set_nothing():
    least = Proposal(
        source="night",
        priority=0,
        targets=(
            ProposedCount("prefill", BoundType.AT_LEAST, 5),
            ProposedCount("decode", BoundType.SET, 9),
        ),
    )
    tick = _fields(tick_input(60.0, both(2, 2), of=traffic(60.0)))
    effects = a_deployment().run_tick(TickInput(**{**tick, "constraints": (least,)}))
    assert effects.scale_to == {P: 5}
    assert effects.diagnostics.set_dropped == ("decode",)


@pytest.mark.parametrize("mode", ["prefill", "decode", "agg"])
def test_one_role_alone_is_sized(mode):
    deployment = a_deployment(mode=mode, max_gpu_budget=-1)
    role = deployment.roles[0]
    effects = deployment.run_tick(tick_input(60.0, {role: replicas(1)}, of=traffic(6000.0)))
    assert effects.scale_to is not None
    assert effects.scale_to[role] > 3


def test_bounds_change_in_operation_and_the_mode_does_not():
    deployment = a_deployment(**LOAD_ONLY)
    changed = type(deployment.settings)(**{**_settings(deployment), "max_gpu_budget": 4})
    deployment.reconfigure(changed)
    assert load_tick(deployment, 5.0, [HOT] * 2, [HOT] * 2).scale_to is None
    other = type(deployment.settings)(**{**_settings(deployment), "mode": "agg"})
    with pytest.raises(ValueError, match="cannot become agg"):
        deployment.reconfigure(other)


def _settings(deployment: PlannedDeployment) -> dict[str, object]:
    settings = deployment.settings
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


def test_the_next_tick_lists_its_inputs():
    deployment = a_deployment(enable_load_scaling=True)
    assert deployment.next_tick.at_s == 5.0
    for at in range(1, 12):
        effects = load_tick(deployment, 5.0 * at, [WARM], [WARM])
        assert effects.next_tick.at_s == 5.0 * (at + 1)
        assert effects.next_tick.run_throughput == (at == 11)
    assert effects.next_tick.traffic_s == 60.0
    assert LIMITS.max_kv_tokens == 400_000
