"""Cases of the vector files whose expectation a later rule replaces, with the reason.

Case ids are those of health_states.jsonl; a row is the first one that differs, and the rest of the
case follows from it. A case that is listed and does not differ there is a difference.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.vectors.differences import Difference

HALVED = (
    "A rank that only --health-max-eject keeps in rotation loses half of its weight with each "
    "failing check (docs/guides/health.md#states); the case expects 0.5 for ever."
)
SILENT = (
    "A rank that answers nothing is ejected beyond --health-max-eject while enough others answer "
    "(docs/guides/health.md#states); the case keeps it in rotation."
)


class Deviation(NamedTuple):
    """First row that differs, and what differs there."""

    row: int
    field: str
    reason: str


DEVIATIONS = {
    "random-4": Deviation(78, "after.a.weight", HALVED),
    "random-10": Deviation(78, "after.a.weight", HALVED),
    "random-12": Deviation(74, "actions", SILENT),
    "random-18": Deviation(75, "after.a.weight", HALVED),
}


def reason_of(case_id: str, found: list[Difference]) -> str | None:
    """Return why the case differs; None if it is not listed, or differs elsewhere."""
    listed = DEVIATIONS.get(case_id)
    if listed is None or not found:
        return None
    first = str(found[0])
    is_there = first.startswith(f"row {listed.row} ") and f".{listed.field}:" in first
    return listed.reason if is_there else None


def listed_and_equal(case_id: str, found: list[Difference]) -> Iterator[str]:
    """Yield a complaint about a listed case that does not differ."""
    if case_id in DEVIATIONS and not found:
        yield f"{case_id} is listed in tests/vectors/deviations.py and does not differ"
