"""Cases of the vector files with expectations that a later rule replaces, and the reasons.

Case ids are those of health_states.jsonl. A deviation has the first row that differs; the rest of
the case follows from this row. A listed case without a difference is reported, too.
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
    """First row and field that differ, and the reason."""

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
    """Return the listed reason of a difference; None means none is listed for this place."""
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
