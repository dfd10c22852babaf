"""Test of the explanations of reason codes."""

from select_service.planner.core.reasons import Reason


def test_every_reason_has_a_sentence() -> None:
    assert all(each.sentence.endswith(".") and len(each.sentence) < 90 for each in Reason)
