"""Tests of replaying a log with replacements, including refused and paused replacements."""

import msgspec
import pytest

from select_service.planner.connectors.connector import ConnectorDecision
from select_service.planner.planner_log_lines import SettingsLine, TickLine
from select_service.planner.replay.log_replay import repeat_log
from tests.planner.core.deployments import a_deployment
from tests.planner.core.lost_world import LostWorld

_encode = msgspec.json.Encoder(order="deterministic").encode


def record(world, outcome):
    """Record the ticks of a world as log lines.

    outcome: outcome of replacements
    """
    lines = [
        SettingsLine(deployment="d", at_s=0.0, settings=world.deployment.settings, started_s=0.0)
    ]
    run_tick = world.deployment.run_tick

    def recorded(tick):
        effects = run_tick(tick, acts=outcome != "paused")
        begun = effects.replace if outcome == "carried out" else ()
        world.deployment.undo_replacement(set(effects.replace) - set(begun))
        applied = ConnectorDecision(roles={}, replaced=begun)
        line = TickLine(
            deployment="d",
            tick=tick,
            scale_to=effects.scale_to,
            diagnostics=msgspec.Raw(msgspec.json.encode(effects.diagnostics)),
            applied=msgspec.Raw(_encode(applied)),
        )
        lines.append(line)
        return effects

    world.deployment.run_tick = recorded
    if outcome != "carried out":
        world.replace = lambda worker_id: None
    return lines


@pytest.mark.parametrize("outcome", ["carried out", "refused", "paused"])
def test_a_log_with_lost_replicas_gives_the_same_decisions(outcome):
    settings = {"optimization_target": "load", "enable_throughput_scaling": False}
    world = LostWorld(1, is_virtual=False, kv_tokens=800_000, max_gpu_budget=5, **settings)
    lines = record(world, outcome)
    world.run(100)
    world.fail(world.serving[0])
    world.run(400)

    def make(settings, started_s):
        given = {name: getattr(settings, name) for name in settings.__struct_fields__}
        return a_deployment(**given)

    (comparison,) = repeat_log(lines, make)
    assert comparison.ticks == 100
    assert (comparison.same, comparison.differing) == (100, 0)
