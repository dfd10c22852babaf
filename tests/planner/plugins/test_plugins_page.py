"""Tests that run the plugins of docs/guides/planner-plugins.md from the text of the page."""

import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import yaml

from select_service.planner.config_loader import convert_config
from select_service.planner.core.plugin_contracts import PluginContext, check_answer
from select_service.planner.core.stages import CallOutcome, Stage
from select_service.planner.core.tick_input import Role
from select_service.planner.plugins.in_process_plugin import InProcessPlugin
from select_service.planner.plugins.plugin_host import HostedPlugin, PluginHost
from select_service.planner.plugins.plugin_loader import describe_plugins, make_objects
from select_service.planner.plugins.plugin_port import decode_answer
from select_service.planner.runtime import planner_api_bodies, plugin_metrics
from tests.planner.core.deployments import a_deployment, replicas, tick_input, traffic

TEXT = (Path(__file__).parents[3] / "docs" / "guides" / "planner-plugins.md").read_text()
DAY_S = 86_400.0
D = Role.DECODE


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture
def my_plugins() -> Iterator[ModuleType]:
    module = ModuleType("my_plugins")
    for block in blocks("python"):
        exec(compile(block, "planner-plugins.md", "exec"), module.__dict__)
    sys.modules["my_plugins"] = module
    yield module
    del sys.modules["my_plugins"]


class Fleet:
    """Deployment with the plugins of the page, on a platform that follows at once."""

    def __init__(self, *names: str) -> None:
        config = convert_config(yaml.safe_load(blocks("yaml")[0]))
        assert len(list(describe_plugins(config))) == 3
        hosted = [
            HostedPlugin(each, InProcessPlugin(each.name, make_objects(each, ["qwen"])), ["qwen"])
            for each in config.plugins
            if each.name in names
        ]
        self.host = PluginHost(hosted, lambda: 0.0)
        self.deployment = a_deployment(
            mode="agg", max_gpu_budget=32, throughput_adjustment_interval_seconds=1800.0,
            scale_interval_seconds=1800.0, load_adjustment_interval_seconds=1800.0,
            down_window_s=1800.0,
        )  # fmt: skip
        self.ready = 4
        self.texts: list[str] = []

    async def tick(self, now_s: float, requests: float) -> PluginContext | None:
        """Run a tick, and return the last context."""
        of = traffic(requests, 1800.0)
        tick = tick_input(now_s, {D: replicas(self.ready)}, of=of)
        run = self.deployment.run_stages(tick, self.host.asked_stages("qwen"))
        context: PluginContext | None = None
        try:
            context = next(run)
            while True:
                given = await self.host.answer_stage("qwen", context, float("inf"))
                assert all(call.outcome is CallOutcome.ANSWERED for call in given.calls)
                self.texts += [call.text for call in given.calls if call.text]
                context = run.send(given)
        except StopIteration as end:
            effects = self.deployment.finish_tick(end.value, None)
        self.ready = (effects.scale_to or {}).get(D, self.ready)
        self.forecast = effects.diagnostics.forecast
        return context


async def test_yesterday(my_plugins: ModuleType) -> None:
    fleet = Fleet("yesterday")
    for at in range(1, 48):
        await fleet.tick(1800.0 * at, 9000.0 if at == 20 else 900.0)
    assert fleet.texts == []
    for at in range(48, 48 + 20):
        await fleet.tick(1800.0 * at, 900.0)
        busy = at == 48 + 19  # half an hour before yesterday's peak
        assert fleet.forecast is not None
        assert (fleet.forecast.requests == 9000.0) is busy
    assert fleet.forecast is not None
    assert fleet.forecast.predictor == "yesterday"
    assert set(fleet.texts) == {"yesterday"}


async def test_costs(my_plugins: ModuleType) -> None:
    """Demand costs more than 400 euros a day: the limit holds, and the next day begins anew."""
    free, limited = Fleet(), Fleet("cost")
    spent, days = 0.0, []
    for at in range(1, 2 * 48):
        spent += limited.ready * 2.5 * 0.5
        await limited.tick(1800.0 * at, 90_000.0)
        await free.tick(1800.0 * at, 90_000.0)
        if at % 48 == 47:
            days.append(spent + limited.ready * 2.5 * 0.5)
            spent = 0.0
    assert free.ready * 2.5 * 24.0 > 400.0
    print(days)
    # On the first day the stabiliser steps slowly; the day's bound is approached, not exceeded.
    assert all(200.0 < day < 400.0 * 1.1 for day in days)
    assert limited.texts[-1].endswith("of 400 euros")


async def test_weekends(my_plugins: ModuleType) -> None:
    fleet = Fleet("weekend")
    friday = datetime(2026, 11, 27, tzinfo=UTC).timestamp()
    offset = friday - 1800.0
    fleet.deployment = a_deployment(mode="agg", max_gpu_budget=32, down_window_s=600.0)
    for at in range(1, 5 * 48):
        now_s = offset + 1800.0 * at
        await fleet.tick(now_s, 9000.0)
        weekday = datetime.fromtimestamp(now_s, UTC).weekday()
        hours = (now_s - friday) / 3600.0
        if weekday == 4:
            assert fleet.ready >= 3
        elif weekday >= 5 and hours > 36.0:
            assert fleet.ready == 2
        elif weekday == 0 and hours > 73.0:
            assert fleet.ready >= 3
    assert set(fleet.texts) == {"weekend"}


def test_the_bodies_are_those_of_the_planner() -> None:
    context, answer = (json.loads(block) for block in blocks("json"))
    settings = {"settings": msgspec.to_builtins(a_deployment(mode="agg").settings)}
    seen = msgspec.convert({**context, **settings}, PluginContext)
    assert set(context) <= set(PluginContext.__struct_fields__)
    found = decode_answer(Stage.CONSTRAIN, json.dumps(answer).encode())
    assert found is not None
    check_answer(Stage.CONSTRAIN, found, seen.roles)


def test_the_tables_are_complete() -> None:
    for outcome in CallOutcome:
        assert f"`{outcome.value}`" in TEXT
    for stage in Stage:
        assert f"| {stage.value.upper()} |" in TEXT
    assert "decided_by" in planner_api_bodies.RoleReplicasBody.__struct_fields__
    assert "plugins" in planner_api_bodies.DeploymentSummary.__struct_fields__
    prefix = "dynamo_planner_"
    assert all(
        each.name.startswith(f"{prefix}plugin_")
        for each in plugin_metrics.plugin_metrics(prefix, ())
    )
