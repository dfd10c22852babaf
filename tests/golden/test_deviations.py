"""Tests of the list of deviations: no entry is misspelt, unexplained or forgotten."""

import json

from tests.golden import deviations, exchanges

EVENTS = exchanges.FOLDER / "events"


def _names(file: str, field: str) -> set[str]:
    return {json.loads(line)[field] for line in (EVENTS / file).read_text().splitlines()}


def test_every_entry_names_a_scenario_and_a_reason() -> None:
    known = {"payloads", "engine_shapes", *exchanges.VERSIONS}
    known |= _names("index_scenarios.jsonl", "scenario") | _names("replays.jsonl", "name")
    for table in ("rewritten", "tied", "no_start", "deviation", "cost_deviation"):
        for entry in deviations.LIST[table]:
            assert entry["scenario"] in known
            assert entry["reason"].strip()
    for entry in deviations.LIST["own_flags"]:
        assert entry["of"] in {*exchanges.VERSIONS, *exchanges.FILES}
        assert entry["reason"].strip()
    for entry in deviations.LIST["extra_field"]:
        assert entry["seen_in"] in known
        assert entry["reason"].strip()


def test_a_difference_that_is_not_listed_is_reported() -> None:
    found = {"0/status": (201, 200)}
    assert any("0/status" in line for line in deviations.unexpected("cost_basic", found))


def test_a_listed_difference_that_is_none_any_more_is_reported() -> None:
    gone = deviations.unexpected("dup_store", {})
    assert len(gone) == 2
    assert all("like the reference" in line for line in gone)


def test_an_occasional_difference_may_be_none() -> None:
    place = "18/answer/workers/1/device_blocks"
    (entry,) = (e for e in deviations.LIST["deviation"] if e.get("is_occasional"))
    assert entry["ours"][place] == 0
    assert deviations.unexpected("p_basic", {}) == []
    assert deviations.unexpected("p_basic", {place: (5, 0)}) == []
    assert deviations.unexpected("p_basic", {place: (5, 4)}) != []


def test_a_listed_difference_with_another_value_is_reported() -> None:
    found = {"8/answer": ("refused", "text"), "8/status": (404, 500)}
    complaints = deviations.unexpected("routes_empty_server", found)
    assert any(line.startswith("8/status: listed as 200") for line in complaints)
