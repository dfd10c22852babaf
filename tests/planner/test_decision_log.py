"""A log of decisions can be read again, each of its files alone, and says where it is broken."""

from pathlib import Path

import pytest

from select_service.planner.core.inputs import (
    Bins,
    ForwardPass,
    PrefillSample,
    Replicas,
    Role,
    TickInput,
    Traffic,
)
from select_service.planner.core.merge import Bound, Proposal, Target
from select_service.planner.core.settings import Settings
from select_service.planner.decision_lines import (
    LogError,
    SettingsLine,
    TickLine,
    encoded,
    read_lines,
)
from select_service.planner.edge.decision_log import DecisionLog
from tests.full_disk import full_disk

SETTINGS = SettingsLine(deployment="chat", at_s=0.0, settings=Settings(mode="agg"), started_s=0.0)


def tick(now_s: float) -> TickLine:
    return TickLine(
        deployment="chat",
        tick=TickInput(
            now_s=now_s,
            replicas={Role.DECODE: Replicas(ready=2, pending=1)},
            traffic=Traffic(
                duration_s=5.0,
                requests=3.0,
                uncached_isl=Bins(means=(10.0,), counts=(3.0,)),
                prefill_samples=(PrefillSample(10.0, 0.25, 0.0),),
            ),
            passes={Role.DECODE: (ForwardPass(worker="w", wall_s=0.5),)},
            proposals=(
                Proposal(source="x", priority=1, targets=(Target("decode", Bound.SET, 3),)),
            ),
        ),
        scale_to={Role.DECODE: 3},
    )


def test_lines_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    lines = [SETTINGS, tick(5.0), tick(10.0)]
    for line in lines:
        log.write(line)
    log.close()
    read = list(read_lines(path))
    assert list(map(encoded, read)) == list(map(encoded, lines))
    assert isinstance(read[1], TickLine)
    assert read[1].tick == tick(5.0).tick


def test_each_file_begins_with_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, bytes_max=2 * len(encoded(SETTINGS)), files_max=3)
    log.write(SETTINGS)
    for number in range(40):
        log.write(tick(float(number)))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    for file in files:
        assert next(read_lines(file)) == SETTINGS
    last = list(read_lines(path))[-1]
    assert isinstance(last, TickLine)
    assert last.tick.now_s == 39.0


def test_a_line_that_was_being_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(encoded(SETTINGS) + b"\n" + encoded(tick(1.0))[:-5])
    assert list(read_lines(path)) == [SETTINGS]


def test_a_planner_that_was_killed_in_a_line_does_not_break_the_log_of_the_next(
    tmp_path: Path,
) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(encoded(SETTINGS) + b"\n" + encoded(tick(1.0))[:-5])
    log = DecisionLog(path)
    log.write(SETTINGS)
    log.write(tick(2.0))
    log.close()
    assert list(read_lines(path)) == [SETTINGS, SETTINGS, tick(2.0)]


def test_only_a_beginning_follows_a_line_that_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    torn = encoded(tick(1.0))[:-5]
    path.write_bytes(b"\n".join([encoded(SETTINGS), torn, encoded(tick(2.0)), b""]))
    with pytest.raises(LogError, match="line 2"):
        list(read_lines(path))


def test_what_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(encoded(SETTINGS) + b'\n{"line": "tock"}\n')
    with pytest.raises(LogError, match=r"line 2: Invalid value 'tock'"):
        list(read_lines(path))


def test_a_full_disk_costs_lines_and_no_tick(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = DecisionLog(path)
    with full_disk(path):
        log.write(SETTINGS)
        log.write(tick(1.0))
    assert log.lost == 2
    log.write(SETTINGS)
    log.close()
    assert list(read_lines(path)) == [SETTINGS]
