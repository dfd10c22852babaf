"""Tests of replaying a log: equal with its own settings, and differing with other settings."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw, structs

from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import PlannedDeployment
from select_service.planner.core.tick_input import Role
from select_service.planner.planner_log_lines import (
    DecisionLogError,
    LogLine,
    SettingsLine,
    TickLine,
)
from select_service.planner.replay.log_replay import DIFFERENCES_MAX, repeat_log
from select_service.planner.replay.replay_tables import comparison_table
from tests.planner.core.deployments import a_deployment, both, traffic
from tests.planner.core.deployments import tick_input as a_tick

SETTINGS = a_deployment().settings


def make(settings: DeploymentSettings, start_s: float) -> PlannedDeployment:
    assert start_s == 0.0
    return a_deployment(**structs.asdict(settings))


def recorded_log(ticks: int = 60, **given: Any) -> list[LogLine]:
    """Return a log as a recorder writes it, of a fleet without any scaling."""
    settings = structs.replace(SETTINGS, **given)
    deployment = make(settings, 0.0)
    lines: list[LogLine] = [
        SettingsLine(deployment="chat", at_s=0.0, settings=settings, started_s=0.0)
    ]
    for at in range(1, ticks + 1):
        now = 5.0 * at
        seen = traffic(600.0 + 5.0 * at) if at % 12 == 0 else None
        effects = deployment.run_tick(told := a_tick(now, both(2, 2), of=seen))
        lines.append(
            TickLine(
                deployment="chat",
                tick=told,
                scale_to=effects.scale_to,
                diagnostics=Raw(msgspec.json.encode(effects.diagnostics)),
            )
        )
    return lines


def test_every_tick_decides_the_same_again() -> None:
    (again,) = repeat_log(recorded_log(), make)
    assert (again.ticks, again.same, again.differing, again.from_start) == (60, 60, 0, True)


def test_settings_that_were_changed_count_from_then_on() -> None:
    lines = recorded_log()
    same = structs.replace(SETTINGS, max_gpu_budget=5)
    changed = SettingsLine(deployment="chat", at_s=150.0, settings=same, started_s=0.0)
    (again,) = repeat_log([*lines[:31], changed, *lines[31:]], make)
    assert 0 < again.differing <= 30
    assert all(each.at_s > 150.0 for each in again.differences)


def test_a_line_that_was_altered_is_found() -> None:
    lines = recorded_log()
    assert isinstance(lines[24], TickLine)
    lines[24] = structs.replace(lines[24], scale_to={Role.PREFILL: 7})
    lines[25] = structs.replace(lines[25], diagnostics=Raw(b"{}"))
    (again,) = repeat_log(lines, make)
    assert [(d.at_s, d.recorded, d.thoughts) for d in again.differences] == [
        (120.0, {Role.PREFILL: 7}, False),
        (125.0, None, True),
    ]
    text = "\n".join(comparison_table([("own", [again])]))
    assert "58 the same, 2 differ" in text
    assert "at 120.000: prefill=7 -> prefill=" in text


def test_other_settings_decide_otherwise_somewhere() -> None:
    (again,) = repeat_log(recorded_log(), make, structs.replace(SETTINGS, sizing="mean"))
    assert 0 < again.differing < 60
    assert not any(each.thoughts for each in again.differences)


def test_a_restarted_planner_has_learnt_nothing() -> None:
    lines = recorded_log()
    (again,) = repeat_log([*lines, *lines], make)
    assert again.differing > 0
    began = SettingsLine(deployment="chat", at_s=0.0, settings=SETTINGS, started_s=0.5)
    starts: list[float] = []

    def noted(settings: DeploymentSettings, start_s: float) -> PlannedDeployment:
        starts.append(start_s)
        return make(settings, 0.0)

    (again,) = repeat_log([*lines, began, *lines[1:]], noted)
    assert (again.same, starts) == (120, [0.0, 0.5])


def test_a_log_without_its_beginning_is_marked() -> None:
    lines = recorded_log()
    (again,) = repeat_log([lines[0], *lines[30:]], make)
    assert not again.from_start


def test_a_tick_before_its_settings_is_no_log() -> None:
    with pytest.raises(DecisionLogError, match="precedes its settings"):
        repeat_log(recorded_log()[1:], make)


def test_differences_are_bounded() -> None:
    lines = recorded_log(ticks=1)
    told = lines[1]
    assert isinstance(told, TickLine)
    wrong = [
        structs.replace(
            told, scale_to={Role.DECODE: 99}, tick=structs.replace(told.tick, now_s=5.0 + at)
        )
        for at in range(DIFFERENCES_MAX + 5)
    ]
    (again,) = repeat_log([lines[0], *wrong], make)
    assert (again.differing, len(again.differences)) == (DIFFERENCES_MAX + 5, DIFFERENCES_MAX)
