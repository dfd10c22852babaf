"""Tests of recorded cases with known results, and of the script that plays them."""

import json
from pathlib import Path

import pytest

from tests.vectors.__main__ import main
from tests.vectors.deviations import listed_and_equal, reason_of
from tests.vectors.differences import differences
from tests.vectors.formats import FORMATS, UnknownFormat, format_of

VECTORS = Path(__file__).parent / "vectors"
OF_HEALTH = [known for known in FORMATS if known.name.startswith("health ")]
CASES = [
    json.loads(line) for path in sorted(VECTORS.iterdir()) for line in path.read_text().splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_has_its_recorded_result(case):
    assert list(format_of(case).play(case)) == []


def test_every_format_is_played():
    assert {format_of(case).name for case in CASES} == {known.name for known in OF_HEALTH}


@pytest.mark.parametrize("known", OF_HEALTH, ids=lambda known: known.name)
def test_another_result_is_a_difference(known):
    case = json.loads(json.dumps(next(c for c in CASES if format_of(c) is known)))
    changed = spoil_case(case)
    assert list(known.play(changed)), "what the case expects is looked at"


def spoil_case(case):
    """Return the case with a wrong last number or word in its expectation."""
    if "rows" in case and "config" in case:
        case["rows"][-1]["actions"].append("something")
    elif "rows" in case:
        case["rows"][-1][2] += 1
    elif "verdict" in case:
        case["verdict"] = "something"
    elif "effects" in case:
        case["floors"][0] = 2.0
    elif "plan" in case:
        case["plan"].append({"id": "something"})
    elif "bytes_per_shard" in case and "result" not in case:
        case["bytes_per_shard"] += 1
    else:
        key = next(iter(case["result"]))
        case["result"][key] = "something"
    return case


def test_numbers_are_compared_to_a_millionth():
    assert not list(differences(1.0, 1.0000005))
    assert list(differences(1.0, 1.000005))
    assert list(differences(1, True))
    assert list(differences([1], [1, 2]))
    assert [str(d) for d in differences({"a": {"b": 1}}, {"a": {}})] == [
        "result.a.b: expected 1, found '(nothing)'"
    ]


def test_an_unknown_format_is_named():
    with pytest.raises(UnknownFormat, match=r"\['id', 'weather'\]"):
        format_of({"id": "x", "weather": "fine"})
    with pytest.raises(UnknownFormat, match="not list"):
        format_of([])


def test_the_exit_status_shows_the_findings(tmp_path, capsys):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text("\n".join(json.dumps(c) for c in CASES[:3]) + "\n\n")
    assert main(good) == 0
    case = spoil_case(json.loads(json.dumps(CASES[0])))
    bad.write_text(json.dumps(CASES[1]) + "\n" + json.dumps(case))
    assert main(bad) == 1
    shown = capsys.readouterr().out
    assert f"{bad}:2" in shown
    assert "expected" in shown
    assert "1 of 2 differ" in shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no cases"),
        ("{", "not understood"),
        ('{"id": 1}', "unknown format"),
        ('{"config": "other", "ranks": [], "spares": [], "rows": []}', "not understood"),
        (
            '{"config": "seed", "overrides": {"luck": 1}, "ranks": [], "spares": [], "rows": []}',
            "unknown rule 'luck'",
        ),
    ],
)
def test_unplayable_cases_are_reported(text, why, tmp_path, capsys):
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    assert main(path) == 2
    assert why in capsys.readouterr().err


def test_a_missing_file_is_reported(tmp_path, capsys):
    assert main(tmp_path / "nothing") == 2
    assert "No such file" in capsys.readouterr().err


def test_rules_of_a_case_can_be_overridden():
    from tests.vectors.health_states import rules_of

    given = {"failure_threshold": 5, "max_eject": 0.9, "passive_window": 7, "slow_start": 3}
    rules = rules_of({"config": "default", "overrides": given})
    assert (rules.failures, rules.max_eject) == (5, 0.9)
    assert (rules.passive_window_s, rules.slow_start_s) == (7, 3)


def test_a_replaced_rule_counts_at_its_place_alone():
    found = list(differences(0.5, 0.25, "row 78 {}.after.a.weight"))
    assert "docs/guides/health.md" in reason_of("random-4", found)
    assert reason_of("random-2", found) is None
    elsewhere = list(differences(0.5, 0.25, "row 12 {}.after.a.weight"))
    assert reason_of("random-4", elsewhere) is None
    assert list(listed_and_equal("random-4", []))
    assert not list(listed_and_equal("random-4", found))
