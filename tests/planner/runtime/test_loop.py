"""Tests of the loop: inputs of deployments, actions, and behaviour without answers."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from threading import Event
from typing import Any

import msgspec
import pytest
import zmq

from select_service.planner.config import DeploymentConfig, ForwardPassSourceConfig, PlannerConfig
from select_service.planner.config_loader import PlannerConfigError, convert_config
from select_service.planner.connectors.connector import (
    ConnectorDecision,
    ConnectorError,
    ConnectorStatus,
    ConnectorUnavailable,
    same_outcome,
)
from select_service.planner.core.cluster import ClusterPlanner
from select_service.planner.core.reasons import Reason
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import TickEffects
from select_service.planner.core.tick_input import (
    EngineLimits,
    ForwardPass,
    Role,
    TickInput,
    TrafficWindow,
)
from select_service.planner.core.tick_plan import TickPlan
from select_service.planner.plugins.plugin_host import PluginHost
from select_service.planner.runtime import deployment_runner as members
from select_service.planner.runtime import tick_loop as loops
from select_service.planner.runtime.deployment_runner import (
    DeploymentRunner,
    DeploymentSources,
    ScalingTooLate,
)
from select_service.planner.runtime.forward_pass_source import ForwardPassReceiver
from select_service.planner.runtime.planner_process import make_runners
from select_service.planner.runtime.selector_observation import CombinedObservation
from select_service.planner.runtime.tick_loop import TickLoop
from tests.planner.core.deployments import LIMITS, a_deployment
from tests.planner.runtime.scripted import Platform

D = Role.DECODE
OWN = {
    "name": "chat",
    "model_name": "m",
    "mode": "agg",
    "max_gpu_budget": 16,
    "itl_ms": 20.0,
    "throughput_adjustment_interval_seconds": 60.0,
    "stabilise": False,
    "load_predictor": "constant",
    "decode_limits": {
        "max_num_batched_tokens": LIMITS.max_num_batched_tokens,
        "max_num_seqs": LIMITS.max_num_seqs,
        "max_kv_tokens": LIMITS.max_kv_tokens,
    },
}


class ConstantSource:
    """Source with a constant answer, which tests may change."""

    def __init__(self, requests: float | None) -> None:
        self.faults: dict[str, str] = {}
        self.unknown_model: str | None = None
        self.answer: CombinedObservation | None = observation_of(requests)
        self.hangs = False
        self.asked = 0

    async def read_observations(self, window_s: float, **slo: float) -> CombinedObservation | None:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(3600)
        return self.answer


def observation_of(requests: float | None) -> CombinedObservation:
    shape = {"isl": 3000.0, "osl": 150.0} if requests else {}
    traffic = TrafficWindow(duration_s=60.0, requests=requests, **shape)
    return CombinedObservation(
        traffic=traffic, passes={}, workers={D: 2}, limits={D: EngineLimits()}
    )


class Listening:
    def __init__(self) -> None:
        self.ticks: list[tuple[TickInput, TickEffects, ConnectorDecision | None]] = []
        self.settings: list[DeploymentSettings] = []

    def ticked(
        self, name: str, tick: TickInput, effects: TickEffects, applied: ConnectorDecision | None
    ) -> None:
        self.ticks.append((tick, effects, applied))

    def changed(self, name: str, settings: DeploymentSettings, now_s: float) -> None:
        self.settings.append(settings)


class Scene:
    """Deployment with a clock that tests set."""

    def __init__(self, requests: float | None = 3000.0, **given: Any) -> None:
        document = {"selectors": ["http://selector"], "deployments": [{**OWN, **given}]}
        self.config: PlannerConfig = convert_config(document)
        (own,) = self.config.deployments
        self.now = 0.0
        self.source: Any = ConstantSource(requests)
        self.platform = Platform({D: 2})
        nobody = PluginHost((), lambda: self.now)
        sources = DeploymentSources(self.source, None, None, nobody)
        self.member = DeploymentRunner(own, sources, self.platform)
        core = a_deployment(**_settings(own))
        self.listening = Listening()
        self.loop = TickLoop(
            self.config,
            ClusterPlanner({"chat": core}, {"chat": 1}, None),
            {"chat": self.member},
            [self.listening],
            lambda: self.now,
        )

    async def tick(self) -> tuple[TickInput, TickEffects, ConnectorDecision | None]:
        self.now += 60.0
        await self.loop.tick()
        return self.listening.ticks[-1]


def _settings(own: DeploymentConfig) -> Mapping[str, Any]:
    return {each: getattr(own, each) for each in DeploymentSettings.__struct_fields__}


async def test_a_tick_observes_decides_and_scales(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scene = Scene()
    told, effects, applied = await scene.tick()
    assert told.traffic is not None
    assert told.traffic.requests == 3000.0
    assert told.replicas[D].limits is not None
    assert told.replicas[D].limits.max_kv_tokens == LIMITS.max_kv_tokens
    assert effects.scale_to is not None
    assert scene.platform.asked == [effects.scale_to]
    assert scene.platform.counts[D] > 2
    assert applied is not None
    assert applied.roles[D].status == ConnectorStatus.APPLIED
    (line,) = [each for each in caplog.records if each.getMessage() == "replicas decided"]
    assert line.fields["reasons"] == ["scale"]  # type: ignore[attr-defined]


async def test_silent_selectors_are_unknown_traffic() -> None:
    scene = Scene()
    scene.source.answer = None
    scene.source.faults = {"http://selector": "no answer within 10 s"}
    told, effects, _ = await scene.tick()
    assert told.traffic is None
    assert effects.scale_to is None
    assert effects.diagnostics.throughput_reason == Reason.NO_TRAFFIC_DATA
    assert scene.member.faults == scene.source.faults


async def test_a_model_unknown_to_selectors_is_a_fault() -> None:
    scene = Scene()
    scene.source.unknown_model = "nothing is known of model=m"
    await scene.tick()
    assert scene.member.faults == {"model": "nothing is known of model=m"}


async def test_prefill_workers_that_the_mode_does_not_count_are_a_fault() -> None:
    scene = Scene()
    scene.source.answer.workers[Role.PREFILL] = 3
    await scene.tick()
    assert scene.member.faults == {
        "mode": "3 workers have the role prefill, which mode `agg` does not count: set "
        "`mode: disagg`"
    }


async def test_faults_at_the_start_are_retried_before_the_first_tick(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A selector that was started at the same time may answer seconds later."""
    monkeypatch.setattr(loops, "RETRY_S", 0.01)
    caplog.set_level("INFO")

    def observed_faults() -> list[int]:
        found = [each for each in caplog.records if each.getMessage() == "deployment observed"]
        return [each.fields["faults"] for each in found]  # type: ignore[attr-defined]

    scene = Scene()
    scene.source.faults = {"http://selector": "refused"}
    running = asyncio.create_task(scene.loop.run())
    async with asyncio.timeout(30.0):
        while scene.source.asked < 3:
            await asyncio.sleep(0.001)
        assert scene.member.faults == scene.source.faults
        assert observed_faults() == [1]
        scene.source.faults = {}
        while scene.member.faults:
            await asyncio.sleep(0.001)
    asked = scene.source.asked
    await asyncio.sleep(0.05)
    assert scene.source.asked == asked
    assert observed_faults() == [1, 0]
    assert scene.listening.ticks == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_first_tick_does_not_wait_for_another_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "LOOK_S", 120.0)
    scene = Scene()
    scene.source.faults = {"http://selector": "refused"}
    running = asyncio.create_task(scene.loop.run())
    while scene.source.asked < 1 or not scene.member.faults:
        await asyncio.sleep(0)
    scene.now = 60.0
    async with asyncio.timeout(30.0):
        while not scene.listening.ticks:
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_platform_that_cannot_be_read_or_written_is_tried_again_at_the_next_tick() -> None:
    scene = Scene()
    scene.platform.fault = ConnectorUnavailable("busy")
    told, effects, applied = await scene.tick()
    assert (told.replicas, effects.scale_to, applied) == ({}, None, None)
    assert scene.member.faults == {"connector": "busy"}
    scene.platform.fault = None
    _, effects, applied = await scene.tick()
    assert effects.scale_to is not None
    assert applied is not None
    assert scene.member.faults == {}


@pytest.mark.parametrize("error", [ConnectorError("no rights"), ValueError("bins differ")])
async def test_no_error_of_a_deployment_ends_the_loop(error: Exception) -> None:
    scene = Scene()
    scene.platform.fault = error
    told, effects, applied = await scene.tick()
    assert (told.replicas, effects.scale_to, applied) == ({}, None, None)
    assert any(str(error) in each for each in scene.member.faults.values())
    scene.platform.fault = None
    _, effects, _ = await scene.tick()
    assert effects.scale_to is not None


async def test_a_decision_that_fails_holds_the_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()

    def fails(plans: Mapping[str, TickPlan]) -> dict[str, TickEffects]:
        raise ArithmeticError("no root")

    with monkeypatch.context() as patched:
        patched.setattr(ClusterPlanner, "finish_tick", lambda _, plans: fails(plans))
        scene.now = 60.0
        await scene.loop.tick()
    assert scene.platform.asked == []
    assert scene.member.faults == {"decision": "ArithmeticError: no root"}
    _, effects, _ = await scene.tick()
    assert effects.scale_to is not None


async def test_a_tick_that_takes_too_long_scales_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "DEADLINE_S", 0.05)
    scene = Scene()
    scene.source.hangs = True
    told, effects, _ = await scene.tick()
    assert (told.replicas, effects.scale_to) == ({}, None)
    assert scene.member.faults == {"tick": "took over 0.05 s; nothing was scaled"}
    scene.source.hangs = False
    _, effects, _ = await scene.tick()
    assert effects.scale_to is not None


async def test_a_decision_that_takes_too_long_scales_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decide = ClusterPlanner.finish_tick

    def slowly(cluster: ClusterPlanner, plans: Mapping[str, TickPlan]) -> dict[str, TickEffects]:
        effects = decide(cluster, plans)
        Event().wait(0.1)
        return effects

    scene = Scene()
    with monkeypatch.context() as patched:
        patched.setattr(loops, "DEADLINE_S", 0.05)
        patched.setattr(ClusterPlanner, "finish_tick", slowly)
        _, effects, applied = await scene.tick()
    assert effects.scale_to is not None
    assert (applied, scene.platform.asked) == (None, [])
    assert "tick" in scene.member.faults
    _, _, applied = await scene.tick()
    assert applied is not None
    assert scene.member.faults == {}


async def test_scaling_that_cannot_begin_in_time_does_not_begin_later() -> None:
    scene = Scene()
    scene.platform.hangs = True
    step = asyncio.create_task(scene.member.step_connector())
    while not scene.platform.steps:
        await asyncio.sleep(0)
    with pytest.raises(ScalingTooLate):
        await scene.member.scale_to({D: 3}, asyncio.get_running_loop().time() + 0.05)
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    assert scene.platform.asked == []


async def test_a_platform_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "APPLY_S", 0.05)
    scene = Scene()
    scene.platform.hangs = True
    _, _, applied = await scene.tick()
    assert applied is None
    assert scene.member.faults == {"connector": "no answer within 0.05 s"}
    scene.platform.hangs = False
    _, _, applied = await scene.tick()
    assert applied is not None


async def test_gpus_of_the_platform_count_in_budgets() -> None:
    scene = Scene(requests=60_000.0)
    scene.platform.num_gpu = 4
    _, effects, _ = await scene.tick()
    assert effects.scale_to == {D: 4}
    assert effects.diagnostics.roles[D].num_gpu == 4
    assert scene.member.faults == {}
    with pytest.raises(PlannerConfigError, match="need 20 GPUs, got 16"):
        await scene.loop.change_settings("chat", {"min_endpoint": 5})
    scene.platform.num_gpu = None  # as for a role without pods
    _, effects, _ = await scene.tick()
    assert effects.diagnostics.roles[D].num_gpu == 4


async def test_a_setting_against_the_platform_counts_and_is_a_fault() -> None:
    scene = Scene(requests=60_000.0, decode_engine_num_gpu=2)
    scene.platform.num_gpu = 4
    _, effects, _ = await scene.tick()
    assert effects.scale_to == {D: 8}
    said = "decode_engine_num_gpu is 2 and takes precedence; the pod template requests 4"
    assert scene.member.faults == {"gpus decode": said}
    scene.platform.num_gpu = 2
    await scene.tick()
    assert scene.member.faults == {}


@pytest.mark.parametrize("stabilise", [False, True])
async def test_replicas_that_have_grown_beyond_the_budget_are_held(stabilise: bool) -> None:
    scene = Scene(requests=60_000.0, min_endpoint=2, stabilise=stabilise)
    scene.platform.num_gpu = 12
    _, effects, _ = await scene.tick()
    assert effects.scale_to is None
    assert Reason.GPU_BUDGET_HOLD in effects.diagnostics.reasons


def test_minima_that_do_not_fit_the_gpus_of_the_platform_stop_the_start() -> None:
    class Connects:
        async def member(self, own: DeploymentConfig) -> DeploymentRunner:
            return scene.member

    async def run() -> None:
        async with AsyncExitStack() as closing:
            with pytest.raises(
                PlannerConfigError, match=r"`chat`: max_gpu_budget: .* 24 GPUs, got 16"
            ):
                await make_runners(scene.config, Connects(), closing)
        assert scene.platform.is_closed

    scene = Scene(min_endpoint=2)
    scene.platform.num_gpu = 12
    asyncio.run(run())


async def test_advice_scales_nothing_and_names_the_counts() -> None:
    scene = Scene(advisory=True)
    _, effects, applied = await scene.tick()
    assert (effects.scale_to, applied, scene.platform.asked) == (None, None, [])
    assert effects.wished is not None
    late = asyncio.get_running_loop().time() + 1.0
    decided = await scene.member.scale_to({D: 3}, late)
    assert decided == same_outcome({D: 3}, ConnectorStatus.ADVISORY)
    await scene.member.step_connector()
    assert (scene.platform.asked, scene.platform.steps) == ([], 0)
    await scene.member.switch_advisory(False)
    await scene.member.scale_to({D: 3}, late)
    await scene.member.switch_advisory(True)
    await scene.member.switch_advisory(True)
    assert (scene.platform.asked, scene.platform.pauses) == ([{D: 3}], 1)


async def test_changes_apply_at_the_next_tick_as_a_whole_or_not_at_all() -> None:
    scene = Scene()
    await scene.loop.change_settings("chat", {"max_gpu_budget": 3})
    _, effects, _ = await scene.tick()
    assert effects.scale_to == {D: 3}
    with pytest.raises(PlannerConfigError, match="the minimum replicas need 9 GPUs, got 3"):
        await scene.loop.change_settings("chat", {"ttft_ms": 100.0, "min_endpoint": 9})
    assert scene.loop.configs()["chat"].ttft_ms == 500.0
    with pytest.raises(PlannerConfigError, match="mode agg cannot become"):
        await scene.loop.change_settings("chat", {"mode": "decode"})
    with pytest.raises(KeyError):
        await scene.loop.change_settings("nobody", {})
    assert [each.max_gpu_budget for each in scene.listening.settings] == [3]


async def test_a_paused_deployment_is_observed_and_left_alone() -> None:
    scene = Scene()
    await scene.loop.change_settings("chat", {}, paused=True)
    assert scene.loop.is_paused("chat")
    _, _, applied = await scene.tick()
    assert scene.platform.asked == []
    assert applied is not None
    assert applied.roles[D].status == ConnectorStatus.ADVISORY
    await scene.loop.change_settings("chat", {}, paused=False)
    await scene.tick()
    assert len(scene.platform.asked) == 1


async def test_the_loop_runs_and_advances_changes_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "STEP_S", 0.001)
    scene = Scene()
    running = asyncio.create_task(scene.loop.run())
    while not scene.platform.steps:
        await asyncio.sleep(0.01)
    scene.now = 60.0
    running.cancel()
    assert msgspec.structs.asdict(scene.listening.settings[0])["mode"] == "agg"
    await asyncio.gather(running, return_exceptions=True)
    await scene.member.close()
    assert scene.platform.is_closed


async def test_unreadable_credentials_of_a_platform_are_a_fault() -> None:
    scene = Scene()
    scene.platform.fault = ConnectorError("no token")
    told, _, _ = await scene.tick()
    assert (told.replicas, scene.member.faults) == ({}, {"connector": "no token"})


def test_received_forward_passes_replace_selector_loads() -> None:
    async def run() -> None:
        scene = Scene()
        engine = zmq.Context.instance().socket(zmq.PUB)
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        sources = scene.member.sources
        sources.fpm = ForwardPassReceiver(
            ForwardPassSourceConfig(decode=(f"tcp://127.0.0.1:{port}",))
        )
        booked = ForwardPass(worker="1", booked=True)
        scene.source.answer = msgspec.structs.replace(observation_of(0.0), passes={D: (booked,)})
        told, _, _ = await scene.tick()
        assert told.passes == {D: (booked,)}
        sources.start_receiving()
        message = msgspec.msgpack.encode({"version": 1, "worker_id": "w", "wall_time": 0.1})
        while told.passes == {D: (booked,)}:
            engine.send_multipart([b"", b"seq", message])
            await asyncio.sleep(0.01)
            told, _, _ = await scene.tick()
        assert {each.worker for each in (told.passes or {})[D]} == {"w"}
        await sources.close()
        engine.close(linger=0)

    asyncio.run(asyncio.wait_for(run(), 60))
