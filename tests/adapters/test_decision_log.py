"""Tests of the decision log's files: whole lines, bounded in number and size."""

import msgspec
import pytest

from select_service.adapters.logs import decision_files
from select_service.adapters.logs.decision_files import DecisionLogFiles
from select_service.core.analysis.decision_log_lines import (
    LoggedDecision,
    LoggedFleet,
    LogHead,
    LogLine,
)

FLEET = LoggedFleet("m", "t", 16, [])


def a_decision(number):
    return LoggedDecision(number, 1.0, "m", "t", "work", 10, 16, 4, "", 1, 0, 1, 0.0, True)


def lines_of(path):
    return [msgspec.json.decode(line, type=LogLine) for line in path.read_bytes().splitlines()]


def numbers_in(path):
    return [line.decision for line in lines_of(path) if isinstance(line, LoggedDecision)]


def test_lines_are_appended_and_every_run_begins_with_a_head(tmp_path):
    path = tmp_path / "log.jsonl"
    for run in range(2):
        files = DecisionLogFiles(path)
        files.start()
        assert files.offer_line(FLEET)
        assert files.offer_line(a_decision(run))
        files.close_log([a_decision(run + 10)])
        assert (files.counts.lines, files.counts.dropped, files.counts.failures) == (4, 0, 0)
    run = [LogHead(), FLEET, a_decision(0), a_decision(10)]
    assert lines_of(path) == [*run, LogHead(), FLEET, a_decision(1), a_decision(11)]


def test_files_rotate_and_each_lists_the_workers(tmp_path):
    path = tmp_path / "log.jsonl"
    files = DecisionLogFiles(path, bytes_max=1000, files_max=3)
    files.start()
    files.offer_line(FLEET)
    files.close_log([a_decision(number) for number in range(40)])
    found = sorted(tmp_path.iterdir())
    assert [file.name for file in found] == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    kept = [number for file in (found[2], found[1], found[0]) for number in numbers_in(file)]
    assert kept == list(range(40))[-len(kept) :]
    assert len(kept) < 40
    for file in found:
        assert lines_of(file)[:2] == [LogHead(), FLEET]
        assert file.stat().st_size < 1000 + 400


def test_lines_beyond_the_threads_room_are_dropped_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(decision_files, "QUEUE_MAX", 2)
    files = DecisionLogFiles(tmp_path / "log.jsonl")
    assert [files.offer_line(a_decision(number)) for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert files.counts.dropped == 2
    files.start()
    files.close_log([])
    assert numbers_in(tmp_path / "log.jsonl") == [0, 1]


def test_a_disk_that_refuses_is_counted_and_tried_again(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    files = DecisionLogFiles(folder / "log.jsonl", bytes_max=1)
    folder.rename(tmp_path / "elsewhere")
    files.start()
    files.offer_line(a_decision(1))
    files.close_log([a_decision(2)])
    assert files.counts.failures >= 1
    folder.mkdir()
    files._write_lines([a_decision(3)])
    assert numbers_in(folder / "log.jsonl") == [3]


def test_an_unwritable_path_is_reported_at_once(tmp_path):
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        DecisionLogFiles(tmp_path)
