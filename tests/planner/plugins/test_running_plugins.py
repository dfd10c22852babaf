"""Tests of plugins in the running loop: decisions, limits, and reports."""

import asyncio
import math
import time
from threading import Event
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from select_service.planner.core.budgets.role_budget import RoleBudget
from select_service.planner.core.cluster import ClusterPlanner
from select_service.planner.core.reasons import Reason
from select_service.planner.core.reconcile import BoundType
from select_service.planner.core.stages import CallOutcome, PluginCall, Stage
from select_service.planner.core.tick_input import Role
from select_service.planner.deployment_status import DeploymentStatuses
from select_service.planner.plugins import PluginContext, ReplicaTarget, ReplicaTargets
from select_service.planner.plugins.in_process_plugin import InProcessPlugin
from select_service.planner.plugins.plugin_host import HostedPlugin, PluginHost
from select_service.planner.report.report_page import render_page
from select_service.planner.report.report_views import make_view
from select_service.planner.runtime import stage_runner
from select_service.planner.runtime.planner_metrics import make_registry, render_metrics
from select_service.planner.runtime.stage_bodies import make_stages
from tests.builders.hypothesis_profiles import explores
from tests.planner import invented_ticks
from tests.planner.core.deployments import WARM, a_deployment, passes, replicas, tick_input, traffic
from tests.planner.plugins.hosting import CHAT, Calls, a_config, hangs
from tests.planner.runtime.test_loop import Scene

D = Role.DECODE


def set_plugins(scene: Scene, *plugins: tuple[dict[str, Any], object]) -> None:
    hosted = [
        HostedPlugin(a_config(**given), InProcessPlugin("own", {CHAT: plugin}), [CHAT])
        for given, plugin in plugins
    ]
    scene.member.sources.plugins = PluginHost(hosted, lambda: scene.now)


def at_most(count: int) -> ReplicaTargets:
    targets = (ReplicaTarget(D, BoundType.AT_MOST, count),)
    return ReplicaTargets(targets=targets, reason="budget of today")


async def test_a_constraint_bounds_a_running_deployment() -> None:
    scene = Scene()
    free, _, _ = await Scene().tick()
    assert free.plugin_calls == ()
    set_plugins(scene, ({"stage": "constrain"}, Calls(lambda context: at_most(3))))
    tick, effects, _ = await scene.tick()
    assert effects.scale_to == {D: 3}
    assert scene.platform.counts[D] == 3
    (call,) = effects.diagnostics.plugins
    assert (call.plugin, call.stage, call.text) == ("cost", Stage.CONSTRAIN, "budget of today")
    # The log has the answer, so that a replay needs no plugin.
    assert (tick.constraints[0].source, tick.plugin_calls) == ("cost", (call,))


async def test_plugins_see_each_stage_of_their_deployment() -> None:
    seen: list[PluginContext] = []
    scene = Scene()
    stages = ("constrain", "predict", "propose")
    set_plugins(scene, *(({"stage": each, "name": each}, Calls(seen.append)) for each in stages))
    await scene.tick()
    assert [each.stage for each in seen] == [Stage.PREDICT, Stage.PROPOSE, Stage.CONSTRAIN]
    assert {each.deployment for each in seen} == {CHAT}
    assert seen[2].reconciled[D] > 3


@pytest.mark.parametrize("stage", ["predict", "propose", "constrain"])
@pytest.mark.parametrize(
    ("misbehave", "outcome"),
    [
        (lambda context: 1 / 0, CallOutcome.FAILED),
        (hangs, CallOutcome.TIMED_OUT),
        (lambda context: {"targets": [{"component": "moon"}], "requests": -1}, CallOutcome.INVALID),
        (lambda context: ["x" * 1000] * 100_000, CallOutcome.INVALID),
    ],
)
async def test_no_plugin_stops_the_planner(
    stage: str, misbehave: Any, outcome: CallOutcome
) -> None:
    _, alone, _ = await Scene().tick()
    scene = Scene()
    set_plugins(scene, ({"stage": stage, "timeout_s": 0.2}, Calls(misbehave)))
    begun = time.monotonic()
    _, effects, applied = await scene.tick()
    assert time.monotonic() - begun < 15.0
    assert (effects.scale_to, applied is not None) == (alone.scale_to, True)
    assert effects.diagnostics.plugins[0].outcome is outcome
    assert Reason.PLUGIN_FAILED in effects.diagnostics.reasons
    assert scene.member.faults == {}


async def test_plugins_leave_time_to_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_runner, "SCALING_S", 30.0)
    freed = Event()
    scene = Scene()
    plugin = Calls(lambda context: freed.wait(20.0))
    set_plugins(scene, ({"stage": "propose", "timeout_s": 15.0}, plugin))
    begun = time.monotonic()
    _, effects, applied = await scene.tick()
    assert time.monotonic() - begun < 14.0
    assert effects.diagnostics.plugins[0].outcome is CallOutcome.TIMED_OUT
    assert applied is not None
    freed.set()


async def test_settings_change_only_between_ticks() -> None:
    scene = Scene()
    changes: list[asyncio.Task[Any]] = []
    order: list[str] = []
    loop = asyncio.get_running_loop()

    def propose(context: PluginContext) -> None:
        def begin() -> None:
            change = scene.loop.change_settings(CHAT, {"max_gpu_budget": 2})
            changes.append(loop.create_task(change))  # type: ignore[arg-type]
            changes[0].add_done_callback(lambda _: order.append("changed"))

        loop.call_soon_threadsafe(begin)
        order.append("answered")

    set_plugins(scene, ({"stage": "propose"}, Calls(propose)))
    _, effects, _ = await scene.tick()
    assert (effects.scale_to or {})[D] > 2
    await changes[0]
    assert order == ["answered", "changed"]


def test_metrics_status_and_report_name_the_plugin() -> None:
    calls = (
        PluginCall(
            plugin="cost",
            stage=Stage.CONSTRAIN,
            outcome=CallOutcome.ANSWERED,
            seconds=0.25,
            text="<b>late</b>",
        ),
        PluginCall(plugin="guess", stage=Stage.PREDICT, outcome=CallOutcome.TIMED_OUT),
    )
    statuses = DeploymentStatuses()
    statuses.changed("chat", a_deployment().settings, 0.0)
    for at in range(1, 4):
        role = invented_ticks.a_role(2, final=3, decided_by="cost")
        effects = invented_ticks.effects(60.0 * at, {D: role}, wished={D: 3}, plugins=calls)
        statuses.ticked("chat", invented_ticks.a_tick(60.0 * at), effects, None)
    status = statuses.find_status("chat")
    assert status is not None
    assert status.changes[0].decided_by == "cost"
    text = render_metrics(make_registry(statuses)).decode()
    samples = {
        (sample.name, sample.labels.get("plugin")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    counted = samples["dynamo_planner_plugin_calls_total", "cost"]
    assert counted.value == 3.0
    assert counted.labels == {
        "deployment": "chat",
        "plugin": "cost",
        "stage": "constrain",
        "outcome": "answered",
    }
    assert samples["dynamo_planner_plugin_up", "cost"].value == 1.0
    assert samples["dynamo_planner_plugin_up", "guess"].value == 0.0
    assert samples["dynamo_planner_plugin_call_seconds", "cost"].value == 0.25
    page = render_page([make_view(status)]).decode()
    assert "<td>cost<td>constrain<td>answered 3" in page
    assert "&lt;b&gt;late&lt;/b&gt;" in page
    assert "timed_out 3" in page


async def test_the_api_shows_the_stages_in_their_order() -> None:
    scene = Scene()
    loose, tight = Calls(lambda context: at_most(4)), Calls(lambda context: at_most(3))
    proposes = {"stage": "propose", "name": "p"}
    set_plugins(scene, ({"stage": "constrain"}, tight), (proposes, loose))
    tick, effects, applied = await scene.tick()
    statuses = DeploymentStatuses()
    statuses.changed(CHAT, scene.config.deployments[0].core_settings(), 0.0)
    status = statuses.find_status(CHAT)
    assert status is not None
    assert make_stages(status) == ()
    statuses.ticked(CHAT, tick, effects, applied)
    stages = msgspec.json.decode(msgspec.json.encode(make_stages(status)))
    assert [each["stage"] for each in stages] == [each.value for each in Stage]
    observe, predict, propose, reconcile, constrain, execute = stages
    assert observe["common"]["traffic"]["requests"] == 3000.0
    assert observe["roles"]["decode"]["ready"] == 2
    assert predict["common"]["prediction"]["requests"] == 3000.0
    assert propose["roles"]["decode"]["throughput"]["replicas"] > 3
    assert [each["source"] for each in propose["common"]["plugins"]] == ["p"]
    assert reconcile["roles"]["decode"] == {"count": 3, "decided_by": "cost"}
    assert constrain["roles"]["decode"]["count"] == 3
    assert [each["plugin"] for each in constrain["plugins"]] == ["cost"]
    assert execute["common"]["applied"]["roles"]["decode"]["status"] == "applied"


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    st.text(max_size=5),
    st.sampled_from(["decode", "prefill", "SET", "AT_LEAST", "AT_MOST"]),
    st.binary(max_size=3),
)
keys = st.sampled_from(
    ["targets", "component", "type", "replicas", "final", "reject", "requests", "isl", "reason"]
)
hostile = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=12,
)
plausible = st.fixed_dictionaries(
    {
        "targets": st.lists(
            st.fixed_dictionaries(
                {
                    "component": st.sampled_from(["decode", "prefill"]),
                    "type": st.sampled_from(["SET", "AT_LEAST", "AT_MOST"]),
                    "replicas": st.one_of(st.integers(0, 20), st.integers(-5, 2_000_000)),
                }
            ),
            max_size=3,
        )
    },
    optional={"final": st.booleans(), "reject": st.sampled_from([None, "no"])},
)
answers = st.one_of(hostile, plausible)
STAGES = (Stage.PREDICT, Stage.PROPOSE, Stage.CONSTRAIN)


@explores(40)
@given(course=st.lists(st.tuples(answers, answers, answers), min_size=1, max_size=4))
def test_hostile_answers_keep_the_result_within_the_bounds(
    course: list[tuple[object, object, object]],
) -> None:
    async def run() -> None:
        deployment = a_deployment(mode="agg", max_gpu_budget=6, min_endpoint=1)
        cluster = ClusterPlanner({CHAT: deployment}, {CHAT: 1}, None)
        said: dict[Stage, object] = {}
        plugin = Calls(lambda context: said[context.stage])
        hosted = [
            HostedPlugin(a_config(stage=each), InProcessPlugin("x", {CHAT: plugin}), [CHAT])
            for each in STAGES
        ]
        host = PluginHost(hosted, lambda: math.inf)  # no breaker stays open
        ready, loop = 3, asyncio.get_running_loop()
        for at, answered in enumerate(course, 1):
            said = dict(zip(STAGES, answered, strict=True))
            engines = {D: passes(D, [WARM] * ready)}
            tick = tick_input(60.0 * at, {D: replicas(ready)}, of=traffic(600.0), engines=engines)
            running = cluster.begin_tick({CHAT: tick}, {CHAT: host.asked_stages(CHAT)})
            contexts = running.advance()
            while contexts:
                found = await host.answer_stage(CHAT, contexts[CHAT], loop.time() + 30.0)
                assert len(found.calls) == 1
                contexts = running.advance({CHAT: found})
            effects = running.finish()[CHAT]
            ready = (effects.scale_to or {}).get(D, ready)
            assert set(effects.scale_to or {}) <= {D}
            assert 1 <= ready <= 6
            assert RoleBudget(deployment.settings).is_within_budget({D: ready})
            again = msgspec.json.decode(msgspec.json.encode(running.inputs[CHAT]))
            assert again["plugin_calls"]

    asyncio.run(run())
