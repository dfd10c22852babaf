"""Every code is explained to people, in the same words everywhere."""

from pathlib import Path

from select_service.planner.core.reasons import SENTENCES, Reason

DOCS = Path(__file__).parents[3] / "docs" / "planner.md"


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Reason)
    assert all(text.endswith(".") and len(text) < 90 for text in SENTENCES.values())


def test_the_table_of_the_documentation_has_them_all() -> None:
    text = DOCS.read_text()
    missing = [reason for reason in Reason if f"| `{reason}` | {SENTENCES[reason]} |" not in text]
    assert missing == []
