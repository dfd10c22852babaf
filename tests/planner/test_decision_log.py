"""Tests of the decision log: readable again, each file alone, with the place of any damage."""

import pytest

from select_service.planner.core.reconcile import BoundType, Proposal, ProposedCount
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick_input import (
    ForwardPass,
    LengthBins,
    PrefillTiming,
    Role,
    RoleReplicas,
    TickInput,
    TrafficWindow,
)
from select_service.planner.planner_log_lines import (
    DecisionLogError,
    SettingsLine,
    TickLine,
    encode_line,
    read_lines,
)
from select_service.planner.runtime.planner_decision_log import PlannerDecisionLog
from tests.builders.full_disk import full_disk

SETTINGS = SettingsLine(
    deployment="chat", at_s=0.0, settings=DeploymentSettings(mode="agg"), started_s=0.0
)


def tick(now_s: float) -> TickLine:
    return TickLine(
        deployment="chat",
        tick=TickInput(
            now_s=now_s,
            replicas={Role.DECODE: RoleReplicas(ready=2, pending=1)},
            traffic=TrafficWindow(
                duration_s=5.0,
                requests=3.0,
                uncached_isl=LengthBins(means=(10.0,), counts=(3.0,)),
                prefill_samples=(PrefillTiming(10.0, 0.25, 0.0),),
            ),
            passes={Role.DECODE: (ForwardPass(worker="w", wall_s=0.5),)},
            proposals=(
                Proposal(
                    source="x", priority=1, targets=(ProposedCount("decode", BoundType.SET, 3),)
                ),
            ),
        ),
        scale_to={Role.DECODE: 3},
    )


def test_lines_come_back_as_they_were(tmp_path):
    path = tmp_path / "decisions.jsonl"
    log = PlannerDecisionLog(path)
    lines = [SETTINGS, tick(5.0), tick(10.0)]
    for line in lines:
        log.write_line(line)
    log.close()
    read = list(read_lines(path))
    assert list(map(encode_line, read)) == list(map(encode_line, lines))
    assert isinstance(read[1], TickLine)
    assert read[1].tick == tick(5.0).tick


def test_each_file_begins_with_the_settings(tmp_path):
    path = tmp_path / "decisions.jsonl"
    log = PlannerDecisionLog(path, bytes_max=2 * len(encode_line(SETTINGS)), files_max=3)
    log.write_line(SETTINGS)
    for number in range(40):
        log.write_line(tick(float(number)))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    for file in files:
        assert next(read_lines(file)) == SETTINGS
    last = list(read_lines(path))[-1]
    assert isinstance(last, TickLine)
    assert last.tick.now_s == 39.0


def test_a_line_that_was_being_written_is_not_read(tmp_path):
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(encode_line(SETTINGS) + b"\n" + encode_line(tick(1.0))[:-5])
    assert list(read_lines(path)) == [SETTINGS]


def test_a_planner_that_was_killed_in_a_line_does_not_break_the_log_of_the_next(tmp_path):
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(encode_line(SETTINGS) + b"\n" + encode_line(tick(1.0))[:-5])
    log = PlannerDecisionLog(path)
    log.write_line(SETTINGS)
    log.write_line(tick(2.0))
    log.close()
    assert list(read_lines(path)) == [SETTINGS, SETTINGS, tick(2.0)]


def test_only_a_beginning_follows_a_line_that_is_torn(tmp_path):
    path = tmp_path / "decisions.jsonl"
    torn = encode_line(tick(1.0))[:-5]
    path.write_bytes(b"\n".join([encode_line(SETTINGS), torn, encode_line(tick(2.0)), b""]))
    with pytest.raises(DecisionLogError, match="line 2"):
        list(read_lines(path))


def test_files_that_are_no_log_are_refused(tmp_path):
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(encode_line(SETTINGS) + b'\n{"line": "tock"}\n')
    with pytest.raises(DecisionLogError, match=r"line 2: Invalid value 'tock'"):
        list(read_lines(path))
    path.write_bytes(b'{"kind":"log","format":"select-service decisions","version":1}\n')
    with pytest.raises(DecisionLogError, match=r"line 1: .*; give the log of a planner, not of a"):
        list(read_lines(path))


def test_a_full_disk_costs_lines_and_no_tick(tmp_path):
    path = tmp_path / "log.jsonl"
    log = PlannerDecisionLog(path)
    with full_disk(path):
        log.write_line(SETTINGS)
        log.write_line(tick(1.0))
    assert log.lost_lines == 2
    log.write_line(SETTINGS)
    log.close()
    assert list(read_lines(path)) == [SETTINGS]
