"""Every code is explained to people, in the same words everywhere."""

from select_service.planner.core.reasons import SENTENCES, Reason


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Reason)
    assert all(text.endswith(".") and len(text) < 90 for text in SENTENCES.values())
