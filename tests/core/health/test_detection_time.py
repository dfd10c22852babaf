"""Tests that the formulas of docs/guides/health.md#time-to-detection hold and are nearly tight."""

import re
from pathlib import Path

import pytest

from select_service.core.health.health_rules import HealthRules
from select_service.core.identity import Rank
from tests.builders.fleet_scene import FleetScene

PAGE = Path(__file__).parents[3] / "docs/guides/health.md"
SICK = Rank(2, 0)
FAULTS = {
    "wrong answers": ("wrong", 0.05),
    "5xx, malformed, refused": ("500", 0.05),
    "slow": ("slow", 1.2),
    "no answer": ("hang", 0.0),
}
"""Fault of an engine, and the latency of its canary in s."""
STEPS_S = 0.4
"""Step between looks for due checks, seconds; each check may begin a step late."""
RULES = [
    HealthRules(),
    HealthRules(interval_s=10.0),
    HealthRules(interval_s=4.0, confirm_s=1.0, retries=0),
    HealthRules(interval_s=6.0, confirm_s=6.0, failures=2),
]


def formulas():
    section = PAGE.read_text().split("### Time to detection")[1].split("\n### ")[0]
    return dict(re.findall(r"^\| (.+?) \| `(.+?)` \| [0-9]+ s \|$", section, re.MULTILINE))


def promised_s(fault, rules, latency):
    """Return the value of the page's formula with these settings."""
    check = (1 + rules.retries) * latency + rules.retry_pause_s * rules.retries
    names = {
        "interval": rules.interval_s,
        "confirm": rules.confirm_s,
        "timeout": rules.timeout_s,
        "retries": rules.retries,
        "failures": rules.failures,
        "latency": latency,
        "check": check,
        "max": max,
    }
    return eval(formulas()[fault], {"__builtins__": {}}, names)


def detection_s(fault, rules, phase):
    scene = FleetScene(4, rules=rules)
    scene.run(6 * rules.interval_s + phase)
    scene.break_ranks(fault, SICK)
    broken_at = scene.now
    scene.run(rules.interval_s + 60)
    assert scene.out_at.keys() == {SICK}
    return scene.out_at[SICK] - broken_at


def test_the_page_has_a_formula_of_every_fault():
    assert formulas().keys() == FAULTS.keys()
    section = PAGE.read_text().split("### Time to detection")[1]
    for fault in FAULTS:
        shown = re.search(rf"^\| {re.escape(fault)} \| .+ \| ([0-9]+) s \|$", section, re.MULTILINE)
        assert float(shown[1]) == promised_s(fault, HealthRules(), 0.0)


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: f"every {rules.interval_s:g} s")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_sick_rank_is_out_in_the_time_of_the_page(fault, rules):
    kind, latency = FAULTS[fault]
    phases = [rules.interval_s * part for part in (0.02, 0.2, 0.4, 0.6, 0.8, 0.95)]
    longest = max(detection_s(kind, rules, phase) for phase in phases)
    promised = promised_s(fault, rules, latency)
    assert longest <= promised + STEPS_S
    # Phases are a fifth of an interval apart, and peers answer earlier than the latest moment.
    slack = rules.interval_s / 5
    if fault == "wrong answers":
        slack += rules.failures * (rules.confirm_s + 1.0)
    assert longest >= promised - slack - 1.0
