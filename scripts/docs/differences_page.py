# ruff: noqa: E501 -- long lines are lines of the page
"""Page of the intended differences from Dynamo, from the list that the golden tests enforce."""

import tomllib
from pathlib import Path
from textwrap import fill
from typing import Any

from scripts.docs.markdown import code, marked, table

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
VERSIONS = {"1.6.1": "http_1_6", "1.3.1": "http"}
"""Folder of the exchanges recorded with a version; events are those of 1.3.1."""
REPEATED = "As above."
COMPARED = {
    "deviation": "answer",
    "cost_deviation": "cost",
    "rewritten": "request",
    "tied": "choice",
    "own_flags": "setting",
    "no_start": "start",
}
"""Tables of the list, and what differs in the exchanges they name."""
INTRODUCTION = """\
# Differences from Dynamo

Every intended difference from Dynamo's selection service 1.3.1 and 1.6.1, each reason once. The tests play recorded
exchanges against this service, with `--policy reference`, and against Dynamo itself; they fail on a difference that is
not listed, and on a listed one that is none any more. Fields and scenarios are in `tests/golden/deviations.toml`. What
this means for callers: [compatibility](dynamo.md).
"""
ADDITIONAL_FIELDS = """\
Answers, dumps and replica frames have fields that one of the versions or both lack, each with its reason in the same
file: """


def differences_page() -> str:
    """Return the page with a table of all reasons, and one of additional fields."""
    deviations = tomllib.loads((GOLDEN / "deviations.toml").read_text())
    recorded = {path.stem for path in (GOLDEN / VERSIONS["1.6.1"]).glob("*.jsonl")}
    rows = [
        (", ".join(sorted(versions)), ", ".join(subjects), reason)
        for reason, (versions, subjects) in _differences(deviations, recorded).items()
    ]
    rows.sort(key=lambda row: row[0], reverse=True)  # the newest version first
    fields = sorted({entry["field"] for entry in deviations["extra_field"]})
    sections = [
        INTRODUCTION.strip(),
        table(("version", "differs", "how and why"), rows),
        "## Additional fields",
        fill(ADDITIONAL_FIELDS + ", ".join(map(code, fields)) + ".", 120, break_on_hyphens=False),
    ]
    return marked(__name__, "\n\n".join(sections))


def _differences(
    deviations: dict[str, Any], recorded_with_1_6: set[str]
) -> dict[str, tuple[set[str], dict[str, None]]]:
    """Return the versions and the subjects of each reason, in the order of the list."""
    found: dict[str, tuple[set[str], dict[str, None]]] = {}
    for name, subject in COMPARED.items():
        reason = ""
        for entry in deviations[name]:
            reason = reason if entry["reason"] == REPEATED else " ".join(entry["reason"].split())
            scenario = entry.get("scenario") or entry["of"]
            is_later = scenario == "1.6.1" or scenario in recorded_with_1_6
            versions, subjects = found.setdefault(reason, (set(), {}))
            versions.add("1.6" if is_later else "1.3")
            subjects[subject] = None
    return found
