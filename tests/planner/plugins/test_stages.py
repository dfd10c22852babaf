"""Tests of plugin answers in a tick: predictions, proposals, constraints, also hostile."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.budgets.role_budget import RoleBudget
from select_service.planner.core.cluster import ClusterPlanner
from select_service.planner.core.forecast_contracts import ExpectedTraffic
from select_service.planner.core.prediction import apply_predictions
from select_service.planner.core.reasons import Reason
from select_service.planner.core.reconcile import BoundType, Proposal, ProposedCount
from select_service.planner.core.stages import (
    CallOutcome,
    PluginCall,
    Prediction,
    SourcedPrediction,
    Stage,
)
from select_service.planner.core.tick import PlannedDeployment, TickEffects
from select_service.planner.core.tick_input import REPLICAS_MAX, Role, TickInput
from select_service.planner.core.tick_plan import StageAnswers
from tests.builders.hypothesis_profiles import explores
from tests.planner.core.deployments import (
    HOT,
    IDLE,
    WARM,
    a_deployment,
    both,
    passes,
    replicas,
    tick_input,
    traffic,
)

P, D = Role.PREFILL, Role.DECODE
Answers = Mapping[Stage, StageAnswers]


def tick_with(deployment: PlannedDeployment, tick: TickInput, answers: Answers) -> TickEffects:
    """Run a tick that pauses at the stages with answers, as the running planner does."""
    cluster = ClusterPlanner({"chat": deployment}, {"chat": 1}, None)
    running = cluster.begin_tick({"chat": tick}, {"chat": frozenset(answers)})
    contexts = running.advance()
    while contexts:
        contexts = running.advance({"chat": answers[contexts["chat"].stage]})
    return running.finish()["chat"]


def bound(kind: BoundType, **counts: int) -> tuple[ProposedCount, ...]:
    return tuple(ProposedCount(role, kind, n) for role, n in counts.items())


def proposal_answers(*targets: ProposedCount, source: str = "cost", **given: Any) -> StageAnswers:
    call = PluginCall(plugin=source, stage=Stage.PROPOSE, outcome=CallOutcome.ANSWERED)
    proposal = Proposal(source=source, targets=targets, **{"priority": 0, **given})
    return StageAnswers((proposal,), (call,))


def prediction_answers(**fields: float) -> StageAnswers:
    answer = SourcedPrediction(source="guess", priority=0, prediction=Prediction(**fields))
    return StageAnswers((answer,), ())


def test_a_prediction_is_sized() -> None:
    tick = tick_input(60.0, both(2, 2), of=traffic(60.0))
    calm = a_deployment().run_tick(tick)
    effects = tick_with(a_deployment(), tick, {Stage.PREDICT: prediction_answers(requests=3000.0)})
    assert effects.scale_to is not None
    assert effects.scale_to[P] > (calm.diagnostics.roles[P].final or 0)
    forecast = effects.diagnostics.forecast
    assert forecast is not None
    assert (forecast.requests, forecast.demand_requests, forecast.predictor) == (
        3000.0,
        3000.0,
        "guess",
    )


def test_predictors_run_with_the_throughput_loop_and_known_traffic() -> None:
    asked: list[Stage] = []
    for tick in (tick_input(5.0, both(2, 2)), tick_input(60.0, both(2, 2))):
        run = a_deployment().run_stages(tick, frozenset(Stage))
        context = next(run)
        asked.append(context.stage)
    assert asked == [Stage.PROPOSE, Stage.PROPOSE]
    run = a_deployment().run_stages(
        tick_input(60.0, both(2, 2), of=traffic(60.0)), frozenset(Stage)
    )
    assert next(run).stage is Stage.PREDICT


def test_contexts_show_the_stage_before() -> None:
    run = a_deployment().run_stages(
        tick_input(60.0, both(2, 2), of=traffic(1800.0)), frozenset(Stage)
    )
    first = next(run)
    assert first.prediction is not None
    assert (first.sizes, first.proposals, first.reconciled) == ({}, (), {})
    second = run.send(prediction_answers(requests=600.0))
    assert second.prediction is not None
    assert second.prediction.requests == 600.0
    assert set(second.sizes) == {P, D}
    assert {each.source for each in second.proposals} == {"throughput"}
    third = run.send(proposal_answers(*bound(BoundType.SET, prefill=7)))
    assert {each.source for each in third.proposals} == {"throughput", "cost"}
    assert third.reconciled[P] == 7
    assert third.roles[D].min_endpoint == 1
    assert third.settings.max_gpu_budget == 16


def test_the_prediction_of_smaller_priority_counts_for_each_field() -> None:
    builtin = ExpectedTraffic(requests=1.0, isl=2.0, osl=3.0, demand_requests=4.0, error=0.5)
    first = SourcedPrediction(
        source="a", priority=5, prediction=Prediction(requests=10.0, isl=20.0)
    )
    second = SourcedPrediction(
        source="b", priority=1, prediction=Prediction(demand_requests=0.5, kv_hit_rate=1.0)
    )
    found = apply_predictions(builtin, [first, second])
    # Demand is at least the expected requests, and a part of every prompt is always computed.
    assert (found.requests, found.demand_requests, found.isl, found.osl) == (1.0, 1.0, 20.0, 3.0)
    assert (found.predictor, found.error, found.kv_hit_rate) == ("b", None, 0.95)
    assert apply_predictions(builtin, []) is builtin
    lengths = SourcedPrediction(source="c", priority=0, prediction=Prediction(osl=9.0))
    changed = apply_predictions(builtin, [lengths])
    assert (changed.osl, changed.error, changed.demand_requests) == (9.0, 0.5, 4.0)


def test_a_proposal_decides_and_is_named() -> None:
    tick = tick_input(60.0, both(2, 2), of=traffic(60.0))
    effects = tick_with(
        a_deployment(), tick, {Stage.PROPOSE: proposal_answers(*bound(BoundType.SET, prefill=5))}
    )
    assert effects.scale_to == {P: 5}
    roles = effects.diagnostics.roles
    assert (roles[P].decided_by, roles[D].decided_by) == ("cost", "throughput")
    assert Reason.PLUGIN_DECIDED in effects.diagnostics.reasons
    assert [call.plugin for call in effects.diagnostics.plugins] == ["cost"]


def test_without_plugins_no_reason_names_them() -> None:
    effects = a_deployment().run_tick(tick_input(60.0, both(2, 2), of=traffic(1800.0)))
    assert not {Reason.PLUGIN_DECIDED, Reason.PLUGIN_FAILED} & set(effects.diagnostics.reasons)
    assert effects.diagnostics.roles[P].decided_by == "throughput"


def test_a_failed_call_is_a_reason() -> None:
    call = PluginCall(plugin="cost", stage=Stage.CONSTRAIN, outcome=CallOutcome.TIMED_OUT)
    tick = tick_input(60.0, both(2, 2), of=traffic(60.0))
    effects = tick_with(a_deployment(), tick, {Stage.CONSTRAIN: StageAnswers((), (call,))})
    assert Reason.PLUGIN_FAILED in effects.diagnostics.reasons
    assert effects.diagnostics.plugins == (call,)


def ticks_until_still(deployment: PlannedDeployment, answers: Answers, **given: Any) -> int:
    """Return the prefill replicas after an hour of equal ticks that are followed at once."""
    ready = 8
    for at in range(1, 61):
        tick = tick_input(60.0 * at, both(ready, 2), of=traffic(given.get("requests", 1800.0)))
        effects = tick_with(deployment, tick, answers)
        ready = (effects.scale_to or {}).get(P, ready)
    return ready


def test_a_ceiling_ends_replicas_that_the_forecast_needs() -> None:
    assert ticks_until_still(a_deployment(), {}) > 4
    ceiling = {Stage.CONSTRAIN: proposal_answers(*bound(BoundType.AT_MOST, prefill=3))}
    assert ticks_until_still(a_deployment(), ceiling) == 3
    assert ticks_until_still(a_deployment(min_endpoint=5, max_gpu_budget=32), ceiling) == 5


def test_a_floor_is_kept_and_reached_within_the_tolerance() -> None:
    floor = {Stage.CONSTRAIN: proposal_answers(*bound(BoundType.AT_LEAST, prefill=6))}
    assert ticks_until_still(a_deployment(), floor, requests=6.0) == 6
    # One more than ten is within the tolerance of a target, but a floor is no target.
    eleven = {Stage.CONSTRAIN: proposal_answers(*bound(BoundType.AT_LEAST, decode=11))}
    tick = tick_input(60.0, {D: replicas(10)}, of=traffic(60.0))
    assert tick_with(a_deployment(mode="agg"), tick, eleven).scale_to == {D: 11}


def test_a_ceiling_of_a_constraint_limits_floors_of_proposals() -> None:
    answers = {
        Stage.PROPOSE: proposal_answers(*bound(BoundType.AT_LEAST, prefill=9), source="wish"),
        Stage.CONSTRAIN: proposal_answers(*bound(BoundType.AT_MOST, prefill=4)),
    }
    tick = tick_input(60.0, both(2, 2), of=traffic(60.0))
    effects = tick_with(a_deployment(), tick, answers)
    assert effects.scale_to == {P: 4}
    assert effects.diagnostics.roles[P].decided_by == "cost"


def test_a_plugin_s_floor_holds_against_the_load_loop() -> None:
    deployment = a_deployment(enable_load_scaling=True, down_window_s=60.0)
    floor = {Stage.PROPOSE: proposal_answers(*bound(BoundType.AT_LEAST, prefill=4))}
    ready = 6
    for at in range(1, 241):
        engines = {P: passes(P, [IDLE] * ready), D: passes(D, [WARM] * 2)}
        of = traffic(6.0) if at % 12 == 0 else traffic(0.5, 5.0)
        effects = tick_with(
            deployment, tick_input(5.0 * at, both(ready, 2), of=of, engines=engines), floor
        )
        ready = (effects.scale_to or {}).get(P, ready)
        assert ready >= 4
    assert ready == 4


def test_a_rejection_ends_the_tick_before_constraints() -> None:
    answers = {Stage.PROPOSE: proposal_answers(reject="deploying"), Stage.CONSTRAIN: StageAnswers()}
    tick = tick_input(60.0, both(2, 2), of=traffic(1800.0))
    run = a_deployment().run_stages(tick, frozenset({Stage.PROPOSE, Stage.CONSTRAIN}))
    next(run)
    with pytest.raises(StopIteration):
        run.send(answers[Stage.PROPOSE])
    effects = tick_with(a_deployment(), tick, answers)
    assert (effects.scale_to, effects.diagnostics.rejected) == (None, "cost: deploying")


def test_recorded_answers_of_another_mode_are_left_out() -> None:
    foreign = proposal_answers(*bound(BoundType.SET, prefill=9, gpu=3, decode=4)).answers
    tick = tick_input(60.0, {D: replicas(2)}, of=traffic(60.0))
    effects = a_deployment(mode="agg").run_tick(
        msgspec.structs.replace(tick, proposals=foreign, constraints=foreign)
    )
    assert effects.scale_to == {D: 4}


def test_a_final_proposal_without_a_number_leaves_the_role_alone() -> None:
    nothing = Proposal(
        source="a", priority=0, final=True, targets=(ProposedCount("prefill", BoundType.SET),)
    )
    deployment = a_deployment(enable_load_scaling=True)
    engines = {P: passes(P, [IDLE] * 4), D: passes(D, [WARM] * 2)}
    tick = tick_input(60.0, both(4, 2), of=traffic(60.0), engines=engines)
    effects = deployment.run_tick(msgspec.structs.replace(tick, proposals=(nothing,)))
    assert effects.scale_to is None


def test_a_log_line_repeats_the_answers() -> None:
    answers = {
        Stage.PREDICT: prediction_answers(requests=600.0, osl=200.0),
        Stage.PROPOSE: proposal_answers(*bound(BoundType.SET, prefill=5)),
        Stage.CONSTRAIN: proposal_answers(*bound(BoundType.AT_MOST, prefill=4), source="limit"),
    }
    cluster = ClusterPlanner({"chat": a_deployment()}, {"chat": 1}, None)
    tick = tick_input(60.0, both(2, 2), of=traffic(60.0))
    running = cluster.begin_tick({"chat": tick}, {"chat": frozenset(answers)})
    contexts = running.advance()
    while contexts:
        contexts = running.advance({"chat": answers[contexts["chat"].stage]})
    effects = running.finish()["chat"]
    line = msgspec.json.decode(msgspec.json.encode(running.inputs["chat"]), type=TickInput)
    again = a_deployment().run_tick(line)
    assert msgspec.json.encode(again) == msgspec.json.encode(effects)
    assert effects.scale_to == {P: 4}
    assert effects.diagnostics.roles[P].decided_by == "limit"


names = st.sampled_from(["prefill", "decode", "gpu", ""])
counts = st.one_of(st.integers(0, 12), st.integers(0, REPLICAS_MAX), st.none())
targets = st.lists(st.builds(ProposedCount, names, st.sampled_from(BoundType), counts), max_size=4)
proposals = st.lists(
    st.builds(
        Proposal,
        source=st.sampled_from(["a", "b", "load"]),
        priority=st.integers(-3, 30),
        targets=st.one_of(st.none(), targets.map(tuple)),
        final=st.booleans(),
        reject=st.one_of(st.none(), st.none(), st.just("no")),
    ),
    max_size=3,
).map(lambda found: StageAnswers(tuple(found)))
numbers = st.one_of(st.none(), st.floats(0, 1e12), st.floats(0, 10.0))
lengths = st.one_of(st.none(), st.floats(1e-9, 1e8))
predictions = st.lists(
    st.builds(
        SourcedPrediction,
        source=st.just("guess"),
        priority=st.integers(0, 3),
        prediction=st.builds(
            Prediction,
            requests=numbers,
            demand_requests=numbers,
            isl=lengths,
            osl=lengths,
            kv_hit_rate=st.one_of(st.none(), st.floats(0, 1)),
            accept_length=st.one_of(st.none(), st.floats(1, 100)),
        ),
    ),
    max_size=2,
).map(lambda found: StageAnswers(tuple(found)))
ticks = st.lists(
    st.tuples(
        predictions,
        proposals,
        proposals,
        st.one_of(st.none(), st.floats(0, 5000)),
        st.sampled_from([HOT, WARM, IDLE]),
    ),
    min_size=1,
    max_size=12,
)


@explores(60)
@given(
    course=ticks,
    mode=st.sampled_from(["disagg", "agg", "prefill", "decode"]),
    load=st.booleans(),
    minimum=st.integers(0, 2),
    stabilise=st.booleans(),
)
def test_results_are_within_the_bounds_for_any_plugin_answers(
    course: list[tuple[Any, ...]], mode: str, load: bool, minimum: int, stabilise: bool
) -> None:
    deployment = a_deployment(
        mode=mode,
        enable_load_scaling=load,
        min_endpoint=minimum,
        max_gpu_budget=12,
        stabilise=stabilise,
    )
    budget = RoleBudget(deployment.settings)
    ready = dict.fromkeys(deployment.roles, 3)
    for at, (prediction, proposal, constraint, requests, state) in enumerate(course, 1):
        counts = {role: replicas(n) for role, n in ready.items()}
        engines = {role: passes(role, [state] * n) for role, n in ready.items()}
        of = None if requests is None else traffic(requests)
        tick = tick_input(60.0 * at, counts, of=of, engines=engines)
        answers = {
            Stage.PREDICT: prediction,
            Stage.PROPOSE: proposal,
            Stage.CONSTRAIN: constraint,
        }
        effects = tick_with(deployment, tick, answers)
        final = {role: effects.diagnostics.roles[role].final for role in deployment.roles}
        for role, number in (effects.scale_to or {}).items():
            assert role in deployment.roles
            ready[role] = number
        assert budget.total_gpus(ready) <= 12
        assert all(ready[role] >= minimum for role in deployment.roles)
        assert all(number is not None for number in final.values())
